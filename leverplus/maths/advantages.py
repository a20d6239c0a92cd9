"""Advantages: how much better a member is than its own group; (B, G) rewards and a mask in, (B, G) out.

Every function works on the whole group and returns 0 where the mask is False and in groups without spread.
Sub-selecting members by reward *before* the baseline destroys the signal (the best of a group are tied), so it exists
only as `top_members`, applied before on purpose by a setting that says so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leverplus.maths.signal import FLAT


def moments(rewards: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and population standard deviation of each group, each (B, 1)."""
    weight = mask.to(rewards.dtype)
    count = weight.sum(-1, keepdim=True)
    safe = torch.where(mask, rewards, torch.zeros_like(rewards))
    mean = safe.sum(-1, keepdim=True) / count.clamp(min=1.0)
    deviation = torch.where(mask, rewards - mean, torch.zeros_like(rewards))
    spread = (deviation.square().sum(-1, keepdim=True) / count.clamp(min=1.0)).sqrt()
    return count, mean, spread


def live_groups(rewards: Tensor, mask: Tensor, tolerance: float = FLAT) -> Tensor:
    """Which groups have any spread at all, (B,) bool; the others carry no preference."""
    high = torch.where(mask, rewards, torch.full_like(rewards, -torch.inf)).amax(-1)
    low = torch.where(mask, rewards, torch.full_like(rewards, torch.inf)).amin(-1)
    return (high - low > tolerance) & mask.any(-1)


def _finish(advantages: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
    keep = mask & live_groups(rewards, mask).unsqueeze(-1)
    return torch.where(keep, advantages, torch.zeros_like(advantages))


def centred(rewards: Tensor, mask: Tensor, floor: float = 0.1) -> Tensor:  # noqa: ARG001 one signature for the table
    """r - mean of the group."""
    _, mean, _ = moments(rewards, mask)
    return _finish(rewards - mean, rewards, mask)


def zscore(rewards: Tensor, mask: Tensor, floor: float = 0.1) -> Tensor:
    """(r - mean) / max(std, floor): unit spread, except that a nearly flat group is not blown up."""
    _, mean, spread = moments(rewards, mask)
    return _finish((rewards - mean) / spread.clamp(min=floor), rewards, mask)


def zscore_sample(rewards: Tensor, mask: Tensor, floor: float = 0.1) -> Tensor:
    """(r - mean) / max(std, floor) with the n - 1 deviation, as the earlier code took it (`torch.std`)."""
    count, mean, spread = moments(rewards, mask)
    sample = spread * (count / (count - 1.0).clamp(min=1.0)).sqrt()
    return _finish((rewards - mean) / sample.clamp(min=floor), rewards, mask)


def leave_one_out(rewards: Tensor, mask: Tensor, floor: float = 0.1) -> Tensor:  # noqa: ARG001
    """r - mean of the *other* members (RLOO): the baseline does not contain the reward it judges."""
    count, mean, _ = moments(rewards, mask)
    return _finish((rewards - mean) * count / (count - 1.0).clamp(min=1.0), rewards, mask)


def rank(rewards: Tensor, mask: Tensor, floor: float = 0.1) -> Tensor:  # noqa: ARG001
    """Rank in the group onto [-1, 1], tied members share the mean of their ranks, so ties get equal advantages."""
    pair = mask.unsqueeze(-1) & mask.unsqueeze(-2)
    below = ((rewards.unsqueeze(-2) < rewards.unsqueeze(-1)) & pair).sum(-1)
    equal = ((rewards.unsqueeze(-2) == rewards.unsqueeze(-1)) & pair).sum(-1)
    position = below.to(rewards.dtype) + (equal.to(rewards.dtype) - 1.0) / 2.0
    last = mask.sum(-1, keepdim=True).to(rewards.dtype) - 1.0
    return _finish(2.0 * position / last.clamp(min=1.0) - 1.0, rewards, mask)


def scale_over_batch(advantages: Tensor, mask: Tensor, floor: float = 0.05) -> Tensor:
    """Divide by one standard deviation of the whole batch: removes the scale, keeps differences between queries."""
    active = advantages[mask]
    if active.numel() == 0:
        return advantages
    return advantages / active.std(correction=0).clamp(min=floor)


def top_members(rewards: Tensor, mask: Tensor, count: int) -> Tensor:
    """The mask of the `count` members with the highest reward of each group, earlier members first among ties."""
    if count >= rewards.shape[-1]:
        return mask
    ordered = torch.where(mask, rewards, torch.full_like(rewards, -torch.inf))
    index = ordered.argsort(dim=-1, descending=True, stable=True)[..., :count]
    chosen = torch.zeros_like(mask).scatter(-1, index, True)
    return chosen & mask
