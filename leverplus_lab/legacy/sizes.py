"""On how many items printed numbers were measured: what their line, their table or their section says."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from leverplus_doctor.records import Arm
from leverplus_lab.legacy import words

Headings = tuple[str, ...]
COUNTS = re.compile(
    r"^(?:n|(?:number of |#\s*)?(?:items|samples|questions)|样本数?)$", re.IGNORECASE
)


@dataclass(frozen=True)
class PrintedPlace:
    """Where a number is printed: under which headings, in which table (0: none), whether that very spot says n."""

    headings: Headings
    table: int = 0
    said: bool = False


def table_says(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table says n: in a cell (`800 samples`, `n = 800`), or in a column of its own."""
    for row in rows:
        for cell in row:
            if words.items_in(words.without_marks(cell)) is not None:
                return True
    counts = []
    for place, title in enumerate(rows[0]):
        if COUNTS.match(words.without_marks(title)):
            for row in rows[1:]:
                if place < len(row):
                    counts.append(words.cell_number(row[place]) or 0.0)
    return bool(counts) and min(counts) >= words.FEWEST_ITEMS


def taken_over(arms: Sequence[Arm]) -> list[Arm]:
    """A table without n whose baseline has the same digits as that of a table with n was measured on as many."""
    known: dict[Hashable, int] = {}
    for arm in arms:
        if arm.baseline and arm.n is not None:
            known[_digits(arm)] = arm.n
    sizes: dict[int, int | None] = {}
    for arm in arms:
        if arm.baseline and arm.table:
            sizes[arm.table] = known.get(_digits(arm))
    found = []
    for arm in arms:
        size = arm.n
        if size is None:
            size = sizes.get(arm.table)
        found.append(replace(arm, n=size))
    return found


def _digits(arm: Arm) -> Hashable:
    return tuple(sorted(arm.accuracy.items()))


def count_unsized(
    arms: Sequence[tuple[Arm, PrintedPlace]],
    gains: Sequence[tuple[float, PrintedPlace]],
    speaking: AbstractSet[Headings],
) -> int:
    """How many arms and gains carry no n; `speaking` are the sections that say one.

    A section speaks for those inside it. A gain with the digits of one that carries n repeats it.
    """
    tables = set()
    for arm, _ in arms:
        if arm.n is not None:
            tables.add(arm.table)
    tables.discard(0)  # stands in no table

    def carries(place: PrintedPlace) -> bool:
        if place.said or place.table in tables:
            return True
        headings = place.headings
        around = {headings[:depth] for depth in range(len(headings) + 1)}
        return bool(headings) and not around.isdisjoint(speaking)

    bare = 0
    for arm, place in arms:
        bare += arm.n is None and not arm.baseline and not carries(place)
    with_n = set()
    without = []
    for value, place in gains:
        if carries(place):
            with_n.add(round(value, 6))
        else:
            without.append(round(value, 6))
    for value in without:
        bare += value not in with_n
    return bare
