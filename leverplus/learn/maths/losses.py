"""Losses: one function per objective; log-probabilities, rewards and masks in, `LossParts` out.

B rows (one group each), G members, S steps, A actions. `steps` are step log-probabilities (B, G, S), `valid` marks the
steps that exist, `mask` (B, G) the members that exist. Every objective is a mean over the rows that take part; rows
without any signal take no part, unless a function says so. `LossParts.rows` says how many took part, so that a caller
who cuts a batch into parts can weigh each part by it and every row counts the same.

What does not exist is replaced by `torch.where` before it enters a product or a sum, here and everywhere below: a
masked entry may be -inf or NaN, and multiplying it by 0 would give NaN in the loss or its gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from leverplus.learn.maths.advantages import rank as rank_advantage
from leverplus.learn.maths.advantages import zscore


@dataclass(frozen=True)
class LossParts:
    """The loss to minimise, its named parts, numbers for the log, and the number of rows that it is a mean over."""

    total: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0


def row_mean(
    values: Tensor,
    rows: Tensor,
) -> Tensor:
    """Mean of (B,) values over the rows that take part; 0 with a zero gradient when there are none."""
    kept = torch.where(rows, values, torch.zeros_like(values))  # (B,)
    return kept.sum() / rows.sum().clamp(min=1)


def member_mean(
    values: Tensor,
    mask: Tensor,
) -> Tensor:
    """Mean over the members that take part, (B, G) -> (B,), or over the steps that exist, (B, G, S) -> (B, G)."""
    kept = torch.where(mask, values, torch.zeros_like(values))
    return kept.sum(-1) / mask.sum(-1).clamp(min=1)


def cross_entropy(
    steps: Tensor,
    valid: Tensor,
    weights: Tensor,
) -> LossParts:
    """-sum_i w_i sum_t log pi(a_t): the negative log-likelihood of weighted sequences, summed over steps."""
    nll = -torch.where(valid, steps, torch.zeros_like(steps))  # (B, G, S)
    rows = (weights != 0).any(-1)  # (B,)
    per_row = (weights * nll.sum(-1)).sum(-1)  # (B,)
    total = row_mean(per_row, rows)
    return LossParts(total, {"nll": total}, rows=int(rows.sum()))


def reward_weights(
    rewards: Tensor,
    mask: Tensor,
    temperature: float,
    scale: str = "raw",
    clamp: float = 3.0,
) -> Tensor:
    """softmax(R / T) over the members of each group, (B, G); R is raw, z-scored, clamped or ranked onto [0, 1]."""
    if scale == "zscore":
        rewards = zscore(
            rewards, mask, floor=1e-6
        )  # the floor only guards against a division by zero
    elif scale == "clamped":
        rewards = zscore(rewards, mask, floor=1e-6).clamp(-clamp, clamp)
    elif scale == "rank":
        rewards = (rank_advantage(rewards, mask) + 1.0) / 2.0
    elif scale != "raw":
        raise ValueError(f"unknown scale '{scale}'; known: raw, zscore, clamped, rank")
    logits = torch.where(
        mask, rewards / temperature, torch.full_like(rewards, -torch.inf)
    )  # (B, G)
    # a group without members would be a softmax of -inf only, which is NaN
    any_member = mask.any(-1, keepdim=True)  # (B, 1)
    logits = torch.where(any_member, logits, torch.zeros_like(logits))
    return torch.softmax(logits, dim=-1) * mask


def rce(
    steps: Tensor,
    valid: Tensor,
    weights: Tensor,
    mask: Tensor,
    centred: bool = False,
) -> LossParts:
    """Reward-weighted cross-entropy (RCE): sum_i w_i CE_i.

    Weights of a group sum to 1, so the policy imitates even the members of a group that is all wrong. `centred`
    subtracts 1/G from each weight, so that members below the average become less likely.
    """
    if centred:
        uniform = mask.to(weights.dtype) / mask.sum(-1, keepdim=True).clamp(
            min=1
        )  # (B, G)
        weights = weights - uniform
    loss = cross_entropy(steps, valid, weights)
    return LossParts(loss.total, {"rce": loss.total}, rows=loss.rows)


@dataclass(frozen=True)
class Clip:
    """The range the ratio may move in: [1 - low, 1 + high], for each step or for the whole sequence.

    0.2 and 0.28 are the values of DAPO (arXiv 2503.14476, "clip-higher"): the wider upper side lets rare actions grow.
    """

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
    """-mean min(ratio A, clip(ratio) A), ratio = exp(log pi - log old), for each step or for whole sequences (PPO).

    `mask` says which members take part; `importance` (B, G) multiplies each member (prox / mu, already truncated).
    """
    log_ratio = torch.where(valid, steps - old, torch.zeros_like(steps))  # (B, G, S)
    gain = advantages if importance is None else advantages * importance  # (B, G)
    if clip.level == "sequence":
        log_ratio = log_ratio.sum(-1)  # (B, G)
        exists = mask  # (B, G)
    elif clip.level == "step":
        exists = valid & mask.unsqueeze(-1)  # (B, G, S)
        gain = gain.unsqueeze(-1).expand_as(
            log_ratio
        )  # (B, G, S): every step gets its sequence's advantage
    else:
        raise ValueError(f"unknown clip level '{clip.level}'; known: step, sequence")
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - clip.low, 1.0 + clip.high)
    objective = torch.minimum(ratio * gain, bounded * gain)  # (B, G, S) or (B, G)
    per_member = (
        objective if clip.level == "sequence" else member_mean(objective, exists)
    )  # (B, G)
    rows = mask.any(-1)  # (B,)
    total = -row_mean(member_mean(per_member, mask), rows)
    diagnostics = _clip_diagnostics(ratio.detach(), gain, exists, clip)
    return LossParts(total, {"pg": total}, diagnostics, int(rows.sum()))


def _clip_diagnostics(
    ratio: Tensor,
    gain: Tensor,
    exists: Tensor,
    clip: Clip,
) -> dict[str, float]:
    """Mean and largest ratio, and the shares of ratios outside the range, under the names that TRL logs them by."""
    if not bool(exists.any()):
        return {}
    kept = ratio[exists]
    kept_gain = gain[exists]
    below = kept < 1.0 - clip.low
    above = kept > 1.0 + clip.high
    # a ratio loses its gradient only where the advantage would move it further out of the range
    low = below & (kept_gain < 0)
    high = above & (kept_gain > 0)
    outside = below | above
    return {
        "ratio/mean": float(kept.mean()),
        "ratio/max": float(kept.max()),
        "clip_ratio/low_mean": float(low.to(kept.dtype).mean()),
        "clip_ratio/high_mean": float(high.to(kept.dtype).mean()),
        "clip_ratio/region_mean": float(outside.to(kept.dtype).mean()),
    }


def listwise(
    log_p: Tensor,
    rewards: Tensor,
    temperature: float,
    among: str = "tried",
) -> LossParts:
    """Cross-entropy between softmax(R / T) over the measured actions of a step and the policy; (..., A) each.

    NaN rewards were not measured. `tried`: the policy is renormalised over the measured actions, so that it is told
    nothing about the others. `pool`: the policy's whole distribution, which says that unmeasured actions are bad.
    `pairs`: no targets and no temperature; of two measured actions the better should be likelier, by its gap in reward.
    """
    rewards = rewards.to(
        log_p.dtype
    )  # a softmax in fewer digits would depend on how wide the pool is padded
    measured = ~torch.isnan(rewards) & (log_p > -torch.inf)  # (..., A)
    if among == "pairs":
        return _listwise_pairs(log_p, rewards, measured)
    rows = measured.sum(-1) > 1  # (...,): one measured action alone prefers nothing
    scaled = torch.where(
        measured, rewards / temperature, torch.full_like(rewards, -torch.inf)
    )
    scaled = torch.where(
        rows.unsqueeze(-1), scaled, torch.zeros_like(scaled)
    )  # a softmax of -inf only is NaN
    target = torch.softmax(scaled, dim=-1)  # (..., A)
    log_policy = torch.where(measured, log_p, torch.zeros_like(log_p))  # (..., A)
    if among == "tried":
        # -1e30 and not -inf: logsumexp over -inf only has a NaN gradient
        only_measured = torch.where(measured, log_p, torch.full_like(log_p, -1e30))
        log_mass = torch.logsumexp(only_measured, -1, keepdim=True)  # (..., 1)
        log_policy = torch.where(measured, log_p - log_mass, torch.zeros_like(log_p))
    elif among != "pool":
        raise ValueError(f"unknown value '{among}'; known: tried, pool, pairs")
    per_row = -(target * measured * log_policy).sum(-1)  # (...,)
    total = row_mean(per_row, rows)
    return LossParts(
        total,
        {"listwise": total},
        {"listwise/rows": float(rows.sum())},
        int(rows.sum()),
    )


def _listwise_pairs(
    log_p: Tensor,
    rewards: Tensor,
    measured: Tensor,
) -> LossParts:
    """`pairwise` among the measured actions of each step.

    The measured actions are gathered first, so that memory grows with the square of their number M and not with the
    square of the pool's size.
    """
    most = int(measured.sum(-1).max()) if measured.numel() else 0  # M
    places = measured.to(torch.uint8).argsort(-1, descending=True)[
        ..., :most
    ]  # (..., M), the measured ones first
    mask = measured.gather(-1, places)  # (..., M), False where a step has fewer than M
    none = torch.zeros_like(log_p[..., :1])
    scores = torch.where(mask, log_p.gather(-1, places), none)  # (..., M)
    known = torch.where(mask, rewards.gather(-1, places), none)  # (..., M), without NaN
    found = pairwise(
        scores,
        known,
        mask,
        margin=0.0,
        beta=1.0,
        per="pair",
    )
    diagnostics = {**found.diagnostics, "listwise/rows": float(found.rows)}
    return LossParts(found.total, {"listwise": found.total}, diagnostics, found.rows)


def pairwise(
    scores: Tensor,
    rewards: Tensor,
    mask: Tensor,
    *,
    margin: float = 0.25,
    beta: float = 0.1,
    per: str = "weight",
) -> LossParts:
    """-sum w_ij log sigma(beta (d_i - d_j)) / sum w over pairs of a group with r_i - r_j > margin (DPO on pairs).

    `scores` d (..., G) are log pi - log ref of whole sequences. Weights w are the reward gap. With
    `per = "pair"` the sum is divided by the number of all pairs of a group instead, n (n - 1) / 2: then groups whose
    rewards lie far apart count more, and a flat group takes part with a loss of 0.
    """
    gap = rewards.unsqueeze(-1) - rewards.unsqueeze(-2)  # (..., G, G), r_i - r_j
    pairs = mask.unsqueeze(-1) & mask.unsqueeze(-2) & (gap > margin)  # (..., G, G)
    weight = torch.where(pairs, gap, torch.zeros_like(gap))  # (..., G, G)
    difference = scores.unsqueeze(-1) - scores.unsqueeze(-2)  # (..., G, G), d_i - d_j
    preferred = torch.where(pairs, difference, torch.zeros_like(difference))
    if per == "weight":
        divisor = weight.sum((-1, -2))  # (...,)
        rows = pairs.any(-1).any(-1)  # (...,)
    elif per == "pair":
        count = mask.sum(-1)  # (...,)
        divisor = (count * (count - 1) / 2).to(weight.dtype)
        rows = count > 1
    else:
        raise ValueError(f"unknown value '{per}'; known: weight, pair")
    summed = -(weight * F.logsigmoid(beta * preferred)).sum((-1, -2))  # (...,)
    total = row_mean(summed / divisor.clamp(min=1e-9), rows)
    diagnostics = {"pair/count": float(pairs.sum())}
    if bool(pairs.any()):
        kept = difference.detach()[pairs]
        diagnostics["pair/accuracy"] = float((kept > 0).to(kept.dtype).mean())
        diagnostics["pair/margin"] = float(kept.mean())
    return LossParts(total, {"pair": total}, diagnostics, int(rows.sum()))


def info_nce(
    scores: Tensor,
    likeness: Tensor,
    mask: Tensor,
    *,
    positives: int,
    margin: float,
) -> LossParts:
    """-mean log(e^s_i / (e^s_i + sum_j e^s_j)) over the likest members i, j those less alike by `margin` (InfoNCE).

    `scores` (B, G) may be shifted by any constant of a row. The `positives` likest members of a row are learnt from,
    each weighed by its likeness; members nearly as alike as i count neither for nor against it.
    """
    known = torch.where(mask, likeness, torch.full_like(likeness, -torch.inf))  # (B, G)
    count = min(positives, likeness.shape[-1])
    values, places = known.topk(count, dim=-1)  # (B, P)
    own = scores.gather(1, places)  # (B, P)
    against = known.unsqueeze(1) <= values.unsqueeze(-1) - margin  # (B, P, G)
    against = against & mask.unsqueeze(1)
    takes_part = against.any(-1) & mask.gather(1, places) & (values > 0.0)  # (B, P)
    # -1e30 and not -inf: logsumexp over -inf only has a NaN gradient
    others = scores.unsqueeze(1).masked_fill(~against, -1e30)  # (B, P, G)
    total_mass = torch.logaddexp(own, torch.logsumexp(others, dim=-1))  # (B, P)
    weight = torch.where(takes_part, values, torch.zeros_like(values))  # (B, P)
    surprise = torch.where(takes_part, total_mass - own, torch.zeros_like(own))
    per_row = (weight * surprise).sum(-1) / weight.sum(-1).clamp(min=1e-9)  # (B,)
    rows = takes_part.any(-1)  # (B,)
    total = row_mean(per_row, rows)
    ahead = takes_part & (own > others.amax(-1))  # (B, P)
    hits = float(ahead.sum() / takes_part.sum().clamp(min=1))
    diagnostics = {"contrastive/ahead": hits}
    return LossParts(total, {"info_nce": total}, diagnostics, int(rows.sum()))
