"""The score store: one SQLite file, written by many processes of one machine, that keeps every committed score.

A batch is one transaction, so a killed process loses at most the batch it was writing. Write-ahead logging lets readers
and one writer work at once; it needs shared memory, so on network file systems the store falls back to a rollback
journal. Use one `ScoreStore` per process and thread: SQLite connections do not survive a fork.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from leverplus.data.rundir import make_private_folder
from leverplus.data.types import Score
from leverplus.errors import StoreError
from leverplus.scores.keys import (
    CONTEXT_PART,
    KEY_SIZE,
    QUERY_PART,
    Context,
    context_digest,
    key_range,
)
from leverplus.scores.records import FORMAT, StoredRow, seal, unseal

VARIABLE = "LEVERPLUS_STORE"
APPLICATION_ID = 0x4C565253
"""The bytes "LVRS", kept in the file's header: they tell a score store from any other SQLite file."""

SCHEMA = (
    # The index of this UNIQUE is a second copy of every context, on other pages: damage to one leaves the other.
    """CREATE TABLE contexts (
        id INTEGER PRIMARY KEY, digest BLOB NOT NULL, canonical TEXT NOT NULL, UNIQUE (digest, canonical)
    )""",
    # WITHOUT ROWID: rows lie in key order, so the scores of one query share pages.
    """CREATE TABLE records (
        key BLOB PRIMARY KEY,
        context INTEGER NOT NULL REFERENCES contexts (id),
        tokens INTEGER NOT NULL,
        seconds REAL NOT NULL,
        checksum INTEGER NOT NULL,
        payload BLOB NOT NULL
    ) WITHOUT ROWID""",
)
COLUMNS = "key, payload, tokens, seconds, checksum"
_IN_KEY_BOUNDS = "key > ? AND key < ? AND context = ?"
# SQLite before 3.32 takes at most 999 parameters in one statement.
_KEYS_PER_QUERY = 500
# Rows of one read transaction: `rows` lets go of the file between reads, so that a checkpoint of the log can go on.
_ROWS_PER_READ = 2000
# Pages that SQLite keeps in memory per connection. A negative number is in KiB, so this is 64 MiB.
_CACHE_SIZE = -65536


def default_store_path() -> Path:
    """The file named by LEVERPLUS_STORE, else ~/.cache/leverplus/scores.db; stores are shared between runs."""
    named = os.environ.get(VARIABLE) or "~/.cache/leverplus/scores.db"
    return Path(named).expanduser()


class ScoreStore:
    """Scores by key. Opening creates the file unless `must_exist`.

    A store that may not be written (its mode, its folder's, a read-only mount) is opened to be read.
    """

    def __init__(
        self, path: str | Path, *, must_exist: bool = False, timeout: float = 60.0
    ) -> None:
        self.path = Path(path).expanduser()
        with self._explaining_errors():
            if must_exist and not self.path.exists():
                raise StoreError(
                    f"there is no score store at {self.path}; name one with --store FILE"
                )
            if must_exist and self.path.is_file() and not self.path.stat().st_size:
                raise StoreError(
                    f"{self.path} is empty (0 bytes), so it is no score store; delete it, or name another with --store"
                )
            self._db = self._connect(timeout)
        try:
            with self._explaining_errors():
                self._prepare(timeout, must_exist=must_exist)
        except BaseException:
            self._db.close()
            raise

    def _connect(self, timeout: float) -> sqlite3.Connection:
        """A connection that creates the file where there is none, readable by its owner only; or one that only reads."""
        writable = os.access(self.path, os.W_OK) and os.access(
            self.path.parent, os.W_OK
        )
        self.read_only = self.path.is_file() and not writable
        address = str(self.path)
        if self.read_only:
            log = self.path.with_name(self.path.name + "-wal")
            logged = log.is_file() and log.stat().st_size
            # Where the log is empty the store is whole without it, and SQLite need not write beside the store.
            option = "immutable=1"
            if logged:
                option = "mode=ro"
            address = f"file:{quote(str(self.path.resolve()))}?{option}"
        else:
            make_private_folder(self.path.parent)
            # SQLite gives the files it keeps beside a store the mode of the store itself.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        return sqlite3.connect(
            address, uri=self.read_only, timeout=timeout, isolation_level=None
        )

    def _prepare(self, timeout: float, *, must_exist: bool) -> None:
        """Check that the file is a store, then set the journal and write the schema of a new one."""
        marked = self._ask("PRAGMA application_id")
        tables = self._ask("SELECT count(*) FROM sqlite_master")
        is_new = not (must_exist or marked or tables)
        if not is_new:
            self._require_format(marked)
        self._db.execute(f"PRAGMA cache_size = {_CACHE_SIZE}")
        if self.read_only:
            self.journal = str(self._ask("PRAGMA journal_mode"))
            return
        self.journal = set_journal(self._db, timeout)
        # In WAL mode NORMAL keeps every commit through a killed process and stays whole through a power cut.
        # A rollback journal needs FULL for that.
        level = "FULL"
        if self.journal == "wal":
            level = "NORMAL"
        self._db.execute(f"PRAGMA synchronous = {level}")
        if is_new:
            self._create_schema()

    def _require_format(self, marked: int) -> None:
        """Refuse a file that is no score store, or one of another format."""
        found = self._ask("PRAGMA user_version")
        if marked != APPLICATION_ID:
            raise StoreError(
                f"{self.path} is an SQLite file but not a score store; name another file with --store"
            )
        if found != FORMAT:
            raise StoreError(
                f"{self.path} was written by another version of Lever-Plus (store format {found}, this one reads "
                f"{FORMAT}); open it with the version that wrote it, or name another file with --store"
            )

    def _create_schema(self) -> None:
        """Write the schema into a new file; where another process was quicker, nothing is left to do."""
        with self._transaction():
            if self._ask("PRAGMA user_version"):
                return
            for statement in SCHEMA:
                self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {FORMAT}")

    def put(self, context: Context, records: Iterable[tuple[bytes, Score]]) -> int:
        """Store a batch in one transaction, all of it or nothing; return how many keys were new.

        A key that is already there keeps its first score. A score that must not be stored raises ScoringError.
        """
        return self.put_rows(
            context, [seal(context.digest, key, score) for key, score in records]
        )

    def put_rows(self, context: Context, rows: Sequence[StoredRow]) -> int:
        """Store sealed rows in one transaction; return how many keys were new."""
        if not rows:
            return 0
        with self._transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO contexts (digest, canonical) VALUES (?, ?)",
                (context.digest, context.canonical),
            )
            number = self._context_number(context)
            return self._db.executemany(
                f"INSERT OR IGNORE INTO records ({COLUMNS}, context) VALUES (?, ?, ?, ?, ?, {number})",
                rows,
            ).rowcount

    def get(self, keys: Iterable[bytes]) -> dict[bytes, Score]:
        """The stored scores among these keys; keys that are not stored are absent."""
        with self._explaining_errors():
            digests = dict(self._db.execute("SELECT id, digest FROM contexts"))
        scores = {}
        for number, *values in self._select(f"context, {COLUMNS}", keys):
            row = StoredRow._make(values)
            # A record whose context is gone gets an empty digest, which no checksum fits: `unseal` refuses it.
            scores[row.key] = unseal(digests.get(number, b""), row)
        return scores

    def payloads(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The packed scores (`records.encode`) that are stored under these keys."""
        return dict(self._select("key, payload", keys))

    def count(self, context: Context | None = None) -> int:
        """How many scores are stored, in all or in one context."""
        with self._explaining_errors():
            if context is None:
                return int(self._ask("SELECT count(*) FROM records"))
            query = f"SELECT count(*) FROM records WHERE {_IN_KEY_BOUNDS}"
            return int(self._ask(query, self._key_bounds(context)))

    def contexts(self) -> list[Context]:
        """The contexts in which scores were measured, oldest first; one that does not fit its digest is refused."""
        # Read as bytes: sqlite3 cannot decode a text that damage has left without valid UTF-8.
        query = "SELECT digest, CAST(canonical AS BLOB) FROM contexts ORDER BY id"
        with self._explaining_errors():
            found = self._db.execute(query).fetchall()
        contexts = []
        for digest, text in found:
            context = proven_context(digest, text)
            if context is None:
                raise StoreError(
                    f"score store {self.path}: a context was changed after it was written; save every score with "
                    f"{salvage_command(self.path)}"
                )
            contexts.append(context)
        return contexts

    def scan(
        self, context: Context, query_digest: bytes = b""
    ) -> Iterator[tuple[bytes, Score]]:
        """The scores of a context, or of one query in it, in key order: those of one query stand together."""
        for row in self.rows(context, query_digest):
            yield row.key, unseal(context.digest, row)

    def rows(self, context: Context, query_digest: bytes = b"") -> Iterator[StoredRow]:
        """Like `scan`, as sealed rows. Reads page by page, so that a slow reader never holds back a writer."""
        query = f"SELECT {COLUMNS} FROM records WHERE {_IN_KEY_BOUNDS} ORDER BY key LIMIT {_ROWS_PER_READ}"
        after, end, number = self._key_bounds(context, query_digest)
        while True:
            with self._explaining_errors():
                page = self._db.execute(query, (after, end, number)).fetchall()
            yield from map(StoredRow._make, page)
            if len(page) < _ROWS_PER_READ:
                return
            # In a damaged file keys may stand out of order; going on from a smaller key would never end.
            if page[-1][0] <= after:
                raise StoreError(
                    f"score store {self.path}: the file is damaged; save what is whole with "
                    f"{salvage_command(self.path)}"
                )
            after = page[-1][0]

    def stats(self) -> dict[str, Any]:
        """What is stored: records, contexts with their queries and costs, file size, schema, journal."""
        contexts = [self._context_stats(context) for context in self.contexts()]
        with self._explaining_errors():
            size = self._ask("PRAGMA page_count") * self._ask("PRAGMA page_size")
        records = sum(entry["records"] for entry in contexts)
        return {
            "path": str(self.path),
            "records": records,
            "bytes": size,
            "bytes_per_record": size / records if records else None,
            "schema": FORMAT,
            "journal": self.journal,
            "contexts": contexts,
        }

    def _context_stats(self, context: Context) -> dict[str, Any]:
        query_part = f"substr(key, {CONTEXT_PART + 1}, {QUERY_PART})"  # SQL counts characters from 1
        with self._explaining_errors():
            records, queries, tokens, seconds = self._db.execute(
                f"SELECT count(*), count(DISTINCT {query_part}), total(tokens), total(seconds) "
                f"FROM records WHERE {_IN_KEY_BOUNDS}",
                self._key_bounds(context),
            ).fetchone()
        return {
            "digest": context.digest.hex(),
            **context.values,
            "records": records,
            "queries": queries,
            "tokens": int(tokens),
            "seconds": seconds,
        }

    def check_pages(self) -> list[str]:
        """Problems of the file's pages and records without a fitting context, as sentences; empty when it is whole."""
        with self._explaining_errors():
            # at most 20 problems
            found = self._db.execute("PRAGMA integrity_check(20)").fetchall()
            strays = self._ask(
                "SELECT count(*) FROM records LEFT JOIN contexts ON contexts.id = context WHERE contexts.id IS NULL "
                f"OR length(key) != {KEY_SIZE} OR substr(key, 1, {CONTEXT_PART}) != substr(digest, 1, {CONTEXT_PART})"
            )
        problems = []
        if found != [("ok",)]:
            problems += [f"damaged page: {text}" for (text,) in found]
        if strays:
            problems.append(
                f"{strays} records have no context or a key that does not fit it"
            )
        return problems

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> ScoreStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, query: str, values: Sequence[Any] = ()) -> Any:
        """The one value that a statement gives."""
        return self._db.execute(query, values).fetchone()[0]

    def _select(self, columns: str, keys: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        """These columns of the records under these keys, some hundred keys per statement."""
        source = iter(keys)
        while chunk := list(islice(source, _KEYS_PER_QUERY)):
            marks = ",".join("?" * len(chunk))
            with self._explaining_errors():
                rows = self._db.execute(
                    f"SELECT {columns} FROM records WHERE key IN ({marks})", chunk
                ).fetchall()
            yield from rows

    def _key_bounds(
        self, context: Context, query_digest: bytes = b""
    ) -> tuple[bytes, bytes, int]:
        """What `_IN_KEY_BOUNDS` asks for: the ends of a range of keys (neither is a key itself) and the context's id.

        The id is needed because a key holds only 4 bytes of the context's digest: two contexts may share them.
        """
        prefix = key_range(context.digest, query_digest)
        with self._explaining_errors():
            return prefix, prefix + b"\xff" * KEY_SIZE, self._context_number(context)

    def _context_number(self, context: Context) -> int:
        """The context's id in the table of contexts; -1, which no record has, where it is not stored."""
        query = "SELECT coalesce(min(id), -1) FROM contexts WHERE digest = ?"
        return int(self._ask(query, (context.digest,)))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._explaining_errors():
            # IMMEDIATE takes the write lock at once and waits for it. A lock taken later, at the first INSERT, could
            # meet another writer's and fail without waiting.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                # on some errors (a full disk) SQLite has rolled back by itself
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        """Raise what SQLite or the file system reports as a StoreError that says what to type next."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"score store {self.path}: {_explanation(self.path, error)} ({error})"
            ) from error


def set_journal(db: sqlite3.Connection, timeout: float) -> str:
    """Switch to write-ahead logging, else to a rollback journal; return the mode in force.

    SQLite does not wait by itself when another process makes the same switch, so the wait is here.
    """
    until = time.monotonic() + timeout
    while True:
        try:
            mode = str(db.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if _code(error) == sqlite3.SQLITE_BUSY and time.monotonic() < until:
                time.sleep(0.01)
                continue
            mode = ""  # no shared memory, as on network mounts
        if mode == "wal":
            return mode
        return str(db.execute("PRAGMA journal_mode = DELETE").fetchone()[0])


def proven_context(digest: object, text: object) -> Context | None:
    """The context of a text that has this digest; None where one of the two was changed, or is of any other type."""
    if isinstance(text, bytes) and text.isascii() and context_digest(text) == digest:
        return Context(text.decode("ascii"))
    return None


def salvage_command(path: Path) -> str:
    """What to type to save what a damaged store still holds."""
    return f"`lever store merge --store NEW.db {path}`"


_NOT_DAMAGE = {
    sqlite3.SQLITE_FULL: "the disk is full; nothing already stored is lost: free some space and run the command again",
    sqlite3.SQLITE_BUSY: "another process has held it for too long; wait until that one is done and run this again",
    **dict.fromkeys(
        (
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_PERM,
            sqlite3.SQLITE_IOERR,
        ),
        "it cannot be opened, read or written there; check the disk, or name a file in a folder you may write with "
        "--store FILE or LEVERPLUS_STORE",
    ),
}


def _explanation(path: Path, error: Exception) -> str:
    """What an error of SQLite or of the file system means, and what to type next."""
    if _code(error) == sqlite3.SQLITE_NOTADB:
        return "it is not a score store (not an SQLite file); name another file with --store"
    if is_damage(error):
        return f"the file is damaged or cut off; save what is whole with {salvage_command(path)}"
    return _NOT_DAMAGE.get(_code(error), _NOT_DAMAGE[sqlite3.SQLITE_IOERR])


def is_damage(error: BaseException | None) -> bool:
    """Whether SQLite's error means that the file is damaged: its header, its schema, its pages or its texts."""
    return isinstance(error, sqlite3.Error) and _code(error) not in _NOT_DAMAGE


def _code(error: BaseException) -> int:
    """SQLite's primary result code: the low byte, without the details of an extended code; 0 where there is none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
