"""Decoding: greedy, sampling, beam search and sampling without replacement, batched over queries.

Every function returns `Picks`: positions (B, G, S) with STOP and PAD as in training, and log-probabilities under the
untempered policy. Noise comes from one seed a query, drawn for the query's own pool, so that the batch a query sits in
never changes its picks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leverplus.errors import EvaluationError
from leverplus.maths.divergences import masked_log_softmax
from leverplus.policies.base import PAD, STOP, Encoded, Policy, State, sequence_logprobs


@dataclass(frozen=True)
class Picks:
    """Sequences (B, G, S), their log-probabilities (B, G), best first where there is an order.

    `keys` (B, G) are the perturbed log-probabilities of sampling without replacement: members are the G largest keys.
    """

    positions: Tensor
    logprobs: Tensor
    keys: Tensor | None = None


@torch.no_grad()
def greedy(policy: Policy, encoded: Encoded, shots: int, allow_stop: bool = False) -> Picks:
    """The likeliest action at every step; G = 1. Without `allow_stop` exactly `shots` are chosen."""
    _check(policy, encoded, shots)
    state, actions = policy.start(encoded, 1, shots), []
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
) -> Picks:
    """`count` independent sequences per query from softmax(logits / temperature).

    By the Gumbel trick: the argmax of log-probabilities with Gumbel noise added is a sample of them.
    """
    _check(policy, encoded, shots)
    noise = gumbel(encoded, seeds, (shots, count), stop=policy.stops)
    state, actions = policy.start(encoded, count, shots), []
    for step in range(shots):
        tempered = masked_log_softmax(policy.step(encoded, state, allow_stop) / temperature)  # (B, G, A)
        action = (tempered + noise[:, step]).argmax(-1)  # (B, G)
        actions.append(action)
        state = policy.advance(encoded, state, action)
    return _picks(policy, encoded, torch.stack(actions, dim=-1), allow_stop)


@torch.no_grad()
def beam(policy: Policy, encoded: Encoded, shots: int, width: int, allow_stop: bool = False) -> Picks:
    """The `width` likeliest sequences that beam search finds, best first."""
    _check(policy, encoded, shots)
    state, actions, logprobs = _seed_beam(policy, encoded, shots)
    for _ in range(shots):
        table = masked_log_softmax(policy.step(encoded, state, allow_stop))  # (B, G, A)
        total = (logprobs.unsqueeze(-1) + table).flatten(1)  # (B, G * A)
        logprobs, best = total.topk(min(width, total.shape[-1]), dim=-1)
        state, actions = _extend(policy, encoded, state, actions, best)
    return _picks(policy, encoded, actions, allow_stop, possible=logprobs > -torch.inf)


@torch.no_grad()
def stochastic_beam(
    policy: Policy,
    encoded: Encoded,
    shots: int,
    width: int,
    *,
    seeds: Sequence[int],
    temperature: float = 1.0,
    allow_stop: bool = False,
) -> Picks:
    """`width` distinct sequences sampled without replacement: Gumbel top-k over the tree (Kool 2019)."""
    _check(policy, encoded, shots)
    noise = gumbel(encoded, seeds, (shots, width), stop=policy.stops)
    state, actions, logprobs = _seed_beam(policy, encoded, shots)
    keys = torch.zeros_like(logprobs)
    for step in range(shots):
        table = masked_log_softmax(policy.step(encoded, state, allow_stop) / temperature)
        phi = logprobs.unsqueeze(-1) + table  # (B, G, A) log-probability of every extended sequence
        drawn = phi + noise[:, step, : phi.shape[1]]
        # the children of a node share its key: theirs are drawn given that the largest of them equals it
        perturbed = _condition_on_maximum(drawn, keys.unsqueeze(-1)).flatten(1)  # (B, G * A)
        keys, best = perturbed.topk(min(width, perturbed.shape[-1]), dim=-1)
        logprobs = phi.flatten(1).gather(1, best)
        state, actions = _extend(policy, encoded, state, actions, best)
    picks = _picks(policy, encoded, actions, allow_stop, possible=logprobs > -torch.inf)
    return Picks(picks.positions, picks.logprobs, keys)


def _condition_on_maximum(values: Tensor, maximum: Tensor) -> Tensor:
    """Shift Gumbel variables of a node so that their largest is `maximum`; numerically stable (Kool 2019, app. B)."""
    # infinities are replaced by 0 while computing, since inf - inf is no number, and put back at the end
    largest = values.amax(-1, keepdim=True)
    safe = torch.where(values > -torch.inf, values, torch.zeros_like(values))
    top = torch.where(largest > -torch.inf, largest, torch.zeros_like(largest))
    bound = torch.where(maximum > -torch.inf, maximum, torch.zeros_like(maximum))
    v = bound - safe + torch.log1p(-torch.exp(safe - top).clamp(max=1.0))
    result = bound - v.clamp(min=0.0) - torch.log1p(torch.exp(-v.abs()))
    possible = (values > -torch.inf) & (maximum > -torch.inf)
    return torch.where(possible, result, torch.full_like(result, -torch.inf))


def gumbel(encoded: Encoded, seeds: Sequence[int], shape: tuple[int, int], *, stop: bool) -> Tensor:
    """Standard Gumbel noise (B, steps, G, A), row b from its own seed and its own pool size."""
    batch, size = encoded.mask.shape
    if len(seeds) != batch:
        raise EvaluationError(f"{batch} queries but {len(seeds)} seeds; give one seed a query")
    noise = torch.zeros(batch, *shape, size + int(stop))
    for index, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        inside = torch.nonzero(encoded.mask[index]).flatten().cpu()
        columns = torch.cat([inside, torch.tensor([size])]) if stop else inside
        uniform = torch.rand(*shape, len(columns), generator=generator, dtype=torch.float64)
        # -log(-log(U)) is a standard Gumbel variable; U is kept off 0 and 1, where the logarithms are infinite
        drawn = -torch.log(-torch.log(uniform.clamp(1e-18, 1.0 - 1e-16)))
        noise[index][..., columns] = drawn.to(noise.dtype)
    return noise.to(encoded.mask.device)


def _check(policy: Policy, encoded: Encoded, shots: int) -> None:
    """Refuse more demonstrations than the selector can choose or the smallest pool holds."""
    smallest = int(encoded.mask.sum(-1).min())
    if not 1 <= shots <= policy.config.max_shots:
        raise EvaluationError(f"{shots} shots asked, but this selector chooses 1 to {policy.config.max_shots}")
    if smallest < shots:
        raise EvaluationError(f"{shots} shots asked from a pool of {smallest}; build larger pools")


def _seed_beam(policy: Policy, encoded: Encoded, shots: int) -> tuple[State, Tensor, Tensor]:
    """One empty sequence per query: its state, its actions (B, 1, 0) and its log-probability (B, 1), which is 0."""
    batch = len(encoded.mask)
    actions = torch.zeros(batch, 1, 0, dtype=torch.long, device=encoded.mask.device)
    return policy.start(encoded, 1, shots), actions, torch.zeros(batch, 1, device=encoded.mask.device)


def _extend(policy: Policy, encoded: Encoded, state: State, actions: Tensor, best: Tensor) -> tuple[State, Tensor]:
    """Extend the sequences that `best` (B, G') points to, each a number of a member times A plus an action."""
    size = state.used.shape[-1]  # A
    parents, action = best // size, best % size  # (B, G')
    state = policy.advance(encoded, state.pick(parents), action)
    kept = torch.gather(actions, 1, parents.unsqueeze(-1).expand(-1, -1, actions.shape[-1]))  # (B, G', S)
    return state, torch.cat([kept, action.unsqueeze(-1)], dim=-1)


def _picks(
    policy: Policy, encoded: Encoded, actions: Tensor, allow_stop: bool, possible: Tensor | None = None
) -> Picks:
    """Actions as positions; all after the first STOP becomes PAD, members that do not exist are PAD at -inf."""
    stop = actions == encoded.mask.shape[-1]  # (B, G, S)
    after = stop.cumsum(-1) - stop.long() > 0  # behind the first STOP
    positions = torch.where(stop, STOP, actions).masked_fill(after, PAD)
    if possible is None:
        return Picks(positions, sequence_logprobs(policy, encoded, positions, allow_stop).total)
    positions = positions.masked_fill(~possible.unsqueeze(-1), PAD)
    total = sequence_logprobs(policy, encoded, positions, allow_stop).total
    return Picks(positions, total.masked_fill(~possible, -torch.inf))
