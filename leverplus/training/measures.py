"""Measures of training: means over batches, how far the weights moved, how many picks changed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from leverplus.policies.base import Policy
from leverplus.training.groups import GroupBatch


class Meter:
    """Means of what batches said, weighted by their size; the largest for names that end in /max."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float]] = {}
        self.last: dict[str, float] = {}

    def add(self, values: Mapping[str, float], weight: int) -> None:
        for name, value in values.items():
            total, count = self.sums.get(name, (0.0, 0.0))
            if name.endswith(("/max", "_max")):
                self.sums[name] = (max(total, value) if count else value, 1.0)
            else:
                self.sums[name] = (total + weight * value, count + weight)

    def means(self) -> dict[str, float]:
        return {**{name: total / count for name, (total, count) in self.sums.items()}, **self.last}


def moved(before: Mapping[str, Tensor], policy: Policy) -> float:
    """Norm of the change of all weights / their norm before."""
    change = sum(float((value.cpu() - before[name]).square().sum()) for name, value in policy.state_dict().items())
    size = sum(float(value.square().sum()) for value in before.values())
    return math.sqrt(change / max(size, 1e-12))


def compare_picks(before: Tensor, after: Tensor, probe: GroupBatch) -> dict[str, float]:
    """How many probe queries changed their picks, and how many different demonstrations are picked."""
    rows = torch.gather(probe.features.pool, 1, after.clamp(min=0))
    return {
        "picks/changed_frac": float((before != after).any(-1).float().mean()),
        "picks/unique_demos": float(len(torch.unique(rows))),
    }
