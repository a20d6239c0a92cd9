"""Decoding: greedy, sampling and beam search, batched over queries.

Every function returns `DecodedPicks`: positions (B, G, S) with STOP and PAD as in training, and log-probabilities
under the policy at temperature 1. Noise comes from one seed per query and is drawn for the query's own pool, so that
the picks of a query do not depend on the batch it is in.

B queries, G members of a query, S steps, K candidates, A actions (K, or K + 1 with STOP last).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leverplus.errors import EvaluationError
from leverplus.learn.maths.divergences import masked_log_softmax
from leverplus.learn.policies.base import (
    PAD,
    STOP,
    Encoded,
    Policy,
    State,
    sequence_logprobs,
)


@dataclass(frozen=True)
class DecodedPicks:
    """Sequences (B, G, S), their log-probabilities (B, G), best first where there is an order."""

    positions: Tensor
    logprobs: Tensor


@torch.no_grad()
def greedy(
    policy: Policy,
    encoded: Encoded,
    shots: int,
    allow_stop: bool = False,
) -> DecodedPicks:
    """The likeliest action at every step; G = 1. Without `allow_stop` exactly `shots` are chosen."""
    _check(policy, encoded, shots)
    state = policy.start(encoded, 1, shots)
    actions = []
    for _ in range(shots):
        action = policy.step(encoded, state, allow_stop).argmax(-1)  # (B, 1)
        actions.append(action)
        state = policy.advance(encoded, state, action)
    return _picks(policy, encoded, torch.stack(actions, dim=-1), allow_stop)


@torch.no_grad()
def sample(
    policy: Policy,
    encoded: Encoded,
    shots: int,
    *,
    seeds: Sequence[int],
    count: int = 1,
    temperature: float = 1.0,
    allow_stop: bool = False,
) -> DecodedPicks:
    """`count` independent sequences per query from softmax(logits / temperature).

    Gumbel trick: the argmax of log-probabilities plus standard Gumbel noise is a sample from them.
    """
    _check(policy, encoded, shots)
    noise = gumbel(
        encoded,
        seeds,
        (shots, count),
        stop=policy.stops,
    )  # (B, S, G, A)
    state = policy.start(encoded, count, shots)
    actions = []
    for step in range(shots):
        logits = policy.step(encoded, state, allow_stop)  # (B, G, A)
        tempered = masked_log_softmax(logits / temperature)
        action = (tempered + noise[:, step]).argmax(-1)  # (B, G)
        actions.append(action)
        state = policy.advance(encoded, state, action)
    return _picks(policy, encoded, torch.stack(actions, dim=-1), allow_stop)


@torch.no_grad()
def beam(
    policy: Policy,
    encoded: Encoded,
    shots: int,
    width: int,
    allow_stop: bool = False,
) -> DecodedPicks:
    """The `width` likeliest sequences that beam search finds, best first."""
    _check(policy, encoded, shots)
    state, actions, logprobs = _start_beam(policy, encoded, shots)
    for _ in range(shots):
        table = masked_log_softmax(policy.step(encoded, state, allow_stop))  # (B, G, A)
        total = (logprobs.unsqueeze(-1) + table).flatten(
            1
        )  # (B, G A), every member with every action
        logprobs, best = total.topk(min(width, total.shape[-1]), dim=-1)  # (B, width)
        state, actions = _extend(policy, encoded, state, actions, best)
    return _picks(
        policy,
        encoded,
        actions,
        allow_stop,
        possible=logprobs > -torch.inf,
    )


def gumbel(
    encoded: Encoded,
    seeds: Sequence[int],
    shape: tuple[int, int],
    *,
    stop: bool,
) -> Tensor:
    """Standard Gumbel noise (B, steps, G, A), row b from its own seed and its own pool size."""
    batch, size = encoded.mask.shape
    if len(seeds) != batch:
        raise EvaluationError(
            f"{batch} queries but {len(seeds)} seeds; give one seed per query"
        )
    noise = torch.zeros(batch, *shape, size + int(stop))  # (B, steps, G, A)
    for index, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        # drawn for the candidates only, not for the padding: how wide a batch is padded must not change the draws
        columns = torch.nonzero(encoded.mask[index]).flatten().cpu()
        if stop:
            columns = torch.cat([columns, torch.tensor([size])])
        uniform = torch.rand(
            *shape,
            len(columns),
            generator=generator,
            dtype=torch.float64,
        )
        drawn = -torch.log(
            -torch.log(uniform.clamp(1e-18, 1.0 - 1e-16))
        )  # clamped: log(0) would be infinite
        noise[index][..., columns] = drawn.to(noise.dtype)
    return noise.to(encoded.mask.device)


def _check(
    policy: Policy,
    encoded: Encoded,
    shots: int,
) -> None:
    """Raises when the policy, or the smallest pool, cannot give that many demonstrations."""
    smallest = int(encoded.mask.sum(-1).min())
    if not 1 <= shots <= policy.config.max_shots:
        raise EvaluationError(
            f"{shots} shots asked, but this selector chooses 1 to {policy.config.max_shots}"
        )
    if smallest < shots:
        raise EvaluationError(
            f"{shots} shots asked from a pool of {smallest}; build larger pools"
        )


def _start_beam(
    policy: Policy,
    encoded: Encoded,
    shots: int,
) -> tuple[State, Tensor, Tensor]:
    """The state, actions (B, 1, 0) and log-probabilities (B, 1) of the one empty prefix that a search starts from."""
    batch = len(encoded.mask)
    device = encoded.mask.device
    actions = torch.zeros(
        batch,
        1,
        0,
        dtype=torch.long,
        device=device,
    )
    logprobs = torch.zeros(batch, 1, device=device)
    return policy.start(encoded, 1, shots), actions, logprobs


def _extend(
    policy: Policy,
    encoded: Encoded,
    state: State,
    actions: Tensor,
    best: Tensor,
) -> tuple[State, Tensor]:
    """State and actions after the extensions `best` (B, width), indices into the flattened axes (G, A)."""
    size = state.used.shape[-1]  # A
    parents = best // size  # (B, width), which member is extended
    action = best % size  # (B, width), by which action
    state = policy.advance(encoded, state.pick(parents), action)
    index = parents.unsqueeze(-1).expand(
        -1, -1, actions.shape[-1]
    )  # (B, width, steps so far)
    kept = torch.gather(actions, 1, index)
    return state, torch.cat([kept, action.unsqueeze(-1)], dim=-1)


def _picks(
    policy: Policy,
    encoded: Encoded,
    actions: Tensor,
    allow_stop: bool,
    possible: Tensor | None = None,
) -> DecodedPicks:
    """Actions (B, G, S) as positions: all after the first STOP becomes PAD.

    A search may find fewer sequences than it has members; those that are not `possible` become PAD at -inf.
    """
    stop = actions == encoded.mask.shape[-1]  # (B, G, S)
    after = stop.cumsum(-1) - stop.long() > 0  # True where an earlier step has stopped
    positions = torch.where(stop, STOP, actions).masked_fill(after, PAD)
    if possible is None:
        return DecodedPicks(
            positions, sequence_logprobs(policy, encoded, positions, allow_stop).total
        )
    positions = positions.masked_fill(~possible.unsqueeze(-1), PAD)
    total = sequence_logprobs(policy, encoded, positions, allow_stop).total
    return DecodedPicks(positions, total.masked_fill(~possible, -torch.inf))
