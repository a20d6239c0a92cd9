"""Opens whatever holds records: text files, Parquet and Arrow, folders that `datasets` saved, objects in memory.

JSONL, a JSON list, CSV and TSV, plain or gzipped, are read by the standard library, tables by pyarrow, objects by what
they offer: no package is imported for them.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from leverplus.data.parsing import parse_json
from leverplus.data.rundir import shipped
from leverplus.errors import DataError, MissingFile, WrongUsage, require_packages

Row = Mapping[str, Any]
Numbered = tuple[int, Row]
"""A record and its number: the line it begins on, or its place counted from 1."""

SPLIT_NAMES = {
    "train": "train",
    "validation": "dev",
    "valid": "dev",
    "val": "dev",
    "dev": "dev",
    "test": "test",
    "": "",
}
"""Names of splits elsewhere, and ours; "" where none is given."""

TABLES = (".parquet", ".arrow")
BATCH = 1024
"""Rows of a table that are in memory together."""

MOST_GROWTH = 200
ALWAYS_ALLOWED = 1 << 26
"""A gzip file may grow 200 times (JSON of one repeated record does), or to 64 MB, whichever is more."""

SEPARATORS = (",", ";", "\t", "|")
EXAMPLE = '{"question": "...", "answer": "..."}'
LISTED = 20
"""Problems that are written out at most; the rest is counted."""

_SHEET = "a spreadsheet; save the sheet as CSV (UTF-8) and give that file"
_PACKED = "packed; unpack it and give that file"
OTHERS = {
    b"PK\x03\x04": _SHEET,
    b"\xd0\xcf\x11\xe0": _SHEET,
    b"SQLite format 3": "a database; write the examples to a CSV: "
    "sqlite3 -csv -header FILE 'select question, answer from TABLE' > examples.csv",
    b"%PDF": "a PDF; write the examples into a CSV with the columns question and answer",
    b"BZh": _PACKED,
    b"\xfd7zXZ": _PACKED,
    b"\x28\xb5\x2f\xfd": _PACKED,
}
"""How files of other formats begin, and the nearest thing that works."""


@dataclass
class Problems:
    """Collects everything wrong with a data set, with its place; `finish` raises one error with all of it.

    `where` says where to get the data, `present` which files were found.
    """

    task: str
    where: str = ""
    found: list[tuple[str, str]] = field(default_factory=list)
    present: list[str] = field(default_factory=list)

    def add(self, place: str, what: str) -> None:
        self.found.append((place, what))

    def finish(self) -> None:
        if not self.found:
            return
        count = "1 problem"
        if len(self.found) > 1:
            count = f"{len(self.found):,} problems"
        lines = [f"task {self.task}: {count}, nothing was loaded"]
        for place, what in self.found[:LISTED]:
            lines.append(f"  - {place}: {what}")
        if len(self.found) > LISTED:
            lines.append(f"  ... and {len(self.found) - LISTED:,} more")
        for line in self.present:
            lines.append(f"  found: {line}")
        if self.where:
            lines.append(f"  where to get it: {self.where}")
        raise DataError("\n".join(lines))


@dataclass(frozen=True)
class RecordSource:
    """Rows of a file or an object.

    `name` and `unit` make the place of a row: `mine.csv, line 7`. `columns` are the names of a table's columns. With
    `skips_unlabelled` rows without an answer are left out and counted, as public test splits have them.
    """

    name: str
    unit: str
    rows: Iterator[Numbered]
    columns: tuple[str, ...] = ()
    skips_unlabelled: bool = False

    def place(self, number: int) -> str:
        return f"{self.name}, {self.unit} {number}"


def open_source(data: Any, problems: Problems) -> RecordSource:
    """The rows of whatever holds records; what cannot be read at all is one sentence."""
    if not isinstance(data, (str, Path)):
        return _open_object(data)
    path = shipped(str(data))
    if path.is_dir() or path.suffix in TABLES:
        return _open_tables(path)
    if not path.is_file():
        raise MissingFile(
            f"there is no file {path}; give a JSONL, CSV or Parquet file, or a folder of a data set"
        )
    return _open_text(path, problems)


# Text files


def read_text(path: Path, encoding: str = "utf-8-sig") -> str:
    """The text of a file, plain or gzipped; DataError where it cannot be read or is of another encoding."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            most = max(ALWAYS_ALLOWED, MOST_GROWTH * len(content))
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(most + 1)
            if len(content) > most:
                raise OSError(
                    f"it unpacks to more than {most:,} bytes; unpack it yourself if it is sound"
                )
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read ({reason})") from error
    for head, what in OTHERS.items():
        if content.startswith(head):
            raise DataError(f"{path} is {what}")
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: is not {encoding.removesuffix('-sig').upper()} (byte "
            f"0x{content[error.start]:02x}); save it as UTF-8, such as iconv -f WINDOWS-1252 -t UTF-8 FILE"
        ) from error


def _open_text(path: Path, problems: Problems) -> RecordSource:
    """The records of a JSONL, JSON, CSV or TSV file; DataError where it is something else."""
    text = read_text(path)
    if not text.strip():
        return RecordSource(path.name, "line", iter(()))
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    first = text.lstrip().partition("\n")[0].strip()
    if kind in ("csv", "tsv"):
        return _open_csv(path, text, problems)
    if first[:1] in "[{" or kind in ("jsonl", "ndjson", "json"):
        unit = "line"
        if first[:1] == "[":
            unit = "record"
        rows = _json_rows(path.name, text, problems, unit)
        return RecordSource(path.name, unit, rows)
    return _open_csv(path, text, problems)


def _json_rows(
    name: str, text: str, problems: Problems, unit: str
) -> Iterator[Numbered]:
    """One record a line, or those of one list (`unit` "record").

    Lines end at a line feed alone: other ends, such as U+2028, may stand inside a JSON text.
    """
    lines = [text]
    if unit == "line":
        lines = text.split("\n")
    for first, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except json.JSONDecodeError as error:
            problems.add(
                f"{name}, line {first + error.lineno - 1}",
                f"is not JSON ({error.msg}, column {error.colno}); write one record a line, such as {EXAMPLE}",
            )
            continue
        if unit == "line":
            value = [value]
        for number, row in enumerate(value, start=first):
            if isinstance(row, dict):
                yield number, row
            else:
                what = f"must be an object in braces; it is {shortened(row)}"
                problems.add(f"{name}, {unit} {number}", what)


def shortened(value: Any) -> str:
    """A value as JSON, at most 40 characters of it, for an error message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > 40:
        text = f"{text[:37]}..."
    return text


def _open_csv(path: Path, text: str, problems: Problems) -> RecordSource:
    """A table with the names of its columns in the first line."""
    header = text.strip().partition("\n")[0]
    separator = max(SEPARATORS, key=header.count)
    if separator not in header.strip(separator):
        raise DataError(
            f"{path} is neither JSON nor a table of several columns; its first line is {header[:60]!r}. Write a JSON "
            f"record a line, such as {EXAMPLE}, or a CSV whose first line is question,answer"
        )
    tables = []
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
        with suppress(csv.Error):  # a quote that does not end
            tables.append(_cells(text, separator, quoting))
    rows = min(tables, key=_unevenness)
    names = list(map(str.strip, rows[0][1]))
    for name in filter(None, names):
        if names.count(name) > 1:
            raise DataError(
                f"{path}: two columns are called {name!r}; rename one of them"
            )
    records: list[Numbered] = []
    for begins, cells in rows[1:]:
        if len(cells) == len(names):
            records.append((begins, dict(zip(names, cells, strict=True))))
        else:
            problems.add(
                f"{path.name}, line {begins}",
                f"has {len(cells)} cells, and the first line names {len(names)} columns; a cell that holds the "
                'separator must stand in "quotes", and a quote inside it is written twice',
            )
    return RecordSource(path.name, "line", iter(records), tuple(filter(None, names)))


def _cells(text: str, separator: str, quoting: Any) -> list[tuple[int, list[str]]]:
    """The rows of a table that have a cell, with the lines they begin on."""
    csv.field_size_limit(1 << 30)  # pictures may stand inside cells
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
    rows = []
    begins = 1
    for cells in reader:
        if any(cells):
            rows.append((begins, cells))
        begins = reader.line_num + 1
    return rows


def _unevenness(rows: Sequence[tuple[int, list[str]]]) -> int:
    """How many rows of a table have not as many cells as the first."""
    return sum(len(cells) != len(rows[0][1]) for _, cells in rows)


# Tables, and objects in memory


def _open_tables(place: Path) -> RecordSource:
    """The records of a data set's folder, or of one Parquet or Arrow file; files and folders are named by splits."""
    if not place.exists():
        raise MissingFile(f"there is no file {place}")
    parts = []
    if place.is_file():
        parts.append(("", _arrow_batches(place)))
    for path in sorted(place.rglob("*")):
        # `datasets` keeps what it computed beside the data
        if path.suffix not in TABLES or path.name.startswith("cache-"):
            continue
        folder = SPLIT_NAMES.get(path.parent.name.lower(), "")
        split = SPLIT_NAMES.get(path.stem.split("-")[0].lower(), folder)
        parts.append((split, _arrow_batches(path)))
    if not parts:
        raise DataError(f"{place} holds no data set: no *.arrow or *.parquet")
    require_packages(f"reading {place}", "pyarrow")
    return _rows_of_parts(place.name, parts)


def _arrow_batches(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Rows of a file; class labels, which `datasets` describes in the schema, are words."""
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        if path.suffix == ".arrow":
            batches = arrow.ipc.open_stream(arrow.memory_map(str(path)))
        else:
            batches = parquet.ParquetFile(path).iter_batches(BATCH)
        for batch in batches:
            about = json.loads((batch.schema.metadata or {}).get(b"huggingface", "{}"))
            words = {}
            for column, own in about.get("info", {}).get("features", {}).items():
                if isinstance(own, dict) and own.get("_type") == "ClassLabel":
                    words[column] = own["names"]
            for start in range(0, max(batch.num_rows, 1), BATCH):
                yield _with_words(batch.slice(start, BATCH).to_pylist(), words)
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read as a data set ({error})") from error


def _with_words(
    rows: list[dict[str, Any]], words: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Rows whose class labels are words; a number outside the list, such as -1, is no label."""
    for column, names in words.items():
        known = dict(enumerate(names))
        for row in rows:
            value = row.get(column)
            if isinstance(value, int):
                row[column] = known.get(value)
    return rows


def _rows_of_parts(
    name: str, parts: Sequence[tuple[str, Iterator[list[dict[str, Any]]]]]
) -> RecordSource:
    """The records of the parts of a data set, one after the other.

    Rows of several splits have their split, and an id that no other split has.
    """
    several = len({split for split, _ in parts}) > 1

    def rows() -> Iterator[Numbered]:
        number = 0
        for split, batches in parts:
            for row in chain.from_iterable(batches):
                number += 1
                if several:
                    row["id"] = f"{split or 'item'}-{row.get('id', number)}"
                    row["split"] = split
                yield number, row

    return RecordSource(name, "record", rows(), skips_unlabelled=True)


def _open_object(data: Any) -> RecordSource:
    """The records of an object in memory; WrongUsage with a sentence where it holds none."""
    kind = type(data).__name__
    if type(data).__module__.partition(".")[0] == "datasets":
        if not isinstance(data, Mapping):
            data = {"": data}
        parts = []
        for name, part in data.items():
            split = SPLIT_NAMES.get(str(name).lower(), "")
            parts.append((split, _dataset_batches(part)))
        return _rows_of_parts(f"the {kind}", parts)
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # pandas
        rows = _numbered(data.to_dict("records"), kind)
        return RecordSource(f"the {kind}", "row", rows, tuple(map(str, data.columns)))
    for method in ("to_dicts", "to_pylist"):  # polars, pyarrow
        if hasattr(data, method):
            data = getattr(data, method)()
    if not isinstance(data, Iterable) or isinstance(data, (bytes, Mapping)):
        raise WrongUsage(
            f"data cannot be a value of type {kind}; give a file, a list of dicts, a pandas DataFrame or a datasets.Dataset"
        )
    return RecordSource("the data", "record", _numbered(data, kind))


def _dataset_batches(part: Any) -> Iterator[list[dict[str, Any]]]:
    """Rows of a data set of the `datasets` library, as Arrow has them: pictures are not decoded."""
    words = {}
    for column, feature in (part.features or {}).items():
        if type(feature).__name__ == "ClassLabel":
            words[column] = feature.names
    for batch in part.with_format("arrow").iter(BATCH):
        yield _with_words(batch.to_pylist(), words)


def _numbered(rows: Iterable[Any], kind: str) -> Iterator[Numbered]:
    for number, row in enumerate(rows, start=1):
        if hasattr(row, "toDict"):
            row = row.toDict()  # an Example of DSPy  # noqa: PLW2901
        if not isinstance(row, Mapping):
            raise WrongUsage(
                f"record {number} of the {kind} is a {type(row).__name__}; each must be a dict, such as {EXAMPLE}"
            )
        yield number, row
