"""Arms: who chooses the demonstrations. Each gives, for every query, an ordered list for every number of shots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from leverplus.policies.base import Policy
from leverplus.policies.decode import greedy
from leverplus.training.groups import ItemTable
from leverplus.types import Demos, Pool

Choices = Mapping[int, Sequence[Demos]]
"""For every number of shots the demonstrations of every query, in the order of the pools."""

BATCH = 256


@dataclass(frozen=True)
class Similarities:
    """Cosines (B, K) of every query with its candidates; image is None for text-only tasks."""

    image: NDArray[np.float64] | None
    text: NDArray[np.float64]

    def combined(self, text_share: float) -> NDArray[np.float64]:
        if self.image is None:
            return self.text
        return np.asarray(text_share * self.text + (1.0 - text_share) * self.image)


def similarities(pools: Sequence[Pool], table: ItemTable) -> Similarities:
    """Cosines from the table's unit vectors; all pools have the same size."""
    query = torch.tensor([table.row(pool.query) for pool in pools])
    candidates = torch.tensor([[table.row(item) for item in pool.candidates] for pool in pools])

    def cosines(name: str) -> NDArray[np.float64]:
        block = table.blocks[name]
        return torch.einsum("bd,bkd->bk", block[query], block[candidates]).double().numpy()

    return Similarities(cosines("image") if "image" in table.blocks else None, cosines("text"))


def nearest(pools: Sequence[Pool], similarity: NDArray[np.float64], shots: Sequence[int]) -> Choices:
    """The most similar candidates, the most similar next to the query."""
    order = np.argsort(-similarity, axis=1, kind="stable")
    return {
        n: [tuple(pool.candidates[int(k)] for k in reversed(row[:n])) for pool, row in zip(pools, order, strict=True)]
        for n in shots
    }


def prefixes(full: Sequence[Demos], shots: Sequence[int]) -> Choices:
    """The first n of every list: for arms that choose one after the other."""
    return {n: [demos[:n] for demos in full] for n in shots}


def learned(policy: Policy, pools: Sequence[Pool], table: ItemTable, shots: Sequence[int]) -> Choices:
    """The policy's greedy choice of exactly n demonstrations."""
    policy.eval()
    full: list[Demos] = []
    for start in range(0, len(pools), BATCH):
        part = pools[start : start + BATCH]
        features = table.features([pool.query for pool in part], [pool.candidates for pool in part])
        with torch.no_grad():
            positions = greedy(policy, policy.prepare(features), max(shots)).positions[:, 0].tolist()
        full.extend(tuple(pool.candidates[k] for k in row if k >= 0) for pool, row in zip(part, positions, strict=True))
    return prefixes(full, shots)
