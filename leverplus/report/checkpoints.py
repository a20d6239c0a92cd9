"""Draws how a selector's picks settled: how far each checkpoint agrees with the one before and the one evaluated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from leverplus.report.figures import ACCENT, Figure, chart_text
from leverplus.report.tables import Table
from leverplus.types import Demos, Item, Pool

if TYPE_CHECKING:
    from leverplus.evaluation.behaviour import PickAgreement
    from leverplus.policies.items import ItemTable

QUERIES, MOST = 64, 30
"""Queries whose picks are compared, and the most checkpoints that are."""


class HasPools(Protocol):
    """Gives the pools of queries and the table of their items (`run.Run` does)."""

    def pools(self, queries: Sequence[Item]) -> tuple[list[Pool], ItemTable]: ...


def compared_queries(items: Sequence[Item]) -> list[Item]:
    """The same few queries at every call, whatever their order: those with the smallest hashes."""
    return sorted(items, key=lambda item: hashlib.sha256(item.id.encode()).digest())[:QUERIES]


def epochs_shown(names: Sequence[str]) -> list[str]:
    """Checkpoints of epochs, thinned evenly to `MOST`, the first and the last among them."""
    epochs = [name for name in names if name.rpartition("-epoch")[2].isdigit()]
    if len(epochs) <= MOST:
        return epochs
    step = (len(epochs) - 1) / (MOST - 1)
    return [epochs[round(place * step)] for place in range(MOST)]


def agreement_figure(
    run: HasPools, folder: Path, names: Sequence[str], items: Sequence[Item], *, chosen: str, shots: int
) -> Figure | None:
    """Shared demonstrations (Jaccard) of neighbouring checkpoints; None where there are not two to compare."""
    from leverplus.evaluation.behaviour import agreement
    from leverplus.policies.items import choose_demos
    from leverplus.training.checkpoint import load_checkpoint

    epochs = epochs_shown(names)
    if len(epochs) < 2 or chosen not in names or not items:
        return None
    pools, table = run.pools(compared_queries(items))
    picks: dict[str, list[Demos]] = {}
    for name in (*epochs, chosen):
        policy = load_checkpoint(folder / name)[0].eval()
        picks[name] = choose_demos(policy, table, pools, shots)
    before: list[PickAgreement | None] = [None]  # nothing comes before the first checkpoint
    for old, new in pairwise(epochs):
        before.append(agreement(picks[old], picks[new]))
    final = [agreement(picks[name], picks[chosen]) for name in epochs]
    labels = []
    for name in epochs:
        stage, _, epoch = name.rpartition("-epoch")
        labels.append(f"{stage} {int(epoch)}")
    data = [
        _line("with the checkpoint before", labels, before, "#2f7fc1"),
        _line("with the one evaluated", labels, final, ACCENT),
    ]
    rows = []
    for label, with_before, with_final in zip(labels, before, final, strict=True):
        rows.append((label, *_cells(with_before), *_cells(with_final)))
    head = ("checkpoint", "before: identical", "before: Jaccard", "evaluated: identical", "evaluated: Jaccard")
    title = f"Shared picks (Jaccard) of checkpoints, {shots} shots, {len(pools)} queries"
    layout = {"xaxis": {"type": "category", "nticks": 12, "automargin": True}, "yaxis": {"range": [0, 1.03]}}
    return Figure("agreement", title, data, layout, Table(head, rows), height=300)


def _line(title: str, labels: Sequence[str], found: Sequence[PickAgreement | None], colour: str) -> dict[str, Any]:
    return {
        "name": title,
        "x": [chart_text(label) for label in labels],
        "y": [None if one is None else one.jaccard for one in found],
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2},
        "marker": {"size": 4},
    }


def _cells(found: PickAgreement | None) -> tuple[str, str]:
    if found is None:
        return "", ""
    return f"{100 * found.identical:.0f} %", f"{found.jaccard:.2f}"
