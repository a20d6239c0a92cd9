"""Moves scores between machines: exports to Parquet, merges stores and exports, verifies that a store is whole."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from leverplus.errors import DataError, StoreError
from leverplus.scores.keys import KEY_SIZE, Context
from leverplus.scores.parquet import ProvenReader, write_proven
from leverplus.scores.records import (
    StoredRow,
    decode,
    is_intact,
    key_name,
    problem_of,
    unseal,
)
from leverplus.scores.store import (
    COLUMNS,
    ScoreStore,
    is_damage,
    proven_context,
)

GROUP_ROWS = 2_000
"""Rows per row group of an export: as many as one damaged page costs at most."""
_ROWS_PER_BATCH = 10_000  # one transaction of a merge: large enough to be fast, small enough to stay in memory
_PROBLEMS_SHOWN = 20
_CARD = b"leverplus.contexts"  # key of the contexts' texts in the metadata of an export
_FIRST_PAGE = 4096  # bytes: SQLite's page size unless a program asks for another
_VALID_FOR = slice(92, 96)
"""Where the header repeats its change counter. Where the two differ, SQLite takes the number of pages from the file."""

_T = TypeVar("_T")


@dataclass
class MergeReport:
    """What merging did. `conflicts` are keys measured twice with different results; the first one was kept.

    What a measurement cost (tokens, seconds) is no conflict. `damaged` counts records that were changed after they were
    written; they were left out, so merging into a new file mends a store. `salvaged` counts the stores that were read
    page by page because SQLite could not read all of them.
    """

    read: int = 0
    added: int = 0
    conflicts: int = 0
    damaged: int = 0
    salvaged: int = 0

    def leave_out(self, count: int) -> None:
        """Count records that were damaged."""
        self.read += count
        self.damaged += count


@dataclass(frozen=True)
class VerifyReport:
    """What was checked, how many problems there are, and the first twenty or so as sentences."""

    records: int
    contexts: int
    problem_count: int
    problems: tuple[str, ...]

    @property
    def clean(self) -> bool:
        return self.problem_count == 0


def merge(into: ScoreStore, *others: str | Path) -> MergeReport:
    """Copy every score of other stores or Parquet exports into a store; doing it twice adds nothing."""
    report = MergeReport()
    for other in map(Path, others):
        if not other.is_file():
            raise StoreError(
                f"there is no file {other} to merge; name a score store or a Parquet export"
            )
        with other.open("rb") as file:
            # the first bytes of every Parquet file
            is_parquet = file.read(4) == b"PAR1"
        if is_parquet:
            _import_parquet(into, other, report)
        else:
            _merge_store(into, other, report)
    return report


def _merge_store(into: ScoreStore, path: Path, report: MergeReport) -> None:
    """Copy a store; one that is damaged anywhere is read page by page, so that nothing else of it is lost."""
    try:
        with ScoreStore(path, must_exist=True) as source:
            if not source.check_pages():
                for context in source.contexts():
                    for rows in _batches(source.rows(context)):
                        _store_whole(into, context, rows, report)
                return
        refusal = StoreError(f"score store {path}: it is damaged, and nothing is whole")
    except StoreError as error:
        if error.__cause__ is not None and not is_damage(error.__cause__):
            raise  # held by another process, no access, a disk that fails: nothing to salvage
        refusal = error
    before = report.read
    report.salvaged += 1
    try:
        _salvage(into, path, report)
    except sqlite3.Error as error:  # too little is left to be opened at all
        raise refusal from error
    if report.read == before:
        raise refusal


def _store_whole(
    into: ScoreStore, context: Context, rows: Sequence[StoredRow], report: MergeReport
) -> None:
    """Store the rows whose checksum fits, and compare those that were there with what was measured before."""
    whole = [row for row in rows if is_intact(context.digest, row)]
    report.leave_out(len(rows) - len(whole))
    report.read += len(whole)
    added = into.put_rows(context, whole)
    report.added += added
    if added < len(whole):
        kept = into.payloads([row.key for row in whole])
        for row in whole:
            report.conflicts += kept[row.key] != row.payload


# -- what a damaged store still holds


def _salvage(into: ScoreStore, path: Path, report: MergeReport) -> None:
    """Copy what is whole, page by page.

    SQLite finds a row by way of the pages above it and stops at the first that makes no sense. So a copy of the file
    gets the first page of a new store (header and schema are the same in every store), and then each page in turn is
    declared the first page of the table: damage to one page costs its own rows only. A record is proven by a checksum
    over the digest of its context, its key and its bytes; a context by its digest.
    """
    whole: set[bytes] = set()
    broken: set[bytes] = set()
    with _open_copy(path) as copy:
        contexts = set(into.contexts())
        for source in ("NOT INDEXED", "INDEXED BY sqlite_autoindex_contexts_1"):
            query = f"SELECT digest, CAST(canonical AS BLOB) FROM contexts {source}"
            for digest, text in _read(copy, query):
                if context := proven_context(digest, text):
                    contexts.add(context)
        for rows in _batches(_rows_of_each_page(copy)):
            found: dict[Context, dict[bytes, StoredRow]] = defaultdict(dict)
            for row in rows:
                if row.key in whole:
                    continue  # a record may stand on two pages
                for context in contexts:
                    if is_intact(context.digest, row):
                        found[context][row.key] = row
                        whole.add(row.key)
                if row.key not in whole:
                    broken.add(row.key)
            for context, own in found.items():
                _store_whole(into, context, list(own.values()), report)
    report.leave_out(len(broken - whole))


@contextmanager
def _open_copy(path: Path) -> Iterator[sqlite3.Connection]:
    """A copy of a store and its log, with a first page that is certainly whole; the store itself is never changed."""
    with tempfile.TemporaryDirectory(prefix="leverplus-salvage-") as folder:
        new = Path(folder) / "new.db"
        ScoreStore(new).close()
        first = bytearray(new.read_bytes()[:_FIRST_PAGE])
        first[_VALID_FOR] = bytes(4)
        copy = Path(shutil.copyfile(path, Path(folder) / "copy.db"))
        with copy.open("r+b") as file:
            file.write(first)
        log = path.with_name(path.name + "-wal")
        if log.is_file():
            shutil.copyfile(log, Path(folder) / "copy.db-wal")
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            # moves the log's pages into the file
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA journal_mode = OFF")
            yield connection


def _rows_of_each_page(copy: sqlite3.Connection) -> Iterator[StoredRow]:
    """What can be read of the records when each page in turn is declared their first; rows may come several times."""
    pages = copy.execute("PRAGMA page_count").fetchone()[0]
    for page in range(2, pages + 1):
        copy.execute("PRAGMA writable_schema = ON")
        copy.execute(
            "UPDATE sqlite_master SET rootpage = ? WHERE name = 'records'", (page,)
        )
        copy.execute("PRAGMA writable_schema = RESET")  # reads the schema again
        # from both ends: a page below this one may be the damaged one
        for order in ("ASC", "DESC"):
            query = f"SELECT {COLUMNS} FROM records ORDER BY key {order}"
            for values in _read(copy, query):
                row = StoredRow._make(values)
                if isinstance(row.key, bytes) and len(row.key) == KEY_SIZE:
                    yield row


def _read(copy: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a query up to the first damaged page."""
    try:
        yield from copy.execute(query)
    except sqlite3.Error:
        return


# -- Parquet


def _columns() -> dict[str, Any]:
    """The columns of an export: what can be read at a glance, then the record as a store holds it."""
    import pyarrow as pa

    return {
        "query": pa.string(),
        "demos": pa.list_(pa.string()),
        "raw": pa.string(),
        "answer": pa.string(),
        "accuracy": pa.float64(),
        "gt_prob": pa.float64(),
        "context": pa.string(),
        "key": pa.binary(KEY_SIZE),
        "payload": pa.binary(),
        "tokens": pa.int64(),
        "seconds": pa.float64(),
        "record_checksum": pa.int64(),
    }


def export_parquet(
    store: ScoreStore, path: str | Path, contexts: Sequence[Context] | None = None
) -> int:
    """Write the scores of some contexts (all by default) to one Parquet file; return the number of scores.

    Row groups are written as they are read, so memory stays small. The file appears under its name when it is whole.
    """
    chosen = store.contexts() if contexts is None else contexts
    card = {}
    for context in chosen:
        card[context.digest.hex()] = context.canonical

    def groups() -> Iterator[list[Any]]:
        for context in chosen:
            for batch in _batches(store.rows(context), GROUP_ROWS):
                yield [_export_row(context, row) for row in batch]

    return write_proven(Path(path), _columns(), groups(), _CARD, lambda _: card)


def _export_row(context: Context, row: StoredRow) -> tuple[Any, ...]:
    # a changed row is refused: it must not get into an export
    score = unseal(context.digest, row)
    gt_prob = score.gt_prob if score.weighed else None
    readable = (list(score.demos), score.raw, score.answer, score.accuracy, gt_prob)
    return (score.query, *readable, context.digest.hex(), *row)


def _import_parquet(into: ScoreStore, path: Path, report: MergeReport) -> None:
    """Copy every score of a Parquet export that is as it was written; the others are left out."""
    again = "make it again with `lever store export`"
    reader = ProvenReader(path, _CARD, kind="export", again=again)
    if not (reader.has_card and reader.has_checksums):
        raise DataError(
            f"{path} is a Parquet file but not an export of scores; {again}"
        )
    contexts = {name: Context(text) for name, text in reader.card.items()}
    before = report.read
    for group in range(reader.groups):
        try:
            batch = reader.read(group)
        except DataError:
            continue  # counted below
        found: dict[Context, list[StoredRow]] = defaultdict(list)
        for entry in batch.to_pylist():
            *_, context, key, payload, tokens, seconds, checksum = entry.values()
            row = StoredRow(key, payload, tokens, seconds, checksum)
            found[contexts[context]].append(row)
        for own, rows in found.items():
            _store_whole(into, own, rows, report)
    report.leave_out(reader.count - (report.read - before))


# -- is a store whole?


def verify(store: ScoreStore) -> VerifyReport:
    """Read everything back: pages, contexts, keys, checksums and values; after any crash a store is clean."""
    problems: list[str] = []
    records = contexts = 0
    try:
        problems += store.check_pages()
        for context in store.contexts():
            contexts += 1
            for row in store.rows(context):
                records += 1
                if problem := _problem_of_row(context, row):
                    problems.append(f"record {key_name(row.key)} {problem}")
    except StoreError as error:
        problems.append(str(error))
    shown = tuple(problems[:_PROBLEMS_SHOWN])
    return VerifyReport(records, contexts, len(problems), shown)


def _problem_of_row(context: Context, row: StoredRow) -> str | None:
    if not is_intact(context.digest, row):
        return "was changed after it was written"
    return problem_of(decode(row))


def _batches(source: Iterator[_T], size: int = _ROWS_PER_BATCH) -> Iterator[list[_T]]:
    """Lists of at most `size` elements, until the source is empty."""
    while batch := list(islice(source, size)):
        yield batch
