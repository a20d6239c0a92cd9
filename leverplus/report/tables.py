"""The tables of a report: cells as text, made from the numbers of an evaluation."""

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


def rival(row: Mapping[str, Any]) -> str:
    """Whom the learned arm is compared with; another arm that is compared is named before it."""
    baseline = arm_name(row["baseline"])
    return baseline if row["arm"] == "learned" else f"{arm_name(row['arm'])} against {baseline}"


def gap_table(closed: Mapping[str, Mapping[str, float]]) -> Table:
    """Share of the way from random to the greedy oracle that each arm goes, by shots."""
    keys = sorted({key for values in closed.values() for key in values}, key=lambda key: (key == "mean", key))
    rows = [
        (arm_name(arm), *(f"{100 * values[key]:.0f} %" if key in values else "" for key in keys))
        for arm, values in closed.items()
        if values
    ]
    return Table(("who chooses", *(key if key == "mean" else shots_name(int(key)) for key in keys)), rows)


def help_harm_table(comparisons: Sequence[Mapping[str, Any]]) -> Table:
    """Items the learned arm scores above and below each baseline, by shots."""
    shots = sorted({r["shots"] for r in comparisons})
    cells = {(rival(r), r["shots"]): f"{r['helped']} / {r['harmed']}" for r in comparisons}
    head = ("learned against", *(shots_name(s) for s in shots))
    return Table(
        head, [(name, *(cells.get((name, s), "") for s in shots)) for name in dict.fromkeys(map(rival, comparisons))]
    )


def against_zero_shot(results: Results) -> Table | None:
    """Items every arm scores above and below zero-shot, by shots; an arm with draws counts by its mean."""
    if "zero_shot" not in results.draws:
        return None
    base = results.accuracy("zero_shot", 0)
    shots = sorted({n for arm in results.draws for n in results.shots(arm)} - {0})
    rows = []
    for arm in results.draws:
        cells = []
        for n in shots:
            if n not in results.shots(arm):
                cells.append("")
                continue
            gain = results.accuracy(arm, n) - base
            cells.append(f"{int((gain > 1e-6).sum())} / {int((gain < -1e-6).sum())}")
        if any(cells):
            rows.append((arm_name(arm), *cells))
    return Table(("against zero-shot", *(shots_name(n) for n in shots)), rows)
