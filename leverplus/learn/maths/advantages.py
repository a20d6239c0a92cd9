"""Advantages: how much better a member is than its own group; (B, G) rewards and a mask in, (B, G) out.

Every function works on the whole group and returns 0 where the mask is False and in groups without spread.
Keeping only the members with the highest reward *before* the baseline destroys the signal, because the best of a group
are tied. The earlier code did so; here it happens only where a recipe sets `grpo.topk_before_advantage`.

B queries (one group each), G members of a group. All functions of the table take the same three arguments; `floor` is
the least standard deviation to divide by, and has no effect on those that divide by none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leverplus.learn.maths.signal import FLAT


def moments(
    rewards: Tensor,
    mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and population standard deviation of each group, each (B, 1)."""
    count = mask.to(rewards.dtype).sum(-1, keepdim=True)  # (B, 1)
    divisor = count.clamp(min=1.0)  # an empty group has mean 0 instead of 0 / 0
    # where, not a product with the mask: a padded member may hold NaN, and NaN * 0 is NaN
    known = torch.where(mask, rewards, torch.zeros_like(rewards))  # (B, G)
    mean = known.sum(-1, keepdim=True) / divisor  # (B, 1)
    deviation = torch.where(mask, rewards - mean, torch.zeros_like(rewards))  # (B, G)
    variance = deviation.square().sum(-1, keepdim=True) / divisor  # (B, 1)
    return count, mean, variance.sqrt()


def live_groups(
    rewards: Tensor,
    mask: Tensor,
    tolerance: float = FLAT,
) -> Tensor:
    """Which groups have rewards that differ, (B,) bool; the others say nothing about which member is better."""
    high = torch.where(mask, rewards, torch.full_like(rewards, -torch.inf)).amax(
        -1
    )  # (B,)
    low = torch.where(mask, rewards, torch.full_like(rewards, torch.inf)).amin(
        -1
    )  # (B,)
    return (high - low > tolerance) & mask.any(-1)


def _zero_where_flat(
    advantages: Tensor,
    rewards: Tensor,
    mask: Tensor,
) -> Tensor:
    """The advantages (B, G) with 0 for absent members and for every member of a flat group."""
    keep = mask & live_groups(rewards, mask).unsqueeze(-1)  # (B, G)
    return torch.where(keep, advantages, torch.zeros_like(advantages))


def centred(
    rewards: Tensor,
    mask: Tensor,
    floor: float = 0.1,  # noqa: ARG001
) -> Tensor:
    """r - mean of the group (Dr. GRPO, arXiv 2503.20783): no division, which would favour easy and hard queries."""
    _, mean, _ = moments(rewards, mask)
    return _zero_where_flat(rewards - mean, rewards, mask)


def zscore(
    rewards: Tensor,
    mask: Tensor,
    floor: float = 0.1,
) -> Tensor:
    """(r - mean) / max(std, floor) (GRPO): unit spread, except that a nearly flat group is not blown up."""
    _, mean, spread = moments(rewards, mask)
    standardised = (rewards - mean) / spread.clamp(min=floor)  # (B, G)
    return _zero_where_flat(standardised, rewards, mask)


def zscore_sample(
    rewards: Tensor,
    mask: Tensor,
    floor: float = 0.1,
) -> Tensor:
    """(r - mean) / max(std, floor) with the n - 1 deviation, as the earlier code computed it (`torch.std`)."""
    count, mean, spread = moments(rewards, mask)
    correction = (
        count / (count - 1.0).clamp(min=1.0)
    ).sqrt()  # (B, 1), from dividing by n to dividing by n - 1
    sample_spread = spread * correction
    standardised = (rewards - mean) / sample_spread.clamp(min=floor)  # (B, G)
    return _zero_where_flat(standardised, rewards, mask)


def leave_one_out(
    rewards: Tensor,
    mask: Tensor,
    floor: float = 0.1,  # noqa: ARG001
) -> Tensor:
    """r - mean of the *other* members (RLOO, arXiv 2402.14740): the baseline does not contain the reward it judges."""
    count, mean, _ = moments(rewards, mask)
    # r_i - mean of the others = (r_i - mean of all) n / (n - 1)
    advantages = (rewards - mean) * count / (count - 1.0).clamp(min=1.0)  # (B, G)
    return _zero_where_flat(advantages, rewards, mask)


def rank(
    rewards: Tensor,
    mask: Tensor,
    floor: float = 0.1,  # noqa: ARG001
) -> Tensor:
    """Rank in the group, scaled to [-1, 1]; tied members share the mean of their ranks, so ties stay ties."""
    both_exist = mask.unsqueeze(-1) & mask.unsqueeze(-2)  # (B, G, G)
    own, other = rewards.unsqueeze(-1), rewards.unsqueeze(-2)  # (B, G, 1) and (B, 1, G)
    below = ((other < own) & both_exist).sum(-1)  # (B, G)
    equal = ((other == own) & both_exist).sum(-1)  # (B, G), the member itself included
    position = (
        below.to(rewards.dtype) + (equal.to(rewards.dtype) - 1.0) / 2.0
    )  # (B, G), 0 for the lowest
    last = (
        mask.sum(-1, keepdim=True).to(rewards.dtype) - 1.0
    )  # (B, 1), the position of the highest
    scaled = 2.0 * position / last.clamp(min=1.0) - 1.0
    return _zero_where_flat(scaled, rewards, mask)


def scale_over_batch(
    advantages: Tensor,
    mask: Tensor,
    floor: float = 0.05,
) -> Tensor:
    """Divides by one standard deviation of the whole batch: removes the scale, keeps differences between queries.

    Dividing by each group's own deviation instead would weigh a query by how hard it is (Lite-PPO, arXiv 2508.08221).
    """
    active = advantages[mask]  # (members that exist,)
    if active.numel() == 0:
        return advantages
    return advantages / active.std(correction=0).clamp(min=floor)


def top_members(
    rewards: Tensor,
    mask: Tensor,
    count: int,
) -> Tensor:
    """The mask (B, G) of the `count` members with the highest reward of each group, earlier ones first among ties."""
    if count >= rewards.shape[-1]:
        return mask
    ordered = torch.where(
        mask, rewards, torch.full_like(rewards, -torch.inf)
    )  # (B, G), absent members come last
    index = ordered.argsort(
        dim=-1,
        descending=True,
        stable=True,
    )[..., :count]  # (B, count)
    chosen = torch.zeros_like(mask).scatter(-1, index, True)  # (B, G)
    return (
        chosen & mask
    )  # a group with fewer members than `count` also scattered absent ones
