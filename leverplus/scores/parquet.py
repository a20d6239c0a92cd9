"""Parquet files that prove themselves: exports of scores and recorded tables are written and read here.

Such a file appears under its name whole or not at all. Its pages carry Parquet's own checksums, each row two bytes of
ours in the column `checksum`, and a seal proves the file's card (JSON in its metadata) and the number of its rows.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leverplus.data.rundir import write_atomically
from leverplus.errors import DataError, MissingFile, require_packages

if TYPE_CHECKING:
    import pyarrow as pa

CHECKSUM = "checksum"  # name of the column
_SEAL = b"leverplus.seal"  # key of the seal in the metadata
Hashes = NDArray[np.uint64]
_STEP = np.uint64(0x9E3779B97F4A7C15)
"""Odd: its odd multiples modulo 2^64 are all different, and lose nothing."""


def write_proven(
    path: Path,
    columns: Mapping[str, pa.DataType],
    groups: Iterable[Sequence[Sequence[Any]]],
    card_key: bytes,
    make_card: Callable[[int], Mapping[str, Any]],
    **options: Any,
) -> int:
    """Write groups of rows, each row in the order of the columns, and the card of so many; returns how many.

    The file is there whole, or not at all.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(list(columns.items()))
    count = 0
    proven = schema.append(pa.field(CHECKSUM, pa.uint16()))
    options |= {"compression": "zstd", "write_page_checksum": True}
    with write_atomically(path) as part:
        part.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(part, proven, **options) as writer:
            for rows in groups:
                arrays = []
                for field, values in zip(schema, zip(*rows, strict=True), strict=True):
                    arrays.append(pa.array(values, field.type))
                batch = pa.record_batch(arrays, schema=schema)
                checksums = pa.array(row_checksums(batch))
                writer.write_batch(batch.append_column(CHECKSUM, checksums))
                count += len(rows)
            card = json.dumps(make_card(count), sort_keys=True).encode()
            writer.add_key_value_metadata({card_key: card, _SEAL: _seal(card, count)})
    return count


class ProvenReader:
    """Reads such a file; DataError names it and says how to make it anew (`again`), whatever is wrong with it."""

    def __init__(self, path: Path, card_key: bytes, *, kind: str, again: str) -> None:
        require_packages(f"the {kind} {path}", "pyarrow")
        import pyarrow.parquet as pq

        self.path = Path(path)
        self.kind = kind
        self.again = again
        if not self.path.is_file():
            raise MissingFile(f"there is no {kind} {path}; {again}")
        with self.explaining_errors():
            self._file = pq.ParquetFile(self.path, page_checksum_verification=True)
            self.columns: list[str] = self._file.schema_arrow.names
            metadata = dict(self._file.metadata.metadata or {})
        self.count = int(self._file.metadata.num_rows)
        self.groups = int(self._file.num_row_groups)
        self.has_checksums = CHECKSUM in self.columns
        text = metadata.get(card_key)
        self.has_card = text is not None
        self.card: dict[str, Any] = {}
        if self.has_checksums:
            self._check_seal(text or b"", metadata.get(_SEAL, b""))
        if text is not None:
            with self.explaining_errors():
                self.card = json.loads(text)

    def _check_seal(self, card: bytes, seal: bytes) -> None:
        """The seal must fit the card; how many rows were written stands in it."""
        _, _, count = seal.partition(b" ")
        if not count.isdigit() or seal != _seal(card, int(count)):
            raise self.changed("its card does not fit its seal")
        self.count = int(count)

    def read(self, group: int) -> pa.RecordBatch:
        """The rows of one row group that give their checksum; the others are left out."""
        with self.explaining_errors():
            whole = self._file.read_row_group(group, use_threads=False)
            (batch,) = whole.combine_chunks().to_batches()
            if self.has_checksums:
                written = batch.column(CHECKSUM).to_numpy(zero_copy_only=False)
                batch = batch.drop_columns(CHECKSUM)
                batch = batch.filter(row_checksums(batch) == written)
        return batch

    def changed(self, what: str) -> DataError:
        """The error for a file that is not as it was written."""
        return DataError(
            f"the {self.kind} {self.path} was changed after it was written ({what}); {self.again}"
        )

    @contextmanager
    def explaining_errors(self) -> Iterator[None]:
        """Turns what pyarrow raises on damaged bytes into one sentence."""
        import pyarrow as pa

        try:
            yield
        except (
            pa.ArrowException,
            OSError,
            ValueError,
            TypeError,
            MemoryError,
            OverflowError,
        ) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(
                f"{self.path} cannot be read as Parquet ({reason}); {self.again}"
            ) from error


def _seal(card: bytes, count: int) -> bytes:
    """Proves the card and the number of rows: their checksum in hexadecimal, then the number."""
    number = str(count).encode()
    return b"%08x %b" % (zlib.crc32(number, zlib.crc32(card)), number)


def row_checksums(batch: pa.RecordBatch) -> NDArray[np.uint16]:
    """Two bytes a row (N,) over all columns of a batch."""
    total = np.zeros(len(batch), np.uint64)
    for place, column in enumerate(batch.columns):
        total += _column_hashes(column) * np.uint64(2 * place + 1) * _STEP
    # The upper bits of a product depend on all bits below them, so these are mixed downwards before they are cut.
    total ^= total >> np.uint64(32)
    total *= _STEP
    checksums: NDArray[np.uint16] = (total >> np.uint64(48)).astype(np.uint16)
    return checksums


def _column_hashes(column: Any) -> Hashes:
    """Eight bytes a row (N,) of a column of texts, of numbers or of lists."""
    import pyarrow as pa

    if pa.types.is_list(column.type):
        starts = column.offsets.to_numpy().astype(np.int64)  # (N + 1,)
        counts = np.diff(starts)
        inner = _column_hashes(column.flatten())
        # places in the own list
        places = np.arange(len(inner)) - np.repeat(starts[:-1] - starts[0], counts)
        weighed = inner * (_STEP * (2 * places.astype(np.uint64) + np.uint64(1)))
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weighed)])
        ends = np.cumsum(counts)
        hashes: Hashes = sums[ends] - sums[ends - counts] + counts.astype(np.uint64)
        return hashes
    if not pa.types.is_floating(column.type) and not pa.types.is_integer(column.type):
        return _text_hashes(column.cast(pa.binary()))
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    values[np.isnan(values)] = np.nan  # null, in one spelling
    bits: Hashes = values.view(np.uint64)
    return (bits ^ (bits >> np.uint64(29))) * _STEP


def _text_hashes(column: Any) -> Hashes:
    encoded = column.dictionary_encode()
    own = []
    for text in encoded.dictionary.to_pylist():
        own.append(int.from_bytes(blake2b(text, digest_size=8).digest(), "big"))
    own.append(0)  # null
    codes = encoded.indices.fill_null(len(own) - 1).to_numpy()
    hashes: Hashes = np.array(own, np.uint64)[codes]
    return hashes
