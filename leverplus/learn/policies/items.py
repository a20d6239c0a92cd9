"""Runs a policy on items: item ids and their vectors in, chosen or sampled demonstrations by item id out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from leverplus.data.types import Demos, ItemId, Member, Pool
from leverplus.learn.policies.base import Features, Policy
from leverplus.learn.policies.decode import greedy, sample, stochastic_beam
from leverplus.learn.policies.table import ItemTable

CANDIDATES = 1 << 15
"""Most candidates in one batch: large pools are encoded a few at a time, which bounds the memory."""


def _batches(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
    size: int,
) -> Iterator[tuple[slice, Features]]:
    """Parts of the pools, each as a slice with its features; the policy is put into evaluation mode."""
    policy.eval()
    largest = max((len(pool) for pool in pools), default=1)
    size = max(1, min(size, CANDIDATES // largest))
    for start in range(0, len(pools), size):
        part = pools[start : start + size]
        queries = [pool.query for pool in part]
        candidates = [pool.candidates for pool in part]
        yield slice(start, start + size), table.features(queries, candidates)


def _demos(pool: Pool, positions: Sequence[int]) -> Demos:
    """The items at the positions; STOP and PAD are negative and left out."""
    return tuple(pool.candidates[position] for position in positions if position >= 0)


@torch.no_grad()
def choose_demos(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
    shots: int,
    *,
    allow_stop: bool = False,
    batch: int = 256,
) -> list[Demos]:
    """The demonstrations a policy shows for each pool, in prompt order: exactly `shots`, or fewer if it may stop."""
    chosen: list[Demos] = []
    for part, features in _batches(policy, table, pools, batch):
        picks = greedy(policy, policy.prepare(features), shots, allow_stop)
        positions = picks.positions[:, 0].tolist()  # greedy has one member per query
        for pool, row in zip(pools[part], positions, strict=True):
            chosen.append(_demos(pool, row))
    return chosen


@torch.no_grad()
def sample_members(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
    shots: int,
    count: int,
    *,
    seed_of: Callable[[ItemId], int],
    temperature: float = 1.0,
    without_replacement: bool = True,
    allow_stop: bool = False,
    batch: int = 256,
) -> list[tuple[Member, ...]]:
    """Samples up to `count` sequences per pool from the policy, each with its log-probability, for fresh groups.

    `seed_of(query)` gives the seed of a query's noise. Without replacement all members of a pool differ.
    """
    drawn: list[tuple[Member, ...]] = []
    for part, features in _batches(policy, table, pools, batch):
        seeds = [seed_of(pool.query) for pool in pools[part]]
        encoded = policy.prepare(features)
        if without_replacement:
            picks = stochastic_beam(
                policy,
                encoded,
                shots,
                count,
                seeds=seeds,
                temperature=temperature,
                allow_stop=allow_stop,
            )
        else:
            picks = sample(
                policy,
                encoded,
                shots,
                seeds=seeds,
                count=count,
                temperature=temperature,
                allow_stop=allow_stop,
            )
        rows = zip(
            pools[part],
            picks.positions.tolist(),
            picks.logprobs.tolist(),
            strict=True,
        )
        for pool, sequences, logprobs in rows:
            members = []
            for positions, logprob in zip(sequences, logprobs, strict=True):
                if (
                    logprob > -torch.inf
                ):  # -inf: a small pool has fewer than `count` different sequences
                    members.append(Member(_demos(pool, positions), "policy", logprob))
            drawn.append(tuple(members))
    return drawn
