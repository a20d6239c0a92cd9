"""Scores between machines: Parquet export, lossless merging of stores and exports, proof that a store is whole."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

from leverplus.errors import StoreError
from leverplus.store import tables
from leverplus.store.db import ScoreStore
from leverplus.store.keys import CONTEXT_PART, QUERY_PART, Context
from leverplus.store.opening import is_damage
from leverplus.store.records import Row, decode, is_whole, name_of, problem_of, unseal
from leverplus.store.salvage import Salvage
from leverplus.store.tables import TableReader, TableWriter
from leverplus.types import ItemId, Score

_BATCH = 10_000
_SHOWN = 20
_T = TypeVar("_T")


@dataclass(frozen=True)
class MergeReport:
    """What merging did. `conflicts` are keys measured twice with different results; the first one was kept.

    What a measurement cost (tokens, seconds) is no conflict. `largest_gap` is the largest difference of a
    log-probability (nats) between two measurements of one key: rounding between machines shows here. `damaged` counts
    records that were changed after they were written; they were left out, so merging into a new file mends a store.
    `salvaged` counts the stores that were read page by page because SQLite could not read all of them, `lost_texts` the
    contexts of which only the digest is known, `unchecked` the records of exports that carry no checksums.
    """

    read: int = 0
    added: int = 0
    conflicts: int = 0
    largest_gap: float = 0.0
    damaged: int = 0
    salvaged: int = 0
    lost_texts: int = 0
    unchecked: int = 0

    def __add__(self, other: MergeReport) -> MergeReport:
        return MergeReport(
            self.read + other.read,
            self.added + other.added,
            self.conflicts + other.conflicts,
            max(self.largest_gap, other.largest_gap),
            self.damaged + other.damaged,
            self.salvaged + other.salvaged,
            self.lost_texts + other.lost_texts,
            self.unchecked + other.unchecked,
        )


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
    """Take over every score of other stores or Parquet exports; doing it twice adds nothing."""
    report = MergeReport()
    for other in map(Path, others):
        if not other.is_file():
            raise StoreError(f"there is no file {other} to merge; name a score store or a Parquet export")
        with other.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
        report += import_parquet(into, other) if is_parquet else _merge_store(into, other)
    return report


def _merge_store(into: ScoreStore, path: Path) -> MergeReport:
    """Take over a store; one that is damaged anywhere is read page by page, so that nothing else of it is lost."""
    try:
        with ScoreStore(path, must_exist=True) as source:
            if not source.check_pages():
                report = MergeReport()
                for context in source.contexts():
                    for rows in _batches(source.rows(context)):
                        whole = [row for row in rows if is_whole(context.digest, row)]
                        report += MergeReport(read=len(rows) - len(whole), damaged=len(rows) - len(whole))
                        report += _absorb(into, context, whole)
                return report
    except StoreError as error:
        if isinstance(error.__cause__, sqlite3.Error) and not is_damage(error.__cause__):
            raise  # held by another process, no access, a disk that fails: nothing to salvage
        return _salvage(into, path, str(error))
    return _salvage(into, path, f"score store {path} is damaged and nothing in it is whole")


def _salvage(into: ScoreStore, path: Path, refusal: str) -> MergeReport:
    """Take over what is whole, page by page; `refusal` is what to say of a file without any record."""
    salvage = Salvage(path, into.contexts())
    report = MergeReport(salvaged=1)
    lost: set[bytes] = set()
    for found in _batches(salvage.rows()):
        by_context: dict[Context, list[Row]] = {}
        for context, row in found:
            by_context.setdefault(context, []).append(row)
        for context, rows in by_context.items():
            report += _absorb(into, context, rows)
            if context.is_lost:
                lost.add(context.digest)
    if not report.read:
        raise StoreError(refusal)
    return report + MergeReport(read=salvage.damaged, damaged=salvage.damaged, lost_texts=len(lost))


def _absorb(into: ScoreStore, context: Context, rows: Sequence[Row]) -> MergeReport:
    """Store one batch and compare what was already there."""
    added = into.put_rows(context, rows)
    if added == len(rows):
        return MergeReport(read=len(rows), added=added)
    conflicts, largest = 0, 0.0
    kept = into.payloads([row.key for row in rows])
    for row in rows:
        if kept[row.key] != row.payload:
            conflicts += 1
            largest = max(largest, _gap(decode(row), decode(row._replace(payload=kept[row.key]))))
    return MergeReport(len(rows), added, conflicts, largest)


def _gap(one: Score, other: Score) -> float:
    known = {reference.answer: reference.logprob for reference in one.references}
    pairs = [(known.get(reference.answer), reference.logprob) for reference in other.references]
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)


def export_parquet(store: ScoreStore, path: str | Path, contexts: Sequence[Context] | None = None) -> int:
    """Write the scores of some contexts (all by default) to one Parquet file; the number of scores.

    Row groups are written as they are read, so memory stays small. The file appears under its name when it is whole;
    what an interrupted export left beside it is written over by the next one.
    """
    chosen = list(store.contexts() if contexts is None else contexts)
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("ab") as file:
            _claim(file, path)
            try:
                written = _write_parquet(store, file, chosen)
                unfinished.replace(path)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise StoreError(f"cannot write {path} ({error}); name a file in a folder you may write") from error
    return written


def _claim(file: BinaryIO, path: Path) -> None:
    """Make an unfinished file this process's own, and empty it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreError(f"another process is writing {path}; wait until it is done, or name another file") from error
    file.truncate(0)


def _write_parquet(store: ScoreStore, file: BinaryIO, contexts: Sequence[Context]) -> int:
    writer = TableWriter(file, contexts)
    whole = False
    try:
        for context in contexts:
            for rows in _batches(_proven(store, context), tables.GROUP_ROWS):
                writer.write(context, rows)
        whole = True
    finally:
        writer.close(whole=whole)
    file.flush()
    os.fsync(file.fileno())
    return writer.written


def _proven(store: ScoreStore, context: Context) -> Iterator[Row]:
    for row in store.rows(context):
        unseal(context.digest, row)  # a row that was changed must not get into an export
        yield row


def import_parquet(into: ScoreStore, path: str | Path) -> MergeReport:
    """Take over every score of a Parquet export that is as it was written; the others are counted as damaged."""
    reader = TableReader(path)
    report = MergeReport()
    try:
        for batch in reader.batches():
            report += MergeReport(read=batch.damaged, damaged=batch.damaged)
            if batch.context is not None:
                found = _absorb(into, batch.context, batch.rows)
                report += found + MergeReport(unchecked=0 if reader.checked else found.read)
    finally:
        reader.close()
    return report


def verify(store: ScoreStore) -> VerifyReport:
    """Read everything back: pages, contexts, keys, checksums and values; after any crash a store is clean."""
    problems: list[str] = []
    count = records = 0
    for read, found in _findings(store):
        records += read
        count += len(found)
        problems += found[: max(0, _SHOWN - len(problems))]
    return VerifyReport(records, store.count_contexts(), count, tuple(problems))


def _findings(store: ScoreStore) -> Iterator[tuple[int, list[str]]]:
    """Records read and problems found, step by step; pages that cannot be read end the walk with a finding."""
    try:
        yield 0, store.check_pages()
        for context in store.contexts():
            empty = True
            for found in _record_problems(store, context):
                empty = False
                yield 1, found
            if empty:
                yield 0, [f"context {context.digest.hex()} has no records"]
    except StoreError as error:
        yield 0, [str(error)]


def _record_problems(store: ScoreStore, context: Context) -> Iterator[list[str]]:
    """The problems of each record of a context, record by record."""
    part, query = b"", ItemId("")
    for row in store.rows(context):
        try:
            score = unseal(context.digest, row)
        except StoreError as error:
            yield [str(error)]
            continue
        problem = problem_of(score)
        found = [f"record {name_of(row.key)}: {problem}"] if problem else []
        if row.key[CONTEXT_PART : CONTEXT_PART + QUERY_PART] == part and score.query != query:
            found.append(f"record {name_of(row.key)} of query '{score.query}' has the key of query '{query}'")
        part, query = row.key[CONTEXT_PART : CONTEXT_PART + QUERY_PART], score.query
        yield found


def _batches(source: Iterator[_T], size: int = _BATCH) -> Iterator[list[_T]]:
    while batch := list(islice(source, size)):
        yield batch
