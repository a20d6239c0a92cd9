"""The score store: one SQLite file, written by many processes of one machine, that keeps every committed score.

A batch is one transaction, so a killed process loses at most the batch it was writing. Write-ahead logging lets readers
and one writer work at once; it needs shared memory, so on network file systems the store falls back to a rollback
journal. Use one `ScoreStore` a process and thread: SQLite connections do not survive a fork.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from leverplus.errors import StoreError
from leverplus.store.keys import CONTEXT_PART, KEY_SIZE, QUERY_PART, Context, key_range
from leverplus.store.migrations import APPLICATION_ID, MIGRATIONS, migrate, schema_version
from leverplus.store.records import Row, seal, unseal
from leverplus.types import Score

_COLUMNS = "key, payload, tokens, seconds, checksum"
_WITHIN = "key > ? AND key < ? AND context = ?"
_CHUNK = 500
_PAGE = 2000


class ScoreStore:
    """Scores by key. Opening creates the file unless `must_exist`, and brings an older schema up to date."""

    def __init__(self, path: str | Path, *, must_exist: bool = False, timeout: float = 60.0) -> None:
        self.path = Path(path).expanduser()
        if must_exist and not self.path.exists():
            raise StoreError(f"there is no score store at {self.path}; name one with --store FILE")
        with self._sentences():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=timeout, isolation_level=None)
        try:
            with self._sentences():
                self._open(timeout)
        except BaseException:
            self._db.close()
            raise

    def _open(self, timeout: float) -> None:
        version = schema_version(self._db)
        if version > len(MIGRATIONS):
            raise StoreError(
                f"{self.path} was written by a newer Lever-Plus (schema {version}, this one reads up to "
                f"{len(MIGRATIONS)}); run `pip install --upgrade leverplus`, or name another file with --store"
            )
        mark = self._db.execute("PRAGMA application_id").fetchone()[0]
        if mark != APPLICATION_ID and self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise StoreError(f"{self.path} is an SQLite file but not a score store; name another file with --store")
        self.journal = _set_journal(self._db, timeout)
        # In WAL mode NORMAL keeps every commit through a killed process and stays whole through a power cut.
        self._db.execute(f"PRAGMA synchronous = {'NORMAL' if self.journal == 'wal' else 'FULL'}")
        self._db.execute("PRAGMA cache_size = -65536")
        if version < len(MIGRATIONS):
            migrate(self._db, MIGRATIONS)

    def put(self, context: Context, records: Iterable[tuple[bytes, Score]]) -> int:
        """Store a batch in one transaction, all of it or nothing; the number of keys that were not there before.

        A key that is already there keeps its first score. A score that must not be stored raises ScoringError.
        """
        return self.put_rows(context, [seal(context.digest, key, score) for key, score in records])

    def put_rows(self, context: Context, rows: Sequence[Row]) -> int:
        """Store sealed rows in one transaction; the number of keys that were not there before."""
        if not rows:
            return 0
        with self._writing():
            self._db.execute(
                "INSERT INTO contexts (digest, canonical) VALUES (?, ?) ON CONFLICT (digest) DO NOTHING",
                (context.digest, context.canonical),
            )
            number = self._context_number(context)
            return self._db.executemany(
                f"INSERT INTO records ({_COLUMNS}, context) VALUES (?, ?, ?, ?, ?, {number}) "
                "ON CONFLICT (key) DO NOTHING",
                rows,
            ).rowcount

    def get(self, keys: Iterable[bytes]) -> dict[bytes, Score]:
        """The stored scores among these keys; keys that are not stored are absent."""
        with self._sentences():
            digests = dict(self._db.execute("SELECT id, digest FROM contexts").fetchall())
        found = self._select(f"context, {_COLUMNS}", keys)
        return {row[0]: unseal(digests.get(number, b""), Row._make(row)) for number, *row in found}

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """The keys that are not stored, in the order given, each once."""
        wanted = list(dict.fromkeys(keys))
        stored = {key for (key,) in self._select("key", wanted)}
        return [key for key in wanted if key not in stored]

    def payloads(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """What is stored under these keys, still packed."""
        return dict(self._select("key, payload", keys))

    def count(self, context: Context | None = None) -> int:
        """How many scores are stored, in all or in one context."""
        where, values = ("", ()) if context is None else (f" WHERE {_WITHIN}", self._within(context))
        with self._sentences():
            return int(self._db.execute(f"SELECT count(*) FROM records{where}", values).fetchone()[0])

    def contexts(self) -> list[Context]:
        """The contexts in which scores were measured, oldest first."""
        with self._sentences():
            return [Context(text) for (text,) in self._db.execute("SELECT canonical FROM contexts ORDER BY id")]

    def scan(self, context: Context, query_digest: bytes = b"") -> Iterator[tuple[bytes, Score]]:
        """The scores of a context, or of one query in it, in key order: those of one query stand together."""
        for row in self.rows(context, query_digest):
            yield row.key, unseal(context.digest, row)

    def rows(self, context: Context, query_digest: bytes = b"") -> Iterator[Row]:
        """Like `scan`, as sealed rows. Reads page by page, so that a slow reader never holds back a writer."""
        query = f"SELECT {_COLUMNS} FROM records WHERE {_WITHIN} ORDER BY key LIMIT {_PAGE}"
        after, end, number = self._within(context, query_digest)
        while True:
            with self._sentences():
                page = self._db.execute(query, (after, end, number)).fetchall()
            yield from map(Row._make, page)
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def stats(self) -> dict[str, Any]:
        """What is stored: records, contexts with their queries and costs, file size, schema, journal."""
        contexts = [self._context_stats(context) for context in self.contexts()]
        with self._sentences():
            pages, page_size = (
                self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
            )
        records = sum(entry["records"] for entry in contexts)
        return {
            "path": str(self.path),
            "records": records,
            "bytes": pages * page_size,
            "bytes_per_record": pages * page_size / records if records else None,
            "schema": len(MIGRATIONS),
            "journal": self.journal,
            "contexts": contexts,
        }

    def _context_stats(self, context: Context) -> dict[str, Any]:
        query = f"substr(key, {CONTEXT_PART + 1}, {QUERY_PART})"
        with self._sentences():
            records, queries, tokens, seconds = self._db.execute(
                f"SELECT count(*), count(DISTINCT {query}), total(tokens), total(seconds) FROM records WHERE {_WITHIN}",
                self._within(context),
            ).fetchone()
        counts = {"records": records, "queries": queries, "tokens": int(tokens), "seconds": seconds}
        return {"digest": context.digest.hex(), **context.values, **counts}

    def check_pages(self) -> list[str]:
        """What is wrong with the file's pages or with how records hang on contexts; empty when it is whole."""
        with self._sentences():
            found = [text for (text,) in self._db.execute("PRAGMA integrity_check(20)")]
            strays = self._db.execute(
                "SELECT count(*) FROM records LEFT JOIN contexts ON contexts.id = context WHERE contexts.id IS NULL "
                f"OR length(key) != {KEY_SIZE} OR substr(key, 1, {CONTEXT_PART}) != substr(digest, 1, {CONTEXT_PART})"
            ).fetchone()[0]
        problems = [] if found == ["ok"] else [f"damaged page: {text}" for text in found]
        return problems + ([f"{strays} records have no context or a key that does not fit it"] if strays else [])

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> ScoreStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _select(self, columns: str, keys: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        source = iter(keys)
        while chunk := list(islice(source, _CHUNK)):
            marks = ",".join("?" * len(chunk))
            with self._sentences():
                rows = self._db.execute(f"SELECT {columns} FROM records WHERE key IN ({marks})", chunk).fetchall()
            yield from rows

    def _within(self, context: Context, query_digest: bytes = b"") -> tuple[bytes, bytes, int]:
        prefix = key_range(context.digest, query_digest)
        return prefix, prefix + b"\xff" * KEY_SIZE, self._context_number(context)

    def _context_number(self, context: Context) -> int:
        with self._sentences():
            found = self._db.execute("SELECT id FROM contexts WHERE digest = ?", (context.digest,)).fetchone()
        return int(found[0]) if found else -1

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._sentences():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(_explain(self.path, error)) from error


def _set_journal(db: sqlite3.Connection, timeout: float) -> str:
    """Switch to write-ahead logging, else to a rollback journal; the mode in force.

    SQLite does not wait by itself when another process makes the same switch, so the wait is here.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            mode: str = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if _code(error) == sqlite3.SQLITE_BUSY and time.monotonic() < deadline:
                time.sleep(0.01)
                continue
            if _code(error) not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_CANTOPEN):
                raise
            mode = ""
        return mode if mode == "wal" else str(db.execute("PRAGMA journal_mode = DELETE").fetchone()[0])


def _code(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


_UNUSABLE = (
    "it cannot be opened or written there; name a file in a folder you may write with --store FILE or LEVERPLUS_STORE"
)
_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full; nothing already stored is lost: free some space and run the command again",
    sqlite3.SQLITE_BUSY: "another process has held it for too long; wait until that one is done and run this again",
    sqlite3.SQLITE_NOTADB: "it is not a score store (not an SQLite file); name another file with --store",
    sqlite3.SQLITE_CORRUPT: (
        "the file is damaged or cut off; restore a copy, or move it away and merge what other stores hold with "
        "`lever store merge`"
    ),
    sqlite3.SQLITE_CANTOPEN: _UNUSABLE,
    sqlite3.SQLITE_READONLY: _UNUSABLE,
    sqlite3.SQLITE_PERM: _UNUSABLE,
    sqlite3.SQLITE_IOERR: (
        "the disk did not read or write as asked; check its free space and health, then run the command again"
    ),
}


def _explain(path: Path, error: Exception) -> str:
    reason = _UNUSABLE if isinstance(error, OSError) else _REASONS.get(_code(error))
    return f"score store {path}: {reason or 'run `lever store verify` on it'} ({error})"
