"""The score store: one SQLite file, written by many processes of one machine, that keeps every committed score.

A batch is one transaction, so a killed process loses at most the batch it was writing. Write-ahead logging lets readers
and one writer work at once; it needs shared memory, so on network file systems the store falls back to a rollback
journal. Use one `ScoreStore` per process and thread: SQLite connections do not survive a fork.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from leverplus.errors import StoreError
from leverplus.store.keys import CONTEXT_PART, KEY_SIZE, LOST, QUERY_PART, Context, key_range
from leverplus.store.migrations import MIGRATIONS, migrate
from leverplus.store.opening import (
    connect_to_read,
    connect_to_write,
    explain_failure,
    is_writable,
    require_store,
    salvage_command,
    set_journal,
)
from leverplus.store.records import StoredRow, seal, unseal
from leverplus.types import Score

_COLUMNS = "key, payload, tokens, seconds, checksum"
_IN_KEY_BOUNDS = "key > ? AND key < ? AND context = ?"
# SQLite before 3.32 takes at most 999 parameters in one statement.
_KEYS_PER_QUERY = 500
# Rows of one read transaction: `rows` lets go of the file between reads, so that a checkpoint of the log can go on.
_ROWS_PER_READ = 2000
# Pages that SQLite keeps in memory per connection. A negative number is in KiB, so this is 64 MiB.
_CACHE_SIZE = -65536


class ScoreStore:
    """Scores by key. Opening creates the file unless `must_exist`, and brings an older schema up to date.

    A store that may not be written (its mode, its folder's, a read-only mount) is opened to be read.
    """

    def __init__(self, path: str | Path, *, must_exist: bool = False, timeout: float = 60.0) -> None:
        self.path = Path(path).expanduser()
        with self._explaining_errors():
            if must_exist and not self.path.exists():
                raise StoreError(f"there is no score store at {self.path}; name one with --store FILE")
            if must_exist and self.path.is_file() and not self.path.stat().st_size:
                raise StoreError(
                    f"{self.path} is empty (0 bytes), so it is no score store; delete it, or name another with --store"
                )
            self.read_only = self.path.is_file() and not is_writable(self.path)
            connect = connect_to_read if self.read_only else connect_to_write
            self._db = connect(self.path, timeout)
        try:
            with self._explaining_errors():
                self._prepare(timeout, must_exist=must_exist)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, timeout: float, *, must_exist: bool) -> None:
        """Check that the file is a store, then set the journal and bring the schema up to date."""
        version = require_store(self.path, self._db, must_exist=must_exist)
        self._db.execute(f"PRAGMA cache_size = {_CACHE_SIZE}")
        if self.read_only:
            self.journal = str(self._db.execute("PRAGMA journal_mode").fetchone()[0])
            return
        self.journal = set_journal(self._db, timeout)
        # In WAL mode NORMAL keeps every commit through a killed process and stays whole through a power cut.
        # A rollback journal needs FULL for that.
        level = "NORMAL" if self.journal == "wal" else "FULL"
        self._db.execute(f"PRAGMA synchronous = {level}")
        if version < len(MIGRATIONS):
            migrate(self._db, MIGRATIONS)

    def put(self, context: Context, records: Iterable[tuple[bytes, Score]]) -> int:
        """Store a batch in one transaction, all of it or nothing; return how many keys were new.

        A key that is already there keeps its first score. A score that must not be stored raises ScoringError.
        """
        return self.put_rows(context, [seal(context.digest, key, score) for key, score in records])

    def put_rows(self, context: Context, rows: Sequence[StoredRow]) -> int:
        """Store sealed rows in one transaction; return how many keys were new."""
        if not rows:
            return 0
        with self._transaction():
            self._db.execute(
                # The context is written once. Where its text was lost to damage, the first process that measures in
                # this context again writes the text back.
                "INSERT INTO contexts (digest, canonical) VALUES (?, ?) ON CONFLICT (digest) DO UPDATE "
                f"SET canonical = excluded.canonical WHERE canonical LIKE '{LOST}%'",
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
        with self._explaining_errors():
            digests = dict(self._db.execute("SELECT id, digest FROM contexts").fetchall())
        scores = {}
        for number, *values in self._select(f"context, {_COLUMNS}", keys):
            row = StoredRow._make(values)
            # A record whose context is gone gets an empty digest, which no checksum fits: `unseal` refuses it.
            scores[row.key] = unseal(digests.get(number, b""), row)
        return scores

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """The keys that are not stored, in the order given, each once."""
        wanted = list(dict.fromkeys(keys))
        stored = {key for (key,) in self._select("key", wanted)}
        return [key for key in wanted if key not in stored]

    def payloads(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The packed scores (`records.encode`) that are stored under these keys."""
        return dict(self._select("key, payload", keys))

    def count(self, context: Context | None = None) -> int:
        """How many scores are stored, in all or in one context."""
        query = "SELECT count(*) FROM records"
        values: tuple[Any, ...] = ()
        if context is not None:
            query += f" WHERE {_IN_KEY_BOUNDS}"
            values = self._key_bounds(context)
        with self._explaining_errors():
            return int(self._db.execute(query, values).fetchone()[0])

    def contexts(self) -> list[Context]:
        """The contexts in which scores were measured, oldest first; one that does not fit its digest is refused."""
        # Read as bytes: sqlite3 cannot decode a text that damage has left without valid UTF-8.
        query = "SELECT digest, CAST(canonical AS BLOB) FROM contexts ORDER BY id"
        with self._explaining_errors():
            found = self._db.execute(query).fetchall()
        return [self._checked_context(digest, text) for digest, text in found]

    def count_contexts(self) -> int:
        """How many contexts there are, whole or not; 0 where the file is too damaged to say."""
        try:
            return int(self._db.execute("SELECT count(*) FROM contexts").fetchone()[0])
        except sqlite3.Error:
            return 0

    def _checked_context(self, digest: bytes, text: bytes) -> Context:
        context = Context.proven(text, digest)
        if context is None:
            raise StoreError(
                f"score store {self.path}: a context was changed after it was written; save every score with "
                f"{salvage_command(self.path)}"
            )
        return context

    def scan(self, context: Context, query_digest: bytes = b"") -> Iterator[tuple[bytes, Score]]:
        """The scores of a context, or of one query in it, in key order: those of one query stand together."""
        for row in self.rows(context, query_digest):
            yield row.key, unseal(context.digest, row)

    def rows(self, context: Context, query_digest: bytes = b"") -> Iterator[StoredRow]:
        """Like `scan`, as sealed rows. Reads page by page, so that a slow reader never holds back a writer."""
        query = f"SELECT {_COLUMNS} FROM records WHERE {_IN_KEY_BOUNDS} ORDER BY key LIMIT {_ROWS_PER_READ}"
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
            pages = self._db.execute("PRAGMA page_count").fetchone()[0]
            page_size = self._db.execute("PRAGMA page_size").fetchone()[0]
        size = pages * page_size
        records = sum(entry["records"] for entry in contexts)
        return {
            "path": str(self.path),
            "records": records,
            "bytes": size,
            "bytes_per_record": size / records if records else None,
            "schema": len(MIGRATIONS),
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
        counts = {"records": records, "queries": queries, "tokens": int(tokens), "seconds": seconds}
        return {"digest": context.digest.hex(), **context.values, **counts}

    def check_pages(self) -> list[str]:
        """Problems of the file's pages and records without a fitting context, as sentences; empty when it is whole."""
        with self._explaining_errors():
            found = [text for (text,) in self._db.execute("PRAGMA integrity_check(20)")]  # at most 20 problems
            strays = self._db.execute(
                "SELECT count(*) FROM records LEFT JOIN contexts ON contexts.id = context WHERE contexts.id IS NULL "
                f"OR length(key) != {KEY_SIZE} OR substr(key, 1, {CONTEXT_PART}) != substr(digest, 1, {CONTEXT_PART})"
            ).fetchone()[0]
        problems = []
        if found != ["ok"]:
            problems += [f"damaged page: {text}" for text in found]
        if strays:
            problems.append(f"{strays} records have no context or a key that does not fit it")
        return problems

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> ScoreStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _select(self, columns: str, keys: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        """These columns of the records under these keys, some hundred keys per statement."""
        source = iter(keys)
        while chunk := list(islice(source, _KEYS_PER_QUERY)):
            marks = ",".join("?" * len(chunk))
            with self._explaining_errors():
                rows = self._db.execute(f"SELECT {columns} FROM records WHERE key IN ({marks})", chunk).fetchall()
            yield from rows

    def _key_bounds(self, context: Context, query_digest: bytes = b"") -> tuple[bytes, bytes, int]:
        """What `_IN_KEY_BOUNDS` asks for: the ends of a range of keys (neither is a key itself) and the context's id.

        The id is needed because a key holds only 4 bytes of the context's digest: two contexts may share them.
        """
        prefix = key_range(context.digest, query_digest)
        return prefix, prefix + b"\xff" * KEY_SIZE, self._context_number(context)

    def _context_number(self, context: Context) -> int:
        """The context's id in the table of contexts; -1, which no record has, where it is not stored."""
        with self._explaining_errors():
            found = self._db.execute("SELECT id FROM contexts WHERE digest = ?", (context.digest,)).fetchone()
        return int(found[0]) if found else -1

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
                if self._db.in_transaction:  # on some errors (a full disk) SQLite has rolled back by itself
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        """Raise what SQLite or the file system reports as a StoreError that says what to type next."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StoreError(explain_failure(self.path, error)) from error
