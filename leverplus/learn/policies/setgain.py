"""Set gain: how much one more demonstration adds to a set, in redundancy, coverage and volume; tensors in and out.

These are the terms a selector adds to its logits from the second step on; K candidates, M topics, S shots.
"""

from __future__ import annotations

import torch
from torch import Tensor


def coverage_gain(
    need: Tensor,
    covered: Tensor,
    topics: Tensor,
) -> Tensor:
    """sum_m need_m (1 - covered_m) T_{k,m}: how much of the needed, uncovered topics a candidate brings.

    `need` and `covered` are (..., M), `topics` is (..., K, M); the result is (..., K).
    """
    missing = need * (1.0 - covered)  # (..., M)
    return (topics * missing.unsqueeze(-2)).sum(-1)


def volume_gain(similarity: Tensor, epsilon: float = 1e-6) -> Tensor:
    """log(epsilon + 1 - min(s^2, 0.999)) with s the largest similarity to a chosen item: the pair bound of a DPP."""
    return torch.log(epsilon + 1.0 - similarity.square().clamp(max=0.999))
