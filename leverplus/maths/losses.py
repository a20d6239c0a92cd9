"""Losses: one function an objective; log-probabilities, rewards and masks in, `LossParts` out.

B rows (one group each), G members, S steps, A actions. `steps` are step log-probabilities (B, G, S), `valid` marks the
steps that exist, `mask` (B, G) the members that exist. Every objective is a mean over the rows that take part; rows
without any signal take no part, unless a function says so. How many did is handed on, so that rows count alike
whatever a batch is cut into.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from leverplus.maths.advantages import rank as rank_advantage
from leverplus.maths.advantages import zscore


@dataclass(frozen=True)
class LossParts:
    """What to minimise, its named parts, numbers for the log, and over how many rows it is a mean."""

    total: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0


def row_mean(values: Tensor, rows: Tensor) -> Tensor:
    """Mean of (B,) values over the rows that take part; 0 with a zero gradient when there are none."""
    kept = torch.where(rows, values, torch.zeros_like(values))
    return kept.sum() / rows.sum().clamp(min=1)


def member_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the members that take part, (B, G) -> (B,)."""
    kept = torch.where(mask, values, torch.zeros_like(values))
    return kept.sum(-1) / mask.sum(-1).clamp(min=1)


def cross_entropy(
    steps: Tensor,
    valid: Tensor,
    weights: Tensor,
    table: Tensor | None = None,
    smoothing: float = 0.0,
) -> LossParts:
    """-sum_i w_i sum_t log pi(a_t): the negative log-likelihood of weighted sequences, summed over steps.

    With `smoothing` the label of a step is (1 - smoothing) on the action and the rest spread evenly over what is
    allowed; that needs the whole `table` (B, G, S, A).
    """
    nll = -torch.where(valid, steps, torch.zeros_like(steps))
    if smoothing > 0.0:
        if table is None:
            raise ValueError("label smoothing needs the table of log-probabilities")
        legal = table > -torch.inf
        even = -(table.masked_fill(~legal, 0.0).sum(-1) / legal.sum(-1).clamp(min=1))
        nll = (1.0 - smoothing) * nll + smoothing * torch.where(valid, even, torch.zeros_like(even))
    rows = (weights != 0).any(-1)
    total = row_mean((weights * nll.sum(-1)).sum(-1), rows)
    return LossParts(total, {"nll": total}, rows=int(rows.sum()))


def reward_weights(rewards: Tensor, mask: Tensor, temperature: float, scale: str = "raw", clamp: float = 3.0) -> Tensor:
    """softmax(R / T) over the members of each group, R raw, z-scored, clamped or ranked onto [0, 1]; (B, G)."""
    if scale == "zscore":
        rewards = zscore(rewards, mask, floor=1e-6)
    elif scale == "clamped":
        rewards = zscore(rewards, mask, floor=1e-6).clamp(-clamp, clamp)
    elif scale == "rank":
        rewards = (rank_advantage(rewards, mask) + 1.0) / 2.0
    elif scale != "raw":
        raise ValueError(f"unknown scale '{scale}'; known: raw, zscore, clamped, rank")
    logits = torch.where(mask, rewards / temperature, torch.full_like(rewards, -torch.inf))
    some = mask.any(-1, keepdim=True)
    return torch.softmax(torch.where(some, logits, torch.zeros_like(logits)), dim=-1) * mask


def rce(steps: Tensor, valid: Tensor, weights: Tensor, mask: Tensor, centred: bool = False) -> LossParts:
    """Reward-weighted cross-entropy: sum_i w_i CE_i; `centred` subtracts 1/G, so that bad members push away."""
    if centred:
        even = mask.to(weights.dtype) / mask.sum(-1, keepdim=True).clamp(min=1)
        weights = weights - even
    loss = cross_entropy(steps, valid, weights)
    return LossParts(loss.total, {"rce": loss.total}, rows=loss.rows)


@dataclass(frozen=True)
class Clip:
    """The range the ratio may move in: [1 - low, 1 + high], for each step or for the whole sequence."""

    low: float = 0.2
    high: float = 0.28
    level: str = "step"


def ppo_clip(
    steps: Tensor,
    old: Tensor,
    valid: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip: Clip,
    importance: Tensor | None = None,
) -> LossParts:
    """-mean min(ratio A, clip(ratio) A), ratio = exp(log pi - log old), for each step or for whole sequences.

    `mask` says which members take part; `importance` (B, G) multiplies each member (prox / mu, already truncated).
    """
    change = torch.where(valid, steps - old, torch.zeros_like(steps))
    gain = advantages if importance is None else advantages * importance
    if clip.level == "sequence":
        change, exists = change.sum(-1), mask
    elif clip.level == "step":
        exists, gain = valid & mask.unsqueeze(-1), gain.unsqueeze(-1).expand_as(change)
    else:
        raise ValueError(f"unknown clip level '{clip.level}'; known: step, sequence")
    ratio = change.exp()
    bounded = ratio.clamp(1.0 - clip.low, 1.0 + clip.high)
    objective = torch.minimum(ratio * gain, bounded * gain)
    per_member = objective if clip.level == "sequence" else member_mean(objective, exists)
    rows = mask.any(-1)
    total = -row_mean(member_mean(per_member, mask), rows)
    return LossParts(total, {"pg": total}, _clip_diagnostics(ratio.detach(), gain, exists, clip), int(rows.sum()))


def _clip_diagnostics(ratio: Tensor, gain: Tensor, exists: Tensor, clip: Clip) -> dict[str, float]:
    if not bool(exists.any()):
        return {}
    kept, side = ratio[exists], gain[exists]
    low = (kept < 1.0 - clip.low) & (side < 0)
    high = (kept > 1.0 + clip.high) & (side > 0)
    outside = (kept < 1.0 - clip.low) | (kept > 1.0 + clip.high)
    return {
        "ratio/mean": float(kept.mean()),
        "ratio/max": float(kept.max()),
        "clip_ratio/low_mean": float(low.to(kept.dtype).mean()),
        "clip_ratio/high_mean": float(high.to(kept.dtype).mean()),
        "clip_ratio/region_mean": float(outside.to(kept.dtype).mean()),
    }


def listwise(log_p: Tensor, rewards: Tensor, temperature: float, among: str = "tried") -> LossParts:
    """Cross-entropy between softmax(R / T) over the measured actions of a step and the policy; (..., A) each.

    NaN rewards were not measured. `tried`: the policy is renormalised over the measured actions, so that it is told
    nothing about the others. `pool`: the policy's whole distribution, which says that unmeasured actions are bad.
    `pairs`: no targets and no temperature; of two measured actions the better should be likelier, by its gap in reward.
    """
    rewards = rewards.to(log_p.dtype)  # a softmax in fewer digits would depend on how wide the pool is padded
    measured = ~torch.isnan(rewards) & (log_p > -torch.inf)
    if among == "pairs":
        return _listwise_pairs(log_p, rewards, measured)
    scaled = torch.where(measured, rewards / temperature, torch.full_like(rewards, -torch.inf))
    rows = measured.sum(-1) > 1
    target = torch.softmax(torch.where(rows.unsqueeze(-1), scaled, torch.zeros_like(scaled)), dim=-1)
    safe = torch.where(measured, log_p, torch.zeros_like(log_p))
    if among == "tried":
        floor = torch.where(measured, log_p, torch.full_like(log_p, -1e30))
        safe = torch.where(measured, log_p - torch.logsumexp(floor, -1, keepdim=True), torch.zeros_like(log_p))
    elif among != "pool":
        raise ValueError(f"unknown value '{among}'; known: tried, pool, pairs")
    total = row_mean(-(target * measured * safe).sum(-1), rows)
    return LossParts(total, {"listwise": total}, {"listwise/rows": float(rows.sum())}, int(rows.sum()))


def _listwise_pairs(log_p: Tensor, rewards: Tensor, measured: Tensor) -> LossParts:
    """Only the measured actions are paired: memory grows with the square of how many a step has, not of the pool."""
    most = int(measured.sum(-1).max()) if measured.numel() else 0
    places = measured.to(torch.uint8).argsort(-1, descending=True)[..., :most]
    mask = measured.gather(-1, places)
    scores, known = (
        torch.where(mask, values.gather(-1, places), torch.zeros_like(values[..., :1])) for values in (log_p, rewards)
    )
    found = pairwise(scores, known, mask, margin=0.0, beta=1.0, per="pair")
    diagnostics = {**found.diagnostics, "listwise/rows": float(found.rows)}
    return LossParts(found.total, {"listwise": found.total}, diagnostics, found.rows)


def pairwise(
    scores: Tensor,
    rewards: Tensor,
    mask: Tensor,
    *,
    margin: float = 0.25,
    beta: float = 0.1,
    weighting: str = "gap",
    per: str = "weight",
) -> LossParts:
    """-sum w_ij log sigma(beta (d_i - d_j)) / sum w over pairs of a group with r_i - r_j > margin.

    `scores` d (..., G) are log pi - log ref of whole sequences. Weights are the reward gap, or 1 (`even`). With `per`
    pair the sum is divided by the number of all pairs of a group instead, n (n - 1) / 2, so that a group counts by how
    far its rewards are apart and not as much as any other; a flat one then takes part, with nothing.
    """
    gap = rewards.unsqueeze(-1) - rewards.unsqueeze(-2)
    pairs = mask.unsqueeze(-1) & mask.unsqueeze(-2) & (gap > margin)
    if weighting not in ("gap", "even"):
        raise ValueError(f"unknown weighting '{weighting}'; known: gap, even")
    weight = torch.where(pairs, gap if weighting == "gap" else torch.ones_like(gap), torch.zeros_like(gap))
    difference = scores.unsqueeze(-1) - scores.unsqueeze(-2)
    safe = torch.where(pairs, difference, torch.zeros_like(difference))
    if per == "weight":
        size, rows = weight.sum((-1, -2)), pairs.any(-1).any(-1)
    elif per == "pair":
        count = mask.sum(-1)
        size, rows = (count * (count - 1) / 2).to(weight.dtype), count > 1
    else:
        raise ValueError(f"unknown value '{per}'; known: weight, pair")
    total = row_mean(-(weight * F.logsigmoid(beta * safe)).sum((-1, -2)) / size.clamp(min=1e-9), rows)
    diagnostics = {"pair/count": float(pairs.sum())}
    if bool(pairs.any()):
        kept = difference.detach()[pairs]
        diagnostics["pair/accuracy"] = float((kept > 0).to(kept.dtype).mean())
        diagnostics["pair/margin"] = float(kept.mean())
    return LossParts(total, {"pair": total}, diagnostics, int(rows.sum()))
