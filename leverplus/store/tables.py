"""Scores as a Parquet table: one row per score with its checksum from the store, contexts in the file's metadata.

A row is believed only when it gives the bytes that its checksum was made of, a context when it gives its digest, and
the list of contexts when it gives its own checksum; what does not is left out and counted, or refused.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverplus.errors import ScoringError, StoreError
from leverplus.store.keys import KEY_SIZE, Context
from leverplus.store.records import StoredRow, decode, seal
from leverplus.types import Reference, Score

GROUP_ROWS = 2_000
"""Rows per row group: as many as one damaged page of a table costs at most."""
# Keys of the file's metadata.
_CONTEXTS_KEY = b"leverplus.contexts"
_SEAL_KEY = b"leverplus.seal"
_EXPORT_AGAIN = "make it again with `lever store export`"
# Fields of a Score that are one column each, under the same name.
_SCALAR_FIELDS = ("query", "raw", "answer", "accuracy", "correct", "token_f1", "edit_similarity", "tokens", "seconds")


@dataclass(frozen=True)
class TableBatch:
    """Rows of one context that are whole, and how many rows beside them are not."""

    context: Context | None
    rows: tuple[StoredRow, ...] = ()
    damaged: int = 0


class ScoreTableWriter:
    """Writes scores to a Parquet file, group by group; what proves the file whole is written at the end."""

    def __init__(self, file: Any, contexts: Sequence[Context]) -> None:
        import pyarrow.parquet as pq

        texts = {context.digest.hex(): context.canonical for context in contexts}
        self._contexts = json.dumps(texts).encode()
        self._schema = _schema().with_metadata({_CONTEXTS_KEY: self._contexts})
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd", write_page_checksum=True)
        self.written = 0

    def write(self, context: Context, rows: Sequence[StoredRow]) -> None:
        """Rows of one context that were read from a store and proven there."""
        import pyarrow as pa

        entries = [_as_dict(context, row) for row in rows]
        self._writer.write_table(pa.Table.from_pylist(entries, self._schema))
        self.written += len(rows)

    def close(self, *, whole: bool) -> None:
        """End the file; without the seal, which only a whole one gets, `ScoreTableReader` refuses it."""
        if whole:
            self._writer.add_key_value_metadata({_SEAL_KEY: _seal(self._contexts, self.written)})
        self._writer.close()


class ScoreTableReader:
    """Reads a Parquet file of scores; `checked` says whether its rows carry checksums (those before 0.2 do not)."""

    def __init__(self, path: str | Path) -> None:
        import pyarrow.parquet as pq

        self.path = path
        with _explaining_errors(path):
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            self._columns = list(self._file.schema_arrow.names)
            self._metadata = dict(self._file.metadata.metadata or {})
        self.checked, self.count = self._form()
        self.contexts = self._read_contexts()

    def _form(self) -> tuple[bool, int]:
        """Whether rows carry checksums, and how many rows were written."""
        if _CONTEXTS_KEY not in self._metadata:
            raise StoreError(f"{self.path} is a Parquet file but not an export of scores; {_EXPORT_AGAIN}")
        expected = list(_schema().names)
        if _SEAL_KEY not in self._metadata and self._columns == expected[:-1]:  # as written before 0.2: no checksums
            return False, int(self._file.metadata.num_rows)
        seal_found = self._metadata.get(_SEAL_KEY, b"")
        _, _, count = seal_found.partition(b" ")
        sealed = count.isdigit() and seal_found == _seal(self._metadata[_CONTEXTS_KEY], count)
        if self._columns != expected or not sealed:
            raise StoreError(f"{self.path} was changed after it was written, so it is not read; {_EXPORT_AGAIN}")
        return True, int(count)

    def _read_contexts(self) -> dict[str, Context]:
        try:
            texts = json.loads(self._metadata[_CONTEXTS_KEY])
            found = {digest: Context.proven(text.encode(), bytes.fromhex(digest)) for digest, text in texts.items()}
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise StoreError(f"{self.path} names contexts that cannot be read ({error}); {_EXPORT_AGAIN}") from error
        whole = {digest: context for digest, context in found.items() if context is not None}
        if len(whole) < len(found):
            raise StoreError(f"{self.path} names a context that does not fit its text; {_EXPORT_AGAIN}")
        return whole

    def batches(self) -> Iterator[TableBatch]:
        """Everything that is whole, and how many rows are not: damaged, unreadable or missing."""
        seen = 0
        for group in range(self._file.num_row_groups):
            for batch in self._group(group):
                seen += len(batch.rows) + batch.damaged
                yield batch
        if seen < self.count:
            yield TableBatch(None, damaged=self.count - seen)

    def _group(self, group: int) -> Iterator[TableBatch]:
        import pyarrow as pa

        try:
            table = self._file.read_row_group(group, use_threads=False)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            if not self.checked:
                raise StoreError(f"cannot read {self.path} as an export ({error}); {_EXPORT_AGAIN}") from error
            return  # `batches` counts its rows as damaged, because they are missing at the end
        by_context: dict[Context, list[StoredRow]] = {}
        damaged = 0
        for entry in _entries(table):
            found = self._row(entry)
            if found is None:
                damaged += 1
            else:
                by_context.setdefault(found[0], []).append(found[1])
        for context, rows in by_context.items():
            yield TableBatch(context, tuple(rows))
        if damaged:
            yield TableBatch(None, damaged=damaged)

    def _row(self, entry: Mapping[str, Any] | None) -> tuple[Context, StoredRow] | None:
        """The context and row of an entry; None where the checksum does not fit.

        In a file without checksums an odd entry raises: nothing else could tell damage from a score.
        """
        try:
            if entry is None:
                raise ValueError("a text is not UTF-8")
            context = self.contexts.get(str(entry["context"]))
            if context is None:
                raise ValueError("a row names a context that is not in the file")
            row = seal(context.digest, entry["key"], _from_dict(entry))
            whole = not self.checked or row.checksum == entry["checksum"]
        except (ScoringError, ValueError, TypeError, AttributeError, OverflowError) as error:
            if self.checked:
                return None
            raise StoreError(f"cannot read {self.path} as an export: {error}; {_EXPORT_AGAIN}") from error
        return (context, row) if whole else None

    def close(self) -> None:
        self._file.close()


class _explaining_errors:
    """Turns what pyarrow raises on opening a file into one sentence."""

    def __init__(self, path: str | Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        import pyarrow as pa

        if isinstance(error, (pa.ArrowException, OSError, ValueError, MemoryError)):
            raise StoreError(f"cannot read {self.path} as an export ({error}); {_EXPORT_AGAIN}") from error


def _entries(table: Any) -> list[dict[str, Any] | None]:
    """The rows of a table; None for one with a text that is not UTF-8."""
    try:
        return list(table.to_pylist())
    except UnicodeDecodeError:  # one text fails the conversion of the whole table, so rows are converted one by one
        return [_entry(table.slice(place, 1)) for place in range(len(table))]


def _entry(one: Any) -> dict[str, Any] | None:
    try:
        entry: dict[str, Any] = one.to_pylist()[0]
    except UnicodeDecodeError:
        return None
    return entry


def _seal(contexts: bytes, count: int | bytes) -> bytes:
    """Proves the list of contexts and the number of rows: their checksum in hexadecimal, then the number."""
    number = count if isinstance(count, bytes) else str(count).encode()
    return b"%08x %b" % (zlib.crc32(number, zlib.crc32(contexts)), number)


def _schema() -> Any:
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    columns = {
        "key": pa.binary(KEY_SIZE),
        "context": text,
        "query": text,
        "demos": pa.list_(text),
        "raw": text,
        "answer": text,
        "accuracy": number,
        "correct": pa.bool_(),
        "token_f1": number,
        "edit_similarity": number,
        "reference_answers": pa.list_(text),
        "reference_counts": pa.list_(pa.int32()),
        "reference_logprobs": pa.list_(number),  # the only column that may be null: not every backend measures them
        "tokens": pa.int64(),
        "seconds": number,
        "checksum": pa.int64(),  # the last column: exports from before 0.2 have all but this one
    }
    fields = []
    for name, kind in columns.items():
        fields.append(pa.field(name, kind, nullable=name == "reference_logprobs"))
    return pa.schema(fields)


def _as_dict(context: Context, row: StoredRow) -> dict[str, Any]:
    score = decode(row)
    logprobs = [reference.logprob for reference in score.references]
    return {
        "key": row.key,
        "context": context.digest.hex(),
        "demos": list(score.demos),
        "reference_answers": [reference.answer for reference in score.references],
        "reference_counts": [reference.count for reference in score.references],
        "reference_logprobs": None if None in logprobs else logprobs,
        **{name: getattr(score, name) for name in _SCALAR_FIELDS},
        "checksum": row.checksum,
    }


def _from_dict(entry: Mapping[str, Any]) -> Score:
    answers, counts = entry["reference_answers"], entry["reference_counts"]
    logprobs = entry["reference_logprobs"] or [None] * len(answers)
    references = []
    for answer, count, logprob in zip(answers, counts, logprobs, strict=True):
        references.append(Reference(answer, count, logprob))
    return Score(
        demos=tuple(entry["demos"]),
        references=tuple(references),
        **{name: entry[name] for name in _SCALAR_FIELDS},
    )
