"""Measures of training: means over batches, values by place, gradients of terms, how far weights and picks moved."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from leverplus.learn.data.batch import GroupBatch
from leverplus.learn.policies.base import Policy
from leverplus.learn.stages import Progress, Stage

TERMS = {"pg": "policy"}
"""Terms whose gradient has another name than their loss."""


class BatchMeans:
    """Means of what batches said, weighted by their size; the largest for names that end in /max."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float]] = {}
        self.last: dict[str, float] = {}

    def add(
        self,
        values: Mapping[str, float],
        weight: int,
    ) -> None:
        for name, value in values.items():
            total, count = self.sums.get(name, (0.0, 0.0))
            if name.endswith(("/max", "_max")):
                self.sums[name] = (max(total, value) if count else value, 1.0)
            else:
                self.sums[name] = (total + weight * value, count + weight)

    def means(self) -> dict[str, float]:
        return {
            **{name: total / count for name, (total, count) in self.sums.items()},
            **self.last,
        }


def relative_change(
    before: Mapping[str, Tensor],
    policy: Policy,
) -> float:
    """Norm of the change of all weights / their norm before."""
    change = 0.0
    for name, value in policy.state_dict().items():
        change += float((value.cpu() - before[name]).square().sum())
    size = sum(float(value.square().sum()) for value in before.values())
    return math.sqrt(change / max(size, 1e-12))


def compare_picks(
    before: Tensor,
    after: Tensor,
    probe: GroupBatch,
) -> dict[str, float]:
    """How many probe queries changed their picks, and how many different demonstrations are picked."""
    rows = torch.gather(
        probe.features.pool, 1, after.clamp(min=0)
    )  # (B, S) picks as rows of the item table
    return {
        "picks/changed_frac": float((before != after).any(-1).float().mean()),
        "picks/unique_demos": float(len(torch.unique(rows))),
    }


@torch.no_grad()
def by_position(
    name: str,
    values: Tensor,
    exists: Tensor,
) -> dict[str, float]:
    """Means of (B, G, S) at each place of the list over the members that have it: name/step1, name/step2, ..."""
    counts = exists.sum((0, 1))  # (S,)
    sums = torch.where(exists, values, torch.zeros_like(values)).sum((0, 1))  # (S,)
    means = (sums / counts.clamp(min=1)).tolist()
    return {
        f"{name}/step{step}": means[step - 1]
        for step, count in enumerate(counts.tolist(), 1)
        if count
    }


def term_gradients(
    stage: Stage[Any],
    policy: Policy,
    batch: GroupBatch,
    progress: Progress,
) -> dict[str, float]:
    """Norm of the gradient of each weighted term of a loss, without dropout; the stage itself is left as it was."""
    # a loss may count or adapt something in its stage: this one must leave no trace
    aside = copy.copy(stage)
    aside.numbers = dict(stage.numbers)
    parts = aside.loss(policy.eval(), batch, progress).parts
    trained = [own for own in policy.parameters() if own.requires_grad]
    found = {}
    for name, part in parts.items():
        if not part.requires_grad:
            continue
        slopes = torch.autograd.grad(
            part,
            trained,
            retain_graph=True,
            allow_unused=True,
        )
        squared = 0.0
        for slope in slopes:
            if slope is not None:
                squared += float(slope.square().sum())
        found[f"grad/{TERMS.get(name, name)}"] = math.sqrt(squared)
    return found
