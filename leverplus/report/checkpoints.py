"""How the picks of a selector settled: the agreement of every checkpoint with the one before and the one evaluated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from leverplus.report.figures import ACCENT, Figure, plain
from leverplus.report.tables import Table
from leverplus.types import Demos, Item, Pool

if TYPE_CHECKING:
    from leverplus.policies.items import ItemTable

QUERIES, MOST = 64, 30
"""Queries whose picks are compared, and the most checkpoints that are."""


class Pooled(Protocol):
    """What can tell the pools of queries (`run.Run` does)."""

    def pools(self, queries: Sequence[Item]) -> tuple[list[Pool], ItemTable]: ...


def compared_queries(items: Sequence[Item]) -> list[Item]:
    """The same few queries at every call, whatever their order."""
    return sorted(items, key=lambda item: hashlib.sha256(item.id.encode()).digest())[:QUERIES]


def epochs_shown(names: Sequence[str]) -> list[str]:
    """Checkpoints of epochs, thinned evenly to `MOST`, the first and the last among them."""
    epochs = [name for name in names if name.rpartition("-epoch")[2].isdigit()]
    if len(epochs) <= MOST:
        return epochs
    return [epochs[round(place * (len(epochs) - 1) / (MOST - 1))] for place in range(MOST)]


def agreement_figure(
    run: Pooled, folder: Path, names: Sequence[str], items: Sequence[Item], *, chosen: str, shots: int
) -> Figure | None:
    """Shared demonstrations (Jaccard) of neighbouring checkpoints; None where there are not two to compare."""
    from leverplus.evaluation.behaviour import agreement
    from leverplus.policies.items import choose_demos
    from leverplus.training.checkpoint import load_checkpoint

    epochs = epochs_shown(names)
    if len(epochs) < 2 or chosen not in names or not items:
        return None
    pools, table = run.pools(compared_queries(items))
    picks: dict[str, list[Demos]] = {
        name: choose_demos(load_checkpoint(folder / name)[0].eval(), table, pools, shots) for name in (*epochs, chosen)
    }
    before = [None, *(agreement(picks[old], picks[new]) for old, new in pairwise(epochs))]
    final = [agreement(picks[name], picks[chosen]) for name in epochs]
    labels = [f"{stage} {int(epoch)}" for stage, _, epoch in (name.rpartition("-epoch") for name in epochs)]
    traces = (("with the checkpoint before", before, "#2f7fc1"), ("with the one evaluated", final, ACCENT))
    data = [
        {
            "name": title,
            "x": [plain(label) for label in labels],
            "y": [None if one is None else one.jaccard for one in found],
            "mode": "lines+markers",
            "line": {"color": colour, "width": 2},
            "marker": {"size": 4},
        }
        for title, found, colour in traces
    ]
    rows = [
        (label, *(cell for one in pair for cell in (("", "") if one is None else _cells(one.identical, one.jaccard))))
        for label, *pair in zip(labels, before, final, strict=True)
    ]
    head = ("checkpoint", "before: identical", "before: Jaccard", "evaluated: identical", "evaluated: Jaccard")
    title = f"Shared picks (Jaccard) of checkpoints, {shots} shots, {len(pools)} queries"
    layout = {"xaxis": {"type": "category", "nticks": 12, "automargin": True}, "yaxis": {"range": [0, 1.03]}}
    return Figure("agreement", title, data, layout, Table(head, rows), height=300)


def _cells(identical: float, jaccard: float) -> tuple[str, str]:
    return f"{100 * identical:.0f} %", f"{jaccard:.2f}"
