"""Divergences between two policies over one pool: exact, and the sampled estimators for comparison.

Log-probabilities are in nats. Tables are (..., A) over the A actions of a step, -inf where an action is not allowed;
both policies see the same mask. With a pool of 64 the exact value is as cheap as an estimate, so the estimators serve
only to study them. k1, k2 and k3 are named as in Schulman's note "Approximating KL Divergence" (2020).
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked_log_softmax(logits: Tensor) -> Tensor:
    """Log-softmax over the last axis where -inf marks what is not allowed; a row with nothing allowed stays -inf."""
    legal = logits > -torch.inf  # (..., A)
    any_legal = legal.any(-1, keepdim=True)  # (..., 1)
    # a row of -inf only would become NaN, forwards and backwards: it goes in as zeros and comes out as -inf
    defined = torch.where(any_legal, logits, torch.zeros_like(logits))
    return torch.log_softmax(defined, dim=-1).masked_fill(~legal, -torch.inf)


def categorical_kl(
    log_p: Tensor,
    log_q: Tensor,
) -> Tensor:
    """Exact KL(p || q) = sum_a p (log p - log q) over the last axis, (..., A) -> (...)."""
    legal = log_p > -torch.inf
    # masked entries leave before the product: 0 * (-inf - -inf) is NaN, and so is its gradient
    safe_p = log_p.masked_fill(~legal, 0.0)
    safe_q = log_q.masked_fill(~legal, 0.0)
    terms = safe_p.exp() * (safe_p - safe_q)  # (..., A)
    return terms.masked_fill(~legal, 0.0).sum(-1)


def entropy(log_p: Tensor) -> Tensor:
    """Exact entropy of the last axis in nats, (..., A) -> (...)."""
    legal = log_p > -torch.inf
    safe = log_p.masked_fill(~legal, 0.0)  # 0 * -inf is NaN, as above
    terms = safe.exp() * safe  # (..., A)
    return -terms.masked_fill(~legal, 0.0).sum(-1)


def total_variation(
    log_p: Tensor,
    log_q: Tensor,
) -> Tensor:
    """Half the summed absolute difference of the probabilities of the last axis, (..., A) -> (...)."""
    return 0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1)


def k1(
    log_p: Tensor,
    log_q: Tensor,
) -> Tensor:
    """log p - log q of samples from p: unbiased value, zero expected gradient as a loss."""
    return log_p - log_q


def k2(
    log_p: Tensor,
    log_q: Tensor,
) -> Tensor:
    """(log p - log q)^2 / 2 of samples from p: biased value, but as a loss its expected gradient is that of the KL."""
    return 0.5 * (log_p - log_q).square()


def k3(
    log_p: Tensor,
    log_q: Tensor,
) -> Tensor:
    """q/p - 1 - log(q/p) of samples from p: unbiased and never negative (Schulman); its gradient is biased."""
    log_ratio = log_q - log_p
    return log_ratio.exp() - 1.0 - log_ratio


def k3_inverted(
    log_p: Tensor,
    log_q: Tensor,
) -> Tensor:
    """p/q - 1 - log(p/q): a mistake of the earlier code, kept so that the doctor can be tested on it.

    It grows exponentially exactly when a good sequence becomes likelier than before.
    """
    log_ratio = log_p - log_q
    return log_ratio.exp() - 1.0 - log_ratio
