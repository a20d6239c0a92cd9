"""Items and policies: vectors by item id in, chosen or sampled demonstrations by item id out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from leverplus.errors import DataError
from leverplus.policies.adapters import Live
from leverplus.policies.base import Features, Policy
from leverplus.policies.decode import greedy, sample, stochastic_beam
from leverplus.types import Demos, ItemId, Member, Pool

CANDIDATES = 1 << 15
"""Most candidates that are read together: large pools are read a few at a time."""


class ItemTable:
    """The feature blocks of every item a policy may see, by id; `blocks[field]` is (N, D).

    `live` embeds items anew for policies with adapters.
    """

    def __init__(self, ids: Sequence[ItemId], blocks: Mapping[str, Tensor]) -> None:
        self.rows = {item: row for row, item in enumerate(ids)}
        self.blocks = dict(blocks)
        self.live: Live | None = None
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
        rows = [torch.tensor([self.row(item) for item in pool], dtype=torch.long) for pool in pools]
        return self.features_of_rows(torch.tensor([self.row(query) for query in queries]), rows)

    def features_of_rows(self, queries: Tensor, pools: Sequence[Tensor]) -> Features:
        """The same from row numbers; every item appears once, however many pools hold it."""
        padded = pad_sequence(list(pools), batch_first=True, padding_value=-1)  # (B, K) rows of the table
        inside = padded >= 0
        unique, inverse = torch.unique(padded[inside], return_inverse=True)  # (U,) and where each stands in it
        pool = torch.full_like(padded, -1)
        pool[inside] = inverse  # (B, K) rows of `items` below
        # a query's answer is what is asked for: no policy may see it
        query = {name: block[queries] for name, block in self.blocks.items() if name != "answer"}  # (B, D)
        items = {name: block[unique] for name, block in self.blocks.items()}  # (U, D)
        return Features(query, items, pool, unique, queries, self.live)


def _batches(policy: Policy, table: ItemTable, pools: Sequence[Pool], size: int) -> Iterator[tuple[slice, Features]]:
    policy.eval()
    size = max(1, min(size, CANDIDATES // max((len(pool) for pool in pools), default=1)))
    for start in range(0, len(pools), size):
        part = pools[start : start + size]
        yield (
            slice(start, start + size),
            table.features([pool.query for pool in part], [pool.candidates for pool in part]),
        )


def _demos(pool: Pool, positions: Sequence[int]) -> Demos:
    return tuple(pool.candidates[position] for position in positions if position >= 0)


@torch.no_grad()
def choose_demos(
    policy: Policy, table: ItemTable, pools: Sequence[Pool], shots: int, *, allow_stop: bool = False, batch: int = 256
) -> list[Demos]:
    """The demonstrations a policy shows for each pool, in prompt order: exactly `shots`, or fewer if it may stop."""
    chosen: list[Demos] = []
    for part, features in _batches(policy, table, pools, batch):
        picks = greedy(policy, policy.prepare(features), shots, allow_stop)
        chosen += [_demos(pool, row[0]) for pool, row in zip(pools[part], picks.positions.tolist(), strict=True)]
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
    """Up to `count` sequences a pool from the policy, each with its log-probability under it, for fresh groups.

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
        for pool, positions, logprobs in rows:
            members = zip(positions, logprobs, strict=True)
            drawn.append(tuple(Member(_demos(pool, p), "policy", lp) for p, lp in members if lp > -torch.inf))
    return drawn
