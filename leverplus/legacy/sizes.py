"""On how many items printed numbers were measured: what their line, their table or their section says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from leverplus.doctor.records import Arm
from leverplus.legacy import words

Headings = tuple[str, ...]
COUNTS = re.compile(r"^(?:n|(?:number of |#\s*)?(?:items|samples|questions)|样本数?)$", re.IGNORECASE)


@dataclass(frozen=True)
class PrintedPlace:
    """Where a number is printed: under which headings, in which table (0: none), whether that very spot says n."""

    headings: Headings
    table: int = 0
    said: bool = False


def table_says(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table says n: in a cell (`800 samples`, `n = 800`), or in a column of its own."""
    if any(words.items_in(words.without_marks(cell)) is not None for row in rows for cell in row):
        return True
    columns = [place for place, cell in enumerate(rows[0]) if COUNTS.match(words.without_marks(cell))]
    cells = [row[place] for place in columns for row in rows[1:] if place < len(row)]
    return bool(cells) and all((words.cell_number(cell) or 0.0) >= words.FEWEST_ITEMS for cell in cells)


def taken_over(arms: Sequence[Arm]) -> list[Arm]:
    """A table without n whose baseline has the same digits as that of a table with n was measured on as many."""
    known = {tuple(sorted(arm.accuracy.items())): arm.n for arm in arms if arm.baseline and arm.n is not None}
    own = {arm.table: known.get(tuple(sorted(arm.accuracy.items()))) for arm in arms if arm.baseline and arm.table}
    return [arm if arm.n is not None else replace(arm, n=own.get(arm.table)) for arm in arms]


def count_unsized(
    arms: Sequence[tuple[Arm, PrintedPlace]],
    gains: Sequence[tuple[float, PrintedPlace]],
    speaking: AbstractSet[Headings],
) -> int:
    """How many arms and gains carry no n; `speaking` are the sections that say one.

    A section speaks for those inside it. A gain with the digits of one that carries n repeats it.
    """
    tables = {arm.table for arm, _ in arms if arm.n is not None and arm.table}

    def carries(place: PrintedPlace) -> bool:
        around = (place.headings[:depth] for depth in range(len(place.headings) + 1)) if place.headings else ()
        return place.said or place.table in tables or any(headings in speaking for headings in around)

    bare = sum(arm.n is None and not arm.baseline and not carries(place) for arm, place in arms)
    carried = {round(value, 6) for value, place in gains if carries(place)}
    return bare + sum(not carries(place) and round(value, 6) not in carried for value, place in gains)
