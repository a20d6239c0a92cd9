"""How far the weights of two selectors lie apart, in all and part by part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from leverplus.errors import CheckpointError
from leverplus.learn.checkpoint import tensors_of
from leverplus.learn.policies.base import Policy


@dataclass(frozen=True)
class Distance:
    """`relative` is |b - a| / |a| (2-norms); `mean` and `largest` are of the absolute changes of single weights."""

    weights: int
    relative: float
    mean: float
    largest: float

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def weight_distances(
    first: Policy,
    second: Policy,
) -> dict[str, Distance]:
    """The distance of all weights under "all", then of every part by name; selectors of other shapes are refused."""
    left = tensors_of(first)
    right = tensors_of(second)
    for name in sorted(left.keys() | right.keys()):
        known = name in left and name in right
        if not known or left[name].shape != right[name].shape:
            raise CheckpointError(
                f"the two selectors have other shapes ({name} differs), so their weights cannot be subtracted; "
                "compare checkpoints of the same `[select]` section"
            )
    found = {"all": _distance(left, right, list(left))}
    for part, names in first.named_groups().items():
        if set(names) <= set(left):
            found[part] = _distance(left, right, names)
    return found


def _distance(
    left: Mapping[str, Tensor],
    right: Mapping[str, Tensor],
    names: list[str],
) -> Distance:
    base = torch.cat([left[name].double().flatten() for name in names])  # (weights,)
    change = torch.cat([right[name].double().flatten() for name in names]) - base
    size = float(base.norm())
    moved = float(change.norm())
    relative = 0.0
    if moved:  # from weights that were all zero any change is infinitely far
        relative = moved / size if size else math.inf
    return Distance(
        base.numel(), relative, float(change.abs().mean()), float(change.abs().max())
    )
