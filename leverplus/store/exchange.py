"""Scores between machines: Parquet export, lossless merging of stores and exports, proof that a store is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeVar

from leverplus.errors import StoreError
from leverplus.store.db import ScoreStore
from leverplus.store.keys import CONTEXT_PART, QUERY_PART, Context
from leverplus.store.records import Row, decode, problem_of, seal, unseal
from leverplus.types import ItemId, Reference, Score

_BATCH = 10_000
_SHOWN = 20
_CONTEXTS = b"leverplus.contexts"
_T = TypeVar("_T")


@dataclass(frozen=True)
class MergeReport:
    """What merging did. `conflicts` are keys measured twice with different results; the first one was kept.

    What a measurement cost (tokens, seconds) is no conflict. `largest_gap` is the largest difference of a
    log-probability (nats) between two measurements of one key: rounding between machines shows here. `damaged` counts
    records that were changed after they were written; they were left out, so merging into a new file mends a store.
    """

    read: int = 0
    added: int = 0
    conflicts: int = 0
    largest_gap: float = 0.0
    damaged: int = 0

    def __add__(self, other: MergeReport) -> MergeReport:
        return MergeReport(
            self.read + other.read,
            self.added + other.added,
            self.conflicts + other.conflicts,
            max(self.largest_gap, other.largest_gap),
            self.damaged + other.damaged,
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
    report = MergeReport()
    with ScoreStore(path, must_exist=True) as source:
        for context in source.contexts():
            for rows in _batches(source.rows(context)):
                whole = [row for row in rows if _is_whole(context, row)]
                report += MergeReport(read=len(rows) - len(whole), damaged=len(rows) - len(whole))
                report += _absorb(into, context, whole)
    return report


def _is_whole(context: Context, row: Row) -> bool:
    try:
        unseal(context.digest, row)
    except StoreError:
        return False
    return True


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

    Row groups are written as they are read, so memory stays small. The file appears under its name when it is whole.
    """
    chosen = list(store.contexts() if contexts is None else contexts)
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            written = _write_parquet(store, unfinished, chosen)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {path} ({error}); name a file in a folder you may write") from error
    return written


def _write_parquet(store: ScoreStore, path: Path, contexts: Sequence[Context]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = {context.digest.hex(): context.canonical for context in contexts}
    schema = _schema().with_metadata({_CONTEXTS: json.dumps(names).encode()})
    written = 0
    with path.open("wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for context in contexts:
                for batch in _batches(store.scan(context)):
                    writer.write_table(pa.Table.from_pylist([_as_dict(context, *pair) for pair in batch], schema))
                    written += len(batch)
        file.flush()
        os.fsync(file.fileno())
    return written


def import_parquet(into: ScoreStore, path: str | Path) -> MergeReport:
    """Take over every score of a Parquet export, each checked as if it had just been measured."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    report = MergeReport()
    try:
        with pq.ParquetFile(path) as file:
            contexts = _contexts_of(path, file.schema_arrow)
            for table in file.iter_batches(batch_size=_BATCH):
                for digest, entries in groupby(table.to_pylist(), key=lambda entry: str(entry["context"])):
                    context = contexts[digest]
                    rows = [seal(context.digest, entry["key"], _from_dict(entry)) for entry in entries]
                    report += _absorb(into, context, rows)
    except (pa.ArrowInvalid, OSError, KeyError) as error:
        raise StoreError(
            f"cannot read {path} as an export ({error}); make it again with `lever store export`"
        ) from error
    return report


def _contexts_of(path: str | Path, schema: Any) -> dict[str, Context]:
    metadata = schema.metadata or {}
    if _CONTEXTS not in metadata:
        raise StoreError(f"{path} is a Parquet file but not an export of scores; make one with `lever store export`")
    contexts = {digest: Context(text) for digest, text in json.loads(metadata[_CONTEXTS]).items()}
    for digest, context in contexts.items():
        if context.digest.hex() != digest:
            raise StoreError(f"{path} names context {digest}, which does not fit its text; export it again")
    return contexts


def verify(store: ScoreStore) -> VerifyReport:
    """Read everything back: pages, contexts, keys, checksums and values; after any crash a store is clean."""
    problems: list[str] = []
    count = records = 0
    for read, found in _findings(store):
        records += read
        count += len(found)
        problems += found[: max(0, _SHOWN - len(problems))]
    return VerifyReport(records, len(store.contexts()), count, tuple(problems))


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
        found = [f"record {row.key.hex()}: {problem}"] if problem else []
        if row.key[CONTEXT_PART : CONTEXT_PART + QUERY_PART] == part and score.query != query:
            found.append(f"record {row.key.hex()} of query '{score.query}' has the key of query '{query}'")
        part, query = row.key[CONTEXT_PART : CONTEXT_PART + QUERY_PART], score.query
        yield found


def _schema() -> Any:
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    columns = {
        "key": pa.binary(20),
        "context": text,
        "query": text,
        "demos": pa.list_(text),
        "raw": text,
        "answer": text,
    }
    columns |= {"accuracy": number, "correct": pa.bool_(), "token_f1": number, "edit_similarity": number}
    columns |= {"reference_answers": pa.list_(text), "reference_counts": pa.list_(pa.int32())}
    columns |= {"reference_logprobs": pa.list_(number), "tokens": pa.int64(), "seconds": number}
    return pa.schema([pa.field(name, kind, nullable=name == "reference_logprobs") for name, kind in columns.items()])


def _as_dict(context: Context, key: bytes, score: Score) -> dict[str, Any]:
    logprobs = [reference.logprob for reference in score.references]
    plain = ("query", "raw", "answer", "accuracy", "correct", "token_f1", "edit_similarity", "tokens", "seconds")
    return {
        "key": key,
        "context": context.digest.hex(),
        "demos": list(score.demos),
        "reference_answers": [reference.answer for reference in score.references],
        "reference_counts": [reference.count for reference in score.references],
        "reference_logprobs": None if None in logprobs else logprobs,
        **{name: getattr(score, name) for name in plain},
    }


def _from_dict(entry: dict[str, Any]) -> Score:
    answers = entry["reference_answers"]
    logprobs = entry["reference_logprobs"] or [None] * len(answers)
    plain = ("query", "raw", "answer", "accuracy", "correct", "token_f1", "edit_similarity", "tokens", "seconds")
    return Score(
        demos=tuple(entry["demos"]),
        references=tuple(map(Reference, answers, entry["reference_counts"], logprobs)),
        **{name: entry[name] for name in plain},
    )


def _batches(source: Iterator[_T]) -> Iterator[list[_T]]:
    while batch := list(islice(source, _BATCH)):
        yield batch
