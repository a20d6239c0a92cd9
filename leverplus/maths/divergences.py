"""Divergences between two policies over one pool: exact, and the sampled estimators for comparison.

Log-probabilities are nats. Tables are (..., A) over the actions of a step, -inf where an action is not allowed; both
policies see the same mask. A pool of 64 makes the exact value as cheap as an estimate, so estimates are only for study.
"""

from __future__ import annotations

import torch
from torch import Tensor

ESTIMATORS = ("exact", "k1", "k2", "k3", "k3_inverted")


def masked_log_softmax(logits: Tensor) -> Tensor:
    """Log-softmax over the last axis where -inf marks what is not allowed; a row with nothing allowed stays -inf."""
    legal = logits > -torch.inf
    some = legal.any(-1, keepdim=True)
    result = torch.log_softmax(torch.where(some, logits, torch.zeros_like(logits)), dim=-1)
    return result.masked_fill(~legal, -torch.inf)


def categorical_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Exact KL(p || q) = sum_a p (log p - log q) over the last axis; masked entries are left out before the product."""
    legal = log_p > -torch.inf
    safe_p = log_p.masked_fill(~legal, 0.0)
    safe_q = log_q.masked_fill(~legal, 0.0)
    return (safe_p.exp() * (safe_p - safe_q)).masked_fill(~legal, 0.0).sum(-1)


def entropy(log_p: Tensor) -> Tensor:
    """Exact entropy of the last axis in nats."""
    legal = log_p > -torch.inf
    safe = log_p.masked_fill(~legal, 0.0)
    return -(safe.exp() * safe).masked_fill(~legal, 0.0).sum(-1)


def total_variation(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Half the summed absolute difference of the probabilities of the last axis."""
    return 0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1)


def k1(log_p: Tensor, log_q: Tensor) -> Tensor:
    """log p - log q of samples from p: unbiased value, zero expected gradient as a loss."""
    return log_p - log_q


def k2(log_p: Tensor, log_q: Tensor) -> Tensor:
    """(log p - log q)^2 / 2 of samples from p: biased value, but as a loss its expected gradient is that of the KL."""
    return 0.5 * (log_p - log_q).square()


def k3(log_p: Tensor, log_q: Tensor) -> Tensor:
    """q/p - 1 - log(q/p) of samples from p: unbiased and never negative (Schulman); its gradient is biased."""
    ratio = log_q - log_p
    return ratio.exp() - 1.0 - ratio


def k3_inverted(log_p: Tensor, log_q: Tensor) -> Tensor:
    """p/q - 1 - log(p/q): the known mistake; explodes exactly when a good sequence becomes likelier than before."""
    ratio = log_p - log_q
    return ratio.exp() - 1.0 - ratio
