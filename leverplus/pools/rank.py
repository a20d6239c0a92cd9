"""Training-free choices inside a given pool: nearest, two-stage and maximal marginal relevance, in prompt order.

The `rank_` functions take the similarities of B pools of K candidates and return pool positions (B, S); the `_demos`
functions take one pool and return item ids. Both give prompt order: what is ranked first comes last, next to the query.
Ties go to the candidate that comes first in the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leverplus.embedders.base import Vectors
from leverplus.errors import DataError, LeverError
from leverplus.pools.similarity import (
    Floats,
    Likeness,
    Positions,
    cosine,
    mmr_order,
    rows,
    similarity,
    top,
    weighted_similarity,
)
from leverplus.types import Demos, Item, ItemId, Pool

NOBODY = -1
"""Stands where a smaller pool has no candidate, when pools of several sizes are ranked together."""


def rank_nearest(image: Floats | None, text: Floats | None, text_weight: float, shots: int) -> Positions:
    """The largest text_weight * text + (1 - text_weight) * image: (B, K) each -> (B, S), nearest last."""
    return _prompt_order(top(weighted_similarity(image, text, text_weight), shots))


def rank_two_stage(image: Floats, text: Floats, shots: int, first: int | None = None) -> Positions:
    """The most similar questions among the `first` most similar pictures (by default half of the pool).

    Equal questions, of which a task has many, are told apart by picture.
    """
    size = text.shape[1]  # K
    if first is None:
        first = size // 2
    first = min(size, max(shots, first))
    kept = top(image, first)  # (B, first), the most similar picture first, so ties of the second stage go to it
    chosen = top(np.take_along_axis(text, kept, axis=1), shots)  # (B, S), positions in `kept`
    return _prompt_order(np.take_along_axis(kept, chosen, axis=1))


def rank_mmr(relevance: Floats, likeness: Likeness, mmr_lambda: float, shots: int) -> Positions:
    """Candidates near to the query (`relevance`, (B, K)) and unlike each other; what is chosen first comes last."""
    return _prompt_order(mmr_order(relevance, likeness, mmr_lambda, shots))


def _prompt_order(best_first: Positions) -> Positions:
    return best_first[:, ::-1].copy()


def demos_at(pools: Sequence[Pool], positions: Positions) -> list[Demos]:
    """The item ids at the positions (B, S) of each pool, order kept."""
    if len(pools) != len(positions):
        raise LeverError(f"there are {len(pools)} pools but positions for {len(positions)}; rank the same pools")
    demos = []
    for pool, chosen in zip(pools, positions.tolist(), strict=True):
        demos.append(tuple(pool.candidates[position] for position in chosen))
    return demos


def nearest_demos(
    pool: Pool, image_similarity: Floats | None, text_similarity: Floats | None, text_weight: float, shots: int
) -> Demos:
    """The nearest demonstrations of one pool; similarities are (K,), nearest last."""
    image = None if image_similarity is None else image_similarity[None]  # (1, K)
    text = None if text_similarity is None else text_similarity[None]  # (1, K)
    return demos_at([pool], rank_nearest(image, text, text_weight, shots))[0]


def two_stage_demos(
    pool: Pool, image_similarity: Floats, text_similarity: Floats, shots: int, first: int | None = None
) -> Demos:
    """The two-stage choice of one pool; similarities are (K,)."""
    positions = rank_two_stage(image_similarity[None], text_similarity[None], shots, first)
    return demos_at([pool], positions)[0]


def mmr_demos(pool: Pool, relevance: Floats, likeness: Floats, mmr_lambda: float, shots: int) -> Demos:
    """The choice by maximal marginal relevance of one pool; relevance is (K,), likeness (K, K)."""
    likeness_to = likeness.__getitem__  # indexing by (1,) positions gives the (1, K) that `Likeness` asks for
    return demos_at([pool], rank_mmr(relevance[None], likeness_to, mmr_lambda, shots))[0]


@dataclass(frozen=True)
class PoolSimilarities:
    """How similar the K candidates of B pools are to their queries, (B, K) each; image is None for text tasks."""

    image: Floats | None
    text: Floats


def pool_rows(pools: Sequence[Pool], items: Sequence[Item]) -> Positions:
    """Positions of the candidates of B pools among the items: (B, K); smaller pools are filled up with NOBODY."""
    position = {item.id: row for row, item in enumerate(items)}
    largest = max((len(pool) for pool in pools), default=0)
    found = np.full((len(pools), largest), NOBODY, dtype=np.int64)
    for row, pool in enumerate(pools):
        found[row, : len(pool)] = [_row(position, item) for item in pool.candidates]
    return found


def _row(position: dict[ItemId, int], item: ItemId) -> int:
    if item not in position:
        raise DataError(f"candidate {item} of a pool is not among the demonstrations; build the pools again from them")
    return position[item]


def pool_similarities(
    pools: Sequence[Pool], query_vectors: Vectors, items: Sequence[Item], item_vectors: Vectors
) -> PoolSimilarities:
    """The similarities inside pools; row b of `query_vectors` is the query of pool b."""
    if len(query_vectors) != len(pools):
        raise LeverError(f"there are {len(pools)} pools but vectors of {len(query_vectors)} queries; pass one row each")
    return row_similarities(query_vectors, item_vectors, pool_rows(pools, items))


def row_similarities(query_vectors: Vectors, item_vectors: Vectors, found: Positions) -> PoolSimilarities:
    """The same for rows of the items (B, K), NOBODY where there is none."""
    text = _inside(query_vectors.text, item_vectors.text, found)
    image = None
    if query_vectors.image is not None and item_vectors.image is not None:
        image = _inside(query_vectors.image, item_vectors.image, found)
    return PoolSimilarities(image=image, text=text)


def _inside(queries: np.typing.NDArray[np.float32], items: np.typing.NDArray[np.float32], found: Positions) -> Floats:
    """Cosines between each query and the items of its pool, (B, K); `found` holds the items' positions."""
    values = np.empty(found.shape)
    for row, positions in enumerate(found):
        values[row] = cosine(queries[row : row + 1], items[positions])[0]  # NOBODY reads the last item, see below
    values[found == NOBODY] = -np.inf  # never chosen
    return values


def pool_likeness(pools: Sequence[Pool], items: Sequence[Item], item_vectors: Vectors, text_weight: float) -> Likeness:
    """A function that computes how similar all candidates of each pool are to one of them, by weighted cosines."""
    found = pool_rows(pools, items)  # (B, K)

    def likeness(chosen: Positions) -> Floats:
        values = np.empty(found.shape)
        for row, (positions, one) in enumerate(zip(found, chosen, strict=True)):
            chosen_vectors = rows(item_vectors, positions[one : one + 1])
            values[row] = similarity(chosen_vectors, rows(item_vectors, positions), text_weight)[0]
        return values

    return likeness
