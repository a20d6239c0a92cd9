"""The labelled set that a selector serves from: its vectors, kept ready, and the nearest of all of it to a query."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from leverplus.embedders.base import Vectors
from leverplus.pools.build import picture_of
from leverplus.pools.similarity import Positions
from leverplus.recipe.pools import PoolSection
from leverplus.types import Item

FEWEST = 64
"""A query is served from so many candidates at least, where there are as many."""

WEIGHTS = {"nearest_text": 1.0, "nearest_image": 0.0, "two_stage": 0.0}
"""Share of the question in the similarity by which pools of a kind are found; the others have pool.text_weight."""


class Corpus:
    """All demonstrations with their vectors; finds the candidates of a query the same way for every kind of pool.

    Pools of training may be drawn at random, which a query in use has no part in: it gets the nearest `count`, as many
    as a pool of training had (or its first stage, where the pool is chosen from that).
    """

    def __init__(self, items: Sequence[Item], vectors: Vectors, section: PoolSection) -> None:
        self.items, self.vectors = items, vectors
        weight = WEIGHTS.get(section.kind, section.text_weight)
        self.weight = 1.0 if vectors.image is None else weight
        staged = section.kind in ("two_stage", "mmr")
        self.count = max(FEWEST, section.first_stage if staged else section.size)

    @cached_property
    def blocks(self) -> dict[str, Tensor]:
        """Vectors (N, D) by field, as policies read them."""
        return {name: torch.from_numpy(block) for name, block in vars(self.vectors).items() if block is not None}

    @cached_property
    def _rows(self) -> dict[str, list[int]]:
        """Rows by the item's id and by its picture: what a query of the task itself must not be shown."""
        found: dict[str, list[int]] = {}
        for row, item in enumerate(self.items):
            for name in {f"id:{item.id}", f"picture:{picture_of(item)}"}:
                found.setdefault(name, []).append(row)
        return found

    def similarity(self, query: Vectors) -> np.typing.NDArray[np.float32]:
        """How near every item is to one query, (N,): the weighted sum of the cosines of questions and pictures."""
        near = np.zeros(len(self.items), dtype=np.float32)
        if self.weight > 0.0:
            near += np.float32(self.weight) * (self.vectors.text @ query.text[0])
        if self.weight < 1.0 and self.vectors.image is not None and query.image is not None:
            near += np.float32(1.0 - self.weight) * (self.vectors.image @ query.image[0])
        return near

    def nearest(self, query: Vectors, item: Item) -> Positions:
        """Rows of the nearest demonstrations, best first, without the query itself and others on its picture."""
        near = self.similarity(query)
        closed = [*self._rows.get(f"id:{item.id}", ())]
        if (picture := picture_of(item)) is not None:
            closed += self._rows.get(f"picture:{picture}", ())
        near[closed] = -np.inf
        count = min(self.count, len(near) - len(set(closed)))
        if count <= 0:
            return np.empty(0, dtype=np.int64)
        best = np.argpartition(-near, count - 1)[:count]
        best.sort()  # equal ones in the order of the labelled set
        return best[np.argsort(-near[best], kind="stable")].astype(np.int64)
