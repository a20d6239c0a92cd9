"""Reads data files and collects everything that is wrong with them, with its line, into one error."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from leverplus.errors import DataError
from leverplus.parsing import parse_json

LISTED = 20
"""At most so many problems are written out; the rest is counted."""

LISTED_ALIKE = 3
"""At most so many places of the same problem are written out."""

MOST_GROWTH, ALWAYS_ALLOWED = 200, 1 << 26
"""A gzip file may grow 200 times (JSON of one repeated record does), or to 64 MB, whichever is more."""


@dataclass
class Problems:
    """Collects everything wrong with a data set; `finish` raises one error with all of it.

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
        lines = self._listed()
        lines += [f"  found: {line}" for line in self.present]
        if self.where:
            lines.append(f"  where to get it: {self.where}")
        count = "1 problem" if len(self.found) == 1 else f"{len(self.found):,} problems"
        raise DataError(f"task {self.task}: {count}, nothing was loaded\n" + "\n".join(lines))

    def _listed(self) -> list[str]:
        """The lines of a message: what is wrong in the order found, the same thing at a few places only."""
        places: dict[str, list[str]] = {}
        for place, what in self.found:
            places.setdefault(what, []).append(place)
        lines: list[str] = []
        shown = 0
        for what, own in places.items():
            if len(lines) >= LISTED:
                lines.append(f"  ... and {len(self.found) - shown:,} more")
                break
            lines += [f"  - {place}: {what}" for place in own[:LISTED_ALIKE]]
            if len(own) > LISTED_ALIKE:
                lines.append(f"    ... the same at {len(own) - LISTED_ALIKE:,} more places")
            shown += len(own)
        return lines


def find_file(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    """The first of these names that lies in one of these folders, plain or gzipped; None where none does."""
    places = list(folders)  # walked once per name
    for name in names:
        for folder in places:
            for candidate in (folder / name, folder / f"{name}.gz"):
                if candidate.is_file():
                    return candidate
    return None


def read_text(path: Path, problems: Problems, encoding: str = "utf-8") -> str | None:
    """The text of a file; None, with a problem reported, where it cannot be read or decoded."""
    try:
        content = _unpacked(path) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        problems.add(str(path), f"cannot be read ({error})")
        return None
    try:
        # "utf-8-sig" skips the byte order mark that some editors put at the beginning.
        return content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.add(f"{path}, line {line}", f"is not {encoding} (byte 0x{content[error.start]:02x}); convert the file")
        return None


def _unpacked(path: Path) -> bytes:
    """The content of a gzip file; one that unpacks to far too much is refused before it fills the memory."""
    most = max(ALWAYS_ALLOWED, MOST_GROWTH * path.stat().st_size)
    with gzip.open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(
            f"its {path.stat().st_size:,} bytes unpack to more than {most:,}; unpack it yourself if it is sound"
        )
    return content


def read_task_json(path: Path, problems: Problems) -> Any:
    """The value of a JSON file, None when it cannot be read."""
    text = read_text(path, problems)
    if text is None:
        return None
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        problems.add(f"{path}, line {error.lineno}", f"is not JSON ({error.msg})")
        return None


def records_under(value: Any, key: str, path: Path, problems: Problems) -> list[Mapping[str, Any]]:
    """The list of records under a key of a JSON value; empty, with a problem reported, where there is none."""
    rows = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        if value is not None:  # None: `read_task_json` has reported the file already
            problems.add(str(path), f'must hold {{"{key}": [...]}}, a list of records')
        return []
    return rows


def other_format(path: Path, text: str) -> str:
    """What a file is that does not hold one JSON record per line, and how to convert it; "" where it may hold them."""
    first = text.lstrip().split("\n", maxsplit=1)[0].strip()
    opened = f"open({str(path)!r}, encoding='utf-8-sig', newline='')"
    what = ""
    if first.startswith("["):
        with suppress(json.JSONDecodeError):
            if isinstance(parse_json(text), list):
                what, rows, imported = "one JSON list", f"json.load({opened})", "json"
    elif first and not first.startswith("{"):
        columns, separator = max((first.count(mark), mark) for mark in ",;\t")
        if columns:
            what = f"a table of {columns + 1} columns"
            rows, imported = f"csv.DictReader({opened}, delimiter={separator!r})", "csv, json"
    if not what:
        return ""
    return (
        f"is {what}, not one JSON record per line; convert it and give the new file: "
        f'python -c "import {imported}; [print(json.dumps(row)) for row in {rows}]" > {path.stem}.jsonl'
    )


def as_word(value: Any) -> Any:
    """A number or a truth value as JSON writes it, so that it can be an answer; anything else as it is."""
    return json.dumps(value) if isinstance(value, (bool, int, float)) else value


def is_whole_number(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)  # JSON's true is an int in Python
