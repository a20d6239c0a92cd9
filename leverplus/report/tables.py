"""Makes the tables of a report: cells as text, from the numbers of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leverplus.evaluation.names import arm_name, shots_name
from leverplus.evaluation.predictions import Results


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column is a name, the others are numbers. Rows in `muted` are shown grey."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    muted: frozenset[int] = frozenset()


def by_arm(comparisons: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Comparisons by the arm that is compared with others, in their order."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in comparisons:
        found.setdefault(str(row["arm"]), []).append(row)
    return found


def gap_table(closed: Mapping[str, Mapping[str, float]]) -> Table:
    """Share of the way from random to the greedy oracle that each arm goes, by shots."""
    found: set[str] = set()
    for values in closed.values():
        found.update(values)
    keys = sorted(found, key=lambda key: (key == "mean", key))  # the mean last
    rows = []
    for arm, values in closed.items():
        if values:
            cells = [f"{100 * values[key]:.0f} %" if key in values else "" for key in keys]
            rows.append((arm_name(arm), *cells))
    names = [key if key == "mean" else shots_name(int(key)) for key in keys]
    return Table(("who chooses", *names), rows)


def help_harm_tables(comparisons: Sequence[Mapping[str, Any]]) -> list[Table]:
    """A table for every arm that is compared with others."""
    return [_help_harm_table(arm_name(arm), rows) for arm, rows in by_arm(comparisons).items()]


def _help_harm_table(name: str, comparisons: Sequence[Mapping[str, Any]]) -> Table:
    """How many items an arm scores above and below each baseline, by shots."""
    shots = sorted({row["shots"] for row in comparisons})
    by_rival: dict[str, dict[int, str]] = {}
    for row in comparisons:
        cells = by_rival.setdefault(arm_name(row["baseline"]), {})
        cells[row["shots"]] = f"{row['helped']} / {row['harmed']}"
    rows = []
    for rival, cells in by_rival.items():
        rows.append((rival, *(cells.get(n, "") for n in shots)))
    return Table((f"{name} against", *(shots_name(n) for n in shots)), rows)


def against_zero_shot(results: Results) -> Table | None:
    """How many items every arm scores above and below zero-shot, by shots; an arm with draws counts by its mean."""
    if "zero_shot" not in results.draws:
        return None
    base = results.accuracy("zero_shot", 0)  # (items,)
    evaluated: set[int] = set()
    for arm in results.draws:
        evaluated.update(results.shots(arm))
    shots = sorted(evaluated - {0})
    rows = []
    for arm in results.draws:
        cells = []
        for n in shots:
            if n not in results.shots(arm):
                cells.append("")
                continue
            gain = results.accuracy(arm, n) - base  # (items,)
            above, below = int((gain > 1e-6).sum()), int((gain < -1e-6).sum())
            cells.append(f"{above} / {below}")
        if any(cells):
            rows.append((arm_name(arm), *cells))
    return Table(("against zero-shot", *(shots_name(n) for n in shots)), rows)
