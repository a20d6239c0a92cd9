"""Runs a policy on items: item ids and their vectors in, chosen demonstrations by item id out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from leverplus.data.types import Demos, Pool
from leverplus.learn.policies.base import Encoded, Policy
from leverplus.learn.policies.decode import greedy
from leverplus.learn.policies.table import ItemTable

BATCH = 256
CANDIDATES = 1 << 15
"""Most pools and most candidates in a batch: large pools are encoded a few at a time, which bounds the memory."""


def read_pools(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
) -> Iterator[tuple[Sequence[Pool], Encoded]]:
    """The pools in batches, each with what the policy, now in evaluation mode, has read of it."""
    policy.eval()
    largest = max((len(pool) for pool in pools), default=1)
    size = max(1, min(BATCH, CANDIDATES // largest))
    for start in range(0, len(pools), size):
        part = pools[start : start + size]
        queries = [pool.query for pool in part]
        candidates = [pool.candidates for pool in part]
        with torch.no_grad():
            encoded = policy.prepare(table.features(queries, candidates))
        yield part, encoded


def demos_at(pool: Pool, positions: Sequence[int]) -> Demos:
    """The items at the positions; STOP and PAD are negative and left out."""
    return tuple(pool.candidates[position] for position in positions if position >= 0)


def choose_demos(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
    shots: int,
    *,
    allow_stop: bool = False,
) -> list[Demos]:
    """The demonstrations a policy shows for each pool, in prompt order: exactly `shots`, or fewer if it may stop."""
    chosen: list[Demos] = []
    for part, encoded in read_pools(policy, table, pools):
        picks = greedy(policy, encoded, shots, allow_stop)
        positions = picks.positions[:, 0].tolist()  # greedy has one member per query
        for pool, row in zip(part, positions, strict=True):
            chosen.append(demos_at(pool, row))
    return chosen
