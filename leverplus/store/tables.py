"""Scores as a Parquet table: a row a score with the checksum it has in the store, contexts in the file's metadata.

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
from leverplus.store.keys import Context
from leverplus.store.records import Row, decode, seal
from leverplus.types import Reference, Score

GROUP_ROWS = 2_000
"""Rows of a row group: what one damaged page of a table costs at most."""
_CONTEXTS = b"leverplus.contexts"
_SEAL = b"leverplus.seal"
_AGAIN = "make it again with `lever store export`"
_PLAIN = ("query", "raw", "answer", "accuracy", "correct", "token_f1", "edit_similarity", "tokens", "seconds")


@dataclass(frozen=True)
class Batch:
    """Rows of one context that are whole, and how many rows beside them are not."""

    context: Context | None
    rows: tuple[Row, ...] = ()
    damaged: int = 0


class TableWriter:
    """Writes scores to a Parquet file, group by group; what proves the file whole is written at the end."""

    def __init__(self, file: Any, contexts: Sequence[Context]) -> None:
        import pyarrow.parquet as pq

        self._names = json.dumps({context.digest.hex(): context.canonical for context in contexts}).encode()
        self._schema = _schema().with_metadata({_CONTEXTS: self._names})
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd", write_page_checksum=True)
        self.written = 0

    def write(self, context: Context, rows: Sequence[Row]) -> None:
        """Rows of one context that were read from a store and proven there."""
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist([_as_dict(context, row) for row in rows], self._schema))
        self.written += len(rows)

    def close(self, *, whole: bool) -> None:
        """End the file; one that is not whole is left without what would make it readable."""
        if whole:
            self._writer.add_key_value_metadata({_SEAL: _seal(self._names, self.written)})
        self._writer.close()


class TableReader:
    """Reads a Parquet file of scores; `checked` says whether its rows carry checksums (those before 0.2 do not)."""

    def __init__(self, path: str | Path) -> None:
        import pyarrow.parquet as pq

        self.path = path
        with _sentences(path):
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            self._names = list(self._file.schema_arrow.names)
            self._metadata = dict(self._file.metadata.metadata or {})
        self.checked, self.count = self._form()
        self.contexts = self._read_contexts()

    def _form(self) -> tuple[bool, int]:
        """Whether rows carry checksums, and how many rows were written."""
        if _CONTEXTS not in self._metadata:
            raise StoreError(f"{self.path} is a Parquet file but not an export of scores; {_AGAIN}")
        new = list(_schema().names)
        if _SEAL not in self._metadata and self._names == new[:-1]:
            return False, int(self._file.metadata.num_rows)
        head, _, count = self._metadata.get(_SEAL, b"").partition(b" ")
        if self._names != new or not count.isdigit() or head + b" " + count != _seal(self._metadata[_CONTEXTS], count):
            raise StoreError(f"{self.path} was changed after it was written, so it is not read; {_AGAIN}")
        return True, int(count)

    def _read_contexts(self) -> dict[str, Context]:
        try:
            texts = json.loads(self._metadata[_CONTEXTS])
            found = {digest: Context.proven(text.encode(), bytes.fromhex(digest)) for digest, text in texts.items()}
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise StoreError(f"{self.path} names contexts that cannot be read ({error}); {_AGAIN}") from error
        whole = {digest: context for digest, context in found.items() if context is not None}
        if len(whole) < len(found):
            raise StoreError(f"{self.path} names a context that does not fit its text; {_AGAIN}")
        return whole

    def batches(self) -> Iterator[Batch]:
        """Everything that is whole, and how many rows are not: damaged, unreadable or missing."""
        seen = 0
        for group in range(self._file.num_row_groups):
            for batch in self._group(group):
                seen += len(batch.rows) + batch.damaged
                yield batch
        if seen < self.count:
            yield Batch(None, damaged=self.count - seen)

    def _group(self, group: int) -> Iterator[Batch]:
        import pyarrow as pa

        try:
            table = self._file.read_row_group(group, use_threads=False)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            if not self.checked:
                raise StoreError(f"cannot read {self.path} as an export ({error}); {_AGAIN}") from error
            return  # its rows are missed when all are counted
        by_context: dict[Context, list[Row]] = {}
        damaged = 0
        for entry in _entries(table):
            found = self._row(entry)
            if found is None:
                damaged += 1
            else:
                by_context.setdefault(found[0], []).append(found[1])
        for context, rows in by_context.items():
            yield Batch(context, tuple(rows))
        if damaged:
            yield Batch(None, damaged=damaged)

    def _row(self, entry: Mapping[str, Any] | None) -> tuple[Context, Row] | None:
        """The context and row of an entry, None where the checksum does not fit; without one what is odd raises."""
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
            raise StoreError(f"cannot read {self.path} as an export: {error}; {_AGAIN}") from error
        return (context, row) if whole else None

    def close(self) -> None:
        self._file.close()


class _sentences:
    """Turns what pyarrow raises on opening a file into one sentence."""

    def __init__(self, path: str | Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        import pyarrow as pa

        if isinstance(error, (pa.ArrowException, OSError, ValueError, MemoryError)):
            raise StoreError(f"cannot read {self.path} as an export ({error}); {_AGAIN}") from error


def _entries(table: Any) -> list[dict[str, Any] | None]:
    """The rows of a table; None for one with a text that is not UTF-8."""
    try:
        return list(table.to_pylist())
    except UnicodeDecodeError:  # one text spoils the whole table, so its rows are taken one by one
        return [_entry(table.slice(place, 1)) for place in range(len(table))]


def _entry(one: Any) -> dict[str, Any] | None:
    try:
        entry: dict[str, Any] = one.to_pylist()[0]
    except UnicodeDecodeError:
        return None
    return entry


def _seal(names: bytes, count: int | bytes) -> bytes:
    """What proves the list of contexts and the number of rows: their checksum, then the number."""
    number = count if isinstance(count, bytes) else str(count).encode()
    return b"%08x %b" % (zlib.crc32(number, zlib.crc32(names)), number)


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
    columns |= {"checksum": pa.int64()}
    return pa.schema([pa.field(name, kind, nullable=name == "reference_logprobs") for name, kind in columns.items()])


def _as_dict(context: Context, row: Row) -> dict[str, Any]:
    score = decode(row)
    logprobs = [reference.logprob for reference in score.references]
    return {
        "key": row.key,
        "context": context.digest.hex(),
        "demos": list(score.demos),
        "reference_answers": [reference.answer for reference in score.references],
        "reference_counts": [reference.count for reference in score.references],
        "reference_logprobs": None if None in logprobs else logprobs,
        **{name: getattr(score, name) for name in _PLAIN},
        "checksum": row.checksum,
    }


def _from_dict(entry: Mapping[str, Any]) -> Score:
    answers = entry["reference_answers"]
    logprobs = entry["reference_logprobs"] or [None] * len(answers)
    return Score(
        demos=tuple(entry["demos"]),
        references=tuple(Reference(*of) for of in zip(answers, entry["reference_counts"], logprobs, strict=True)),
        **{name: entry[name] for name in _PLAIN},
    )
