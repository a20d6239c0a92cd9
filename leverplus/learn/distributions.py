"""What a stage learns from, in counts: rewards, their spread inside a group, advantages, effects of demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leverplus.arms.audit import audit
from leverplus.arms.effects import Measured
from leverplus.data.rundir import write_json
from leverplus.errors import DataError
from leverplus.learn.data.batch import collate
from leverplus.learn.data.rows import Row
from leverplus.learn.maths.signal import FLAT, all_right, is_right
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.stages import Stage

BINS = 20
"""Of every histogram: over [0, 1] a step of 0.05."""
ENDS = 6
"""Demonstrations named at either end."""


def histogram(values: Tensor) -> dict[str, Any]:
    """Counts in even bins: over [0, 1] where all values lie there, else from the smallest to the largest."""
    numbers = values.double().numpy()
    unit = numbers.min() >= 0.0 and numbers.max() <= 1.0
    counts, edges = np.histogram(numbers, BINS, (0.0, 1.0) if unit else None)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def describe_rows(
    rows: Sequence[Row],
    advantages: Tensor | None = None,
) -> dict[str, Any]:
    """Counts over rows (groups) and their sequences.

    `flat` groups have equal rewards, in `all_wrong` and `all_right` ones every answer has accuracy 0 or 1. `spread` is
    the best minus the worst reward of a group. `advantages` are left out where the stage makes none.
    """
    spreads = []
    flat = 0
    all_wrong = 0
    full = 0
    sequences = 0
    for row in rows:
        spread = float(row.rewards.max() - row.rewards.min())
        accuracies = row.accuracy.tolist()
        spreads.append(spread)
        sequences += len(accuracies)
        flat += spread <= FLAT
        full += all_right(accuracies)
        judged = not bool(row.accuracy.isnan().any())
        all_wrong += judged and not any(map(is_right, accuracies))
    found = {
        "groups": len(rows),
        "sequences": sequences,
        "flat": flat,
        "all_wrong": all_wrong,
        "all_right": full,
        "rewards": histogram(torch.cat([row.rewards for row in rows])),
        "spread": histogram(torch.tensor(spreads)),
    }
    if advantages is not None and len(advantages):
        found["advantages"] = histogram(advantages)
    return found


def first_advantages(
    stage: Stage[Any],
    rows: Sequence[Row],
    table: ItemTable,
    size: int,
) -> Tensor | None:
    """The advantages of an epoch's members that move the policy, batch by batch; None if the stage makes none."""
    advantage = getattr(stage, "advantage", None)
    if advantage is None:
        return None
    values = []
    for start in range(0, len(rows), size):
        value, moving = advantage(collate(rows[start : start + size], table), 0)
        values.append(value[moving])
    return torch.cat(values)


def demonstration_effects(
    rows: Sequence[Row],
    table: ItemTable,
) -> dict[str, Any] | None:
    """The most useful and the most harmful demonstrations, from answers with one demonstration.

    None where no demonstration was shown to enough queries beside others.
    """
    queries = []
    demos = []
    scores = []
    for number, row in enumerate(rows):
        alone = (
            (row.sequences[:, 0] >= 0)
            & (row.sequences[:, 1:] < 0).all(dim=1)
            & ~row.accuracy.isnan()
        )  # (G,)
        shown = row.pool_rows[row.sequences[alone, 0]]
        queries += [number] * len(shown)
        demos += shown.tolist()
        scores += row.accuracy[alone].tolist()
    if not scores:
        return None
    try:
        found = audit(
            Measured.of(queries, demos, scores, len(table)),
            [str(item) for item in table.rows],
        )
    except DataError:  # every query was shown one demonstration only
        return None
    if found["demonstrations"] < 2 * ENDS:
        return None
    for end in ("useful", "harmful"):
        found[end] = found[end][:ENDS]
    return found


def write_distributions(
    folder: Path,
    stage: str,
    found: dict[str, Any],
) -> None:
    """`groups-<stage>.json` in a run folder, replaced at once."""
    path = folder / f"groups-{stage}.json"
    write_json(path, found)
