"""Runs a policy on items: item ids and their vectors in, chosen or sampled demonstrations by item id out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from leverplus.errors import DataError
from leverplus.policies.adapters import LiveEncoding
from leverplus.policies.base import Features, Policy
from leverplus.policies.decode import greedy, sample, stochastic_beam
from leverplus.types import Demos, ItemId, Member, Pool

CANDIDATES = 1 << 15
"""Most candidates in one batch: large pools are encoded a few at a time, which bounds the memory."""


class ItemTable:
    """The feature blocks of every item a policy may see, by id; `blocks[field]` is (N, D).

    `live` embeds items again, for policies with adapters.
    """

    def __init__(self, ids: Sequence[ItemId], blocks: Mapping[str, Tensor]) -> None:
        self.rows = {item: row for row, item in enumerate(ids)}
        self.blocks = dict(blocks)
        self.live: LiveEncoding | None = None
        for name, block in self.blocks.items():
            if len(block) != len(ids):
                raise DataError(f"{len(ids)} items but {len(block)} vectors in block '{name}'; embed the items again")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dims(self) -> dict[str, int]:
        return {name: int(block.shape[-1]) for name, block in self.blocks.items()}

    @classmethod
    def from_arrays(cls, ids: Sequence[ItemId], arrays: Mapping[str, NDArray[np.float32] | None]) -> ItemTable:
        """From numpy arrays (N, D); a block that is None (no pictures) is left out."""
        return cls(ids, {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None})

    def row(self, item: ItemId) -> int:
        if item not in self.rows:
            raise DataError(f"item {item} has no vector; embed it before it is used")
        return self.rows[item]

    def features(self, queries: Sequence[ItemId], pools: Sequence[Sequence[ItemId]]) -> Features:
        """Features of queries and their pools, padded to the largest pool."""
        query_rows = torch.tensor([self.row(query) for query in queries])  # (B,)
        pool_rows = []
        for pool in pools:
            numbers = [self.row(item) for item in pool]
            pool_rows.append(torch.tensor(numbers, dtype=torch.long))  # an empty pool would become float without
        return self.features_of_rows(query_rows, pool_rows)

    def features_of_rows(self, queries: Tensor, pools: Sequence[Tensor]) -> Features:
        """The same from row numbers; every item appears once, however many pools hold it."""
        padded = pad_sequence(list(pools), batch_first=True, padding_value=-1)  # (B, K), rows of the table
        inside = padded >= 0
        unique, inverse = torch.unique(padded[inside], return_inverse=True)  # (U,) rows that occur; where each went
        pool = torch.full_like(padded, -1)
        pool[inside] = inverse  # (B, K), rows of `unique`
        # a query's answer is what is asked for: no policy may see it
        query = {name: block[queries] for name, block in self.blocks.items() if name != "answer"}  # (B, D) each
        items = {name: block[unique] for name, block in self.blocks.items()}
        return Features(query, items, pool, unique, queries, self.live)


def _batches(policy: Policy, table: ItemTable, pools: Sequence[Pool], size: int) -> Iterator[tuple[slice, Features]]:
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
    policy: Policy, table: ItemTable, pools: Sequence[Pool], shots: int, *, allow_stop: bool = False, batch: int = 256
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
                policy, encoded, shots, count, seeds=seeds, temperature=temperature, allow_stop=allow_stop
            )
        else:
            picks = sample(
                policy, encoded, shots, seeds=seeds, count=count, temperature=temperature, allow_stop=allow_stop
            )
        rows = zip(pools[part], picks.positions.tolist(), picks.logprobs.tolist(), strict=True)
        for pool, sequences, logprobs in rows:
            members = []
            for positions, logprob in zip(sequences, logprobs, strict=True):
                if logprob > -torch.inf:  # -inf: a small pool has fewer than `count` different sequences
                    members.append(Member(_demos(pool, positions), "policy", logprob))
            drawn.append(tuple(members))
    return drawn
