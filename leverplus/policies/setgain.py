"""Set gain: how much one more demonstration adds to a set, in redundancy, coverage and volume; tensors in and out.

These are the terms a selector adds to its logits from the second step on; K candidates, M topics, S shots.
"""

from __future__ import annotations

import torch
from torch import Tensor


def redundancy_max(previous: Tensor, similarity: Tensor, first: bool) -> Tensor:
    """The largest similarity of each candidate to what is chosen so far, updated by one more choice."""
    return similarity if first else torch.maximum(previous, similarity)


def redundancy_mean(previous: Tensor, similarity: Tensor, chosen: int) -> Tensor:
    """The mean similarity of each candidate to what is chosen so far (`chosen` before this choice), updated by one."""
    return (previous * chosen + similarity) / (chosen + 1)


def coverage_gain(need: Tensor, covered: Tensor, topics: Tensor) -> Tensor:
    """sum_m need_m (1 - covered_m) T_{k,m}: how much of the needed, uncovered topics a candidate brings.

    `need` and `covered` are (..., M), `topics` is (..., K, M); the result is (..., K).
    """
    missing = need * (1.0 - covered)  # (..., M)
    return (topics * missing.unsqueeze(-2)).sum(-1)


def volume_gain(similarity: Tensor, epsilon: float = 1e-6) -> Tensor:
    """log(epsilon + 1 - min(s^2, 0.999)) with s the largest similarity to a chosen item: the pair bound of a DPP."""
    return torch.log(epsilon + 1.0 - similarity.square().clamp(max=0.999))


def volume_step(residual: Tensor, factors: Tensor, row: Tensor, chosen: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """One step of the greedy Cholesky of a DPP: the variance of every candidate that the chosen ones leave unexplained.

    `residual` (..., K) starts as the diagonal of the kernel, `factors` (..., K, S) as zeros; `row` (..., K) is the
    kernel row of the item `chosen` (...,). log(residual_k) is log det(L_{S+k}) - log det(L_S), exactly (fast greedy MAP
    inference, Chen, Zhang and Zhou 2018, arXiv 1709.05135).
    """
    index = chosen.unsqueeze(-1)  # (..., 1)
    own_index = index.unsqueeze(-1).expand(*index.shape, factors.shape[-1])  # (..., 1, S)
    own = torch.gather(factors, -2, own_index)  # (..., 1, S), the factors of the chosen item
    # a choice that earlier ones explain fully has residual 0; the clamp keeps the division finite
    scale = torch.gather(residual, -1, index).clamp(min=1e-6).sqrt()  # (..., 1)
    column = (row - (factors * own).sum(-1)) / scale  # (..., K), the new column of the Cholesky factor
    # added through a one-hot and not assigned: autograd needs the earlier factors unchanged
    slot = torch.nn.functional.one_hot(torch.tensor(step, device=row.device), factors.shape[-1]).to(row.dtype)  # (S,)
    return residual - column.square(), factors + column.unsqueeze(-1) * slot
