"""Moves scores between machines: exports to Parquet, merges stores and exports, verifies that a store is whole."""

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
from leverplus.store.records import StoredRow, decode, is_intact, key_name, problem_of, unseal
from leverplus.store.salvage import Salvage
from leverplus.store.tables import ScoreTableReader, ScoreTableWriter
from leverplus.types import ItemId, Score

_ROWS_PER_BATCH = 10_000  # one transaction of a merge: large enough to be fast, small enough to stay in memory
_PROBLEMS_SHOWN = 20
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
    """Copy every score of other stores or Parquet exports into a store; doing it twice adds nothing."""
    report = MergeReport()
    for other in map(Path, others):
        if not other.is_file():
            raise StoreError(f"there is no file {other} to merge; name a score store or a Parquet export")
        with other.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"  # the first bytes of every Parquet file
        if is_parquet:
            report += import_parquet(into, other)
        else:
            report += _merge_store(into, other)
    return report


def _merge_store(into: ScoreStore, path: Path) -> MergeReport:
    """Copy a store; one that is damaged anywhere is read page by page, so that nothing else of it is lost."""
    try:
        with ScoreStore(path, must_exist=True) as source:
            if not source.check_pages():
                return _copy_whole_rows(into, source)
    except StoreError as error:
        if isinstance(error.__cause__, sqlite3.Error) and not is_damage(error.__cause__):
            raise  # held by another process, no access, a disk that fails: nothing to salvage
        return _salvage(into, path, str(error))
    return _salvage(into, path, f"score store {path} is damaged and nothing in it is whole")


def _copy_whole_rows(into: ScoreStore, source: ScoreStore) -> MergeReport:
    """Copy every row whose checksum fits; count the others as damaged."""
    report = MergeReport()
    for context in source.contexts():
        for rows in _batches(source.rows(context)):
            whole = [row for row in rows if is_intact(context.digest, row)]
            damaged = len(rows) - len(whole)
            report += MergeReport(read=damaged, damaged=damaged)
            report += _store_and_compare(into, context, whole)
    return report


def _salvage(into: ScoreStore, path: Path, refusal: str) -> MergeReport:
    """Copy what is whole, page by page; `refusal` is the error's sentence for a file without any record."""
    salvage = Salvage(path, into.contexts())
    report = MergeReport(salvaged=1)
    lost: set[bytes] = set()
    for found in _batches(salvage.rows()):
        by_context: dict[Context, list[StoredRow]] = {}
        for context, row in found:
            by_context.setdefault(context, []).append(row)
        for context, rows in by_context.items():
            report += _store_and_compare(into, context, rows)
            if context.is_lost:
                lost.add(context.digest)
    if not report.read:
        raise StoreError(refusal)
    return report + MergeReport(read=salvage.damaged, damaged=salvage.damaged, lost_texts=len(lost))


def _store_and_compare(into: ScoreStore, context: Context, rows: Sequence[StoredRow]) -> MergeReport:
    """Store one batch, and compare the rows whose key was already there with what was measured before."""
    added = into.put_rows(context, rows)
    if added == len(rows):
        return MergeReport(read=len(rows), added=added)
    conflicts, largest = 0, 0.0
    kept = into.payloads([row.key for row in rows])
    for row in rows:
        if kept[row.key] != row.payload:
            conflicts += 1
            earlier = decode(row._replace(payload=kept[row.key]))
            largest = max(largest, _largest_logprob_difference(decode(row), earlier))
    return MergeReport(len(rows), added, conflicts, largest)


def _largest_logprob_difference(one: Score, other: Score) -> float:
    """In nats, over the reference answers for which both scores have a log-probability; 0 where there is none."""
    known = {reference.answer: reference.logprob for reference in one.references}
    largest = 0.0
    for reference in other.references:
        logprob = known.get(reference.answer)
        if logprob is not None and reference.logprob is not None:
            largest = max(largest, abs(logprob - reference.logprob))
    return largest


def export_parquet(store: ScoreStore, path: str | Path, contexts: Sequence[Context] | None = None) -> int:
    """Write the scores of some contexts (all by default) to one Parquet file; return the number of scores.

    Row groups are written as they are read, so memory stays small. The file appears under its name when it is whole;
    what an interrupted export left beside it is written over by the next one.
    """
    chosen = list(store.contexts() if contexts is None else contexts)
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("ab") as file:
            _lock_and_empty(file, path)
            try:
                written = _write_parquet(store, file, chosen)
                unfinished.replace(path)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise StoreError(f"cannot write {path} ({error}); name a file in a folder you may write") from error
    return written


def _lock_and_empty(file: BinaryIO, path: Path) -> None:
    """Lock the unfinished file, so that no other export writes it, then remove what an interrupted one left in it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreError(f"another process is writing {path}; wait until it is done, or name another file") from error
    file.truncate(0)


def _write_parquet(store: ScoreStore, file: BinaryIO, contexts: Sequence[Context]) -> int:
    writer = ScoreTableWriter(file, contexts)
    whole = False
    try:
        for context in contexts:
            for rows in _batches(_checked_rows(store, context), tables.GROUP_ROWS):
                writer.write(context, rows)
        whole = True
    finally:
        writer.close(whole=whole)
    file.flush()
    os.fsync(file.fileno())  # the rename that follows must not reach the disk before the bytes do
    return writer.written


def _checked_rows(store: ScoreStore, context: Context) -> Iterator[StoredRow]:
    for row in store.rows(context):
        unseal(context.digest, row)  # a row that was changed must not get into an export
        yield row


def import_parquet(into: ScoreStore, path: str | Path) -> MergeReport:
    """Copy every score of a Parquet export that is as it was written; the others are counted as damaged."""
    reader = ScoreTableReader(path)
    report = MergeReport()
    try:
        for batch in reader.batches():
            report += MergeReport(read=batch.damaged, damaged=batch.damaged)
            if batch.context is not None:
                found = _store_and_compare(into, batch.context, batch.rows)
                report += found
                if not reader.checked:
                    report += MergeReport(unchecked=found.read)
    finally:
        reader.close()
    return report


def verify(store: ScoreStore) -> VerifyReport:
    """Read everything back: pages, contexts, keys, checksums and values; after any crash a store is clean."""
    problems: list[str] = []
    count = records = 0
    for read, found in _problems_by_step(store):
        records += read
        count += len(found)
        problems += found[: max(0, _PROBLEMS_SHOWN - len(problems))]
    return VerifyReport(records, store.count_contexts(), count, tuple(problems))


def _problems_by_step(store: ScoreStore) -> Iterator[tuple[int, list[str]]]:
    """How many records each step read and the problems it found; a page that cannot be read is the last problem."""
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
    previous_part, previous_query = b"", ItemId("")
    for row in store.rows(context):
        try:
            score = unseal(context.digest, row)
        except StoreError as error:
            yield [str(error)]
            continue
        problem = problem_of(score)
        found = [f"record {key_name(row.key)}: {problem}"] if problem else []
        # Rows come in key order, so the records of one query follow each other and share this part of the key.
        part = row.key[CONTEXT_PART : CONTEXT_PART + QUERY_PART]
        if part == previous_part and score.query != previous_query:
            found.append(f"record {key_name(row.key)} of query '{score.query}' has the key of query '{previous_query}'")
        previous_part, previous_query = part, score.query
        yield found


def _batches(source: Iterator[_T], size: int = _ROWS_PER_BATCH) -> Iterator[list[_T]]:
    """Lists of at most `size` elements, until the source is empty."""
    while batch := list(islice(source, size)):
        yield batch
