"""Reading data files so that everything wrong with them is named at once, with its line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from leverplus.errors import DataError
from leverplus.parsing import parse_json

LISTED = 20
"""Problems written out; the rest is counted."""

MOST_GROWTH, SMALL_ENOUGH = 200, 1 << 26
"""A gzip file may grow 200 times (JSON of one repeated record does), or to 64 MB."""


@dataclass
class Problems:
    """Everything wrong with a data set, and where to get it; `finish` raises once, with all of it."""

    task: str
    where: str = ""
    found: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)

    def add(self, place: str, what: str) -> None:
        self.found.append(f"{place}: {what}")

    def finish(self) -> None:
        if not self.found:
            return
        lines = [f"  - {line}" for line in self.found[:LISTED]]
        if len(self.found) > LISTED:
            lines.append(f"  ... and {len(self.found) - LISTED:,} more")
        lines += [f"  found: {line}" for line in self.present]
        if self.where:
            lines.append(f"  where to get it: {self.where}")
        count = "1 problem" if len(self.found) == 1 else f"{len(self.found):,} problems"
        raise DataError(f"task {self.task}: {count}, nothing was loaded\n" + "\n".join(lines))


def find_file(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    """The first of some names that lies in one of some folders, plain or compressed with gzip."""
    places = list(folders)
    for name in names:
        for folder in places:
            for candidate in (folder / name, folder / f"{name}.gz"):
                if candidate.is_file():
                    return candidate
    return None


def read_text(path: Path, problems: Problems, encoding: str = "utf-8") -> str | None:
    """The text of a file; bytes that are not of its encoding are reported with their line."""
    try:
        content = _unpacked(path) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        problems.add(str(path), f"cannot be read ({error})")
        return None
    try:
        return content.decode("utf-8-sig" if encoding == "utf-8" else encoding)  # some editors begin with a mark
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.add(f"{path}, line {line}", f"is not {encoding} (byte 0x{content[error.start]:02x}); convert the file")
        return None


def _unpacked(path: Path) -> bytes:
    """The content of a gzip file; one that grows beyond all measure is refused before it fills the memory."""
    most = max(SMALL_ENOUGH, MOST_GROWTH * path.stat().st_size)
    with gzip.open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(
            f"its {path.stat().st_size:,} bytes unpack to more than {most:,}; unpack it yourself if it is sound"
        )
    return content


def read_json(path: Path, problems: Problems) -> Any:
    """The value of a JSON file, None when it cannot be read."""
    text = read_text(path, problems)
    if text is None:
        return None
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        problems.add(f"{path}, line {error.lineno}", f"is not JSON ({error.msg})")
        return None


def rows_of(value: Any, key: str, path: Path, problems: Problems) -> list[Mapping[str, Any]]:
    """The list of records under a key."""
    rows = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        if value is not None:
            problems.add(str(path), f'must hold {{"{key}": [...]}}, a list of records')
        return []
    return rows


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number; JSON's true is none."""
    return isinstance(value, int) and not isinstance(value, bool)
