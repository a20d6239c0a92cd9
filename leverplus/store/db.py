"""The score store: one SQLite file, written by many processes of one machine, that keeps every committed score.

A batch is one transaction, so a killed process loses at most the batch it was writing. Write-ahead logging lets readers
and one writer work at once; it needs shared memory, so on network file systems the store falls back to a rollback
journal. Use one `ScoreStore` a process and thread: SQLite connections do not survive a fork.
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
    explain,
    is_writable,
    require_store,
    salvage_command,
    set_journal,
)
from leverplus.store.records import Row, seal, unseal
from leverplus.types import Score

_COLUMNS = "key, payload, tokens, seconds, checksum"
_WITHIN = "key > ? AND key < ? AND context = ?"
_CHUNK = 500
_PAGE = 2000


class ScoreStore:
    """Scores by key. Opening creates the file unless `must_exist`, and brings an older schema up to date.

    A store that may not be written (its mode, its folder's, a read-only mount) is opened to be read.
    """

    def __init__(self, path: str | Path, *, must_exist: bool = False, timeout: float = 60.0) -> None:
        self.path = Path(path).expanduser()
        with self._sentences():
            if must_exist and not self.path.exists():
                raise StoreError(f"there is no score store at {self.path}; name one with --store FILE")
            if must_exist and self.path.is_file() and not self.path.stat().st_size:
                raise StoreError(
                    f"{self.path} is empty (0 bytes), so it is no score store; delete it, or name another with --store"
                )
            self.read_only = self.path.is_file() and not is_writable(self.path)
            self._db = (connect_to_read if self.read_only else connect_to_write)(self.path, timeout)
        try:
            with self._sentences():
                self._open(timeout, must_exist=must_exist)
        except BaseException:
            self._db.close()
            raise

    def _open(self, timeout: float, *, must_exist: bool) -> None:
        version = require_store(self.path, self._db, must_exist=must_exist)
        self._db.execute("PRAGMA cache_size = -65536")
        if self.read_only:
            self.journal = str(self._db.execute("PRAGMA journal_mode").fetchone()[0])
            return
        self.journal = set_journal(self._db, timeout)
        # In WAL mode NORMAL keeps every commit through a killed process and stays whole through a power cut.
        self._db.execute(f"PRAGMA synchronous = {'NORMAL' if self.journal == 'wal' else 'FULL'}")
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
                # a text that was lost to damage is written back by the first that knows it
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
        """The contexts in which scores were measured, oldest first; one that does not fit its digest is refused."""
        query = "SELECT digest, CAST(canonical AS BLOB) FROM contexts ORDER BY id"  # a damaged text may be no UTF-8
        with self._sentences():
            found = self._db.execute(query).fetchall()
        return [self._proven(digest, text) for digest, text in found]

    def count_contexts(self) -> int:
        """How many contexts there are, whole or not; 0 where the file is too damaged to say."""
        try:
            return int(self._db.execute("SELECT count(*) FROM contexts").fetchone()[0])
        except sqlite3.Error:
            return 0

    def _proven(self, digest: bytes, text: bytes) -> Context:
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
            if page[-1][0] <= after:  # pages that are out of order would be read for ever
                raise StoreError(
                    f"score store {self.path}: the file is damaged; save what is whole with "
                    f"{salvage_command(self.path)}"
                )
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
            raise StoreError(explain(self.path, error)) from error
