"""Similarities that are the same to the last bit however they are batched, and exact search for the most similar.

Components of unit vectors are rounded to multiples of 2^-25 (float32 holds no more near 1). Products are then multiples
of 2^-50 and every partial sum of a dot product is below 2^53 of them, so float64 adds them without rounding, in any
order. A query therefore has the same neighbours in whatever block, on whatever machine it is searched, and equal
vectors tie exactly; ties go to the item that comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.embedders.base import Vectors
from leverplus.errors import LeverError

Floats = NDArray[np.float64]
Positions = NDArray[np.int64]
Likeness = Callable[[Positions], Floats]
"""How similar all N are to the one at a position, in each of B rows: (B,) -> (B, N)."""

GRID = 2.0**25  # components become whole multiples of 1 / GRID; the reason stands at the top of this file
ITEMS_AT_ONCE = 8192  # items compared at a time, which bounds the memory however many there are


def cosine(left: NDArray[np.float32], right: NDArray[np.float32]) -> Floats:
    """Exact inner products of unit vectors rounded to the grid: (..., B, D) and (..., N, D) -> (..., B, N)."""
    snapped_left = _snap(left)
    # numpy computes half of the products when both sides are the same array.
    snapped_right = snapped_left if left is right else _snap(right)
    products: Floats = snapped_left @ snapped_right.swapaxes(-1, -2)
    return products / GRID**2


def _snap(vectors: NDArray[np.float32]) -> Floats:
    """The components as whole numbers of grid steps, in float64."""
    snapped = vectors.astype(np.float64)
    snapped *= GRID
    return np.rint(snapped, out=snapped)


def similarity(left: Vectors, right: Vectors, text_weight: float) -> Floats:
    """text_weight * cosine of the questions + (1 - text_weight) * cosine of the pictures: (B, N)."""
    text = cosine(left.text, right.text) if text_weight > 0.0 else None
    image = None
    if text_weight < 1.0 and left.image is not None and right.image is not None:
        image = cosine(left.image, right.image)
    return weighted_similarity(image, text, text_weight)


def weighted_similarity(image: Floats | None, text: Floats | None, text_weight: float) -> Floats:
    """text_weight * text + (1 - text_weight) * image; only a part of weight 0 may be missing."""
    if not 0.0 <= text_weight <= 1.0:
        raise LeverError(f"text_weight = {text_weight}: must be at least 0 and at most 1")
    parts = [(text_weight, text, "questions"), (1.0 - text_weight, image, "pictures")]
    weighted = []
    for weight, part, what in parts:
        if weight == 0.0:
            continue
        if part is None:
            raise missing_vectors(what, weight)
        weighted.append(part if weight == 1.0 else weight * part)
    if len(weighted) == 1:
        return weighted[0]
    return weighted[0] + weighted[1]


def missing_vectors(what: str, weight: float) -> LeverError:
    """The error of a comparison of pictures (or questions) that have no vectors."""
    return LeverError(
        f"{what} are compared with weight {weight:g}, but these items have no vectors of {what}; for a text task set "
        'pool.kind = "corpus" or "nearest_text", or pool.text_weight = 1 and pool.mix_image = 0'
    )


def rows(vectors: Vectors, index: Any) -> Vectors:
    """Some rows of the vectors, by slice or by positions."""
    image = None if vectors.image is None else vectors.image[index]
    return Vectors(image=image, text=vectors.text[index], answer=vectors.answer[index])


def top(values: Floats, count: int) -> Positions:
    """Positions of the `count` largest of each row, largest first, equal ones in order of position: (B, count)."""
    if not 0 <= count <= values.shape[1]:
        raise LeverError(f"the best {count} of {values.shape[1]} candidates were asked for; ask for fewer")
    if count == 0:
        return np.empty((len(values), 0), dtype=np.int64)
    rest = values.shape[1] - count
    chosen = np.argpartition(values, rest, axis=1)[:, rest:]  # (B, count), in no order
    smallest = np.take_along_axis(values, chosen, axis=1).min(axis=1, keepdims=True)  # (B, 1)
    # argpartition takes any of the values that tie for the last place; here the first of them must be taken.
    for row in np.flatnonzero((values >= smallest).sum(axis=1) > count):
        above = np.flatnonzero(values[row] > smallest[row])
        equal = np.flatnonzero(values[row] == smallest[row])
        chosen[row] = np.concatenate([above, equal[: count - len(above)]])
    chosen.sort(axis=1)  # by position, so that the stable sort by value keeps equal ones in that order
    order = np.argsort(-np.take_along_axis(values, chosen, axis=1), axis=1, kind="stable")
    return np.take_along_axis(chosen, order, axis=1).astype(np.int64)


def nearest(
    queries: Vectors, items: Vectors, forbidden: Sequence[Positions], text_weight: float, count: int
) -> tuple[Positions, Floats]:
    """The `count` most similar items of each query, best first, and their similarities: (B, count) each.

    `forbidden` holds, for each query, the positions it may not get; where a query runs out of allowed items the rest
    has similarity -inf. Exact; holds B x 8192 similarities at a time however many items there are.
    """
    count = min(count, len(items))
    # all forbidden (query, item) pairs as two flat arrays; the empty one serves where there are no queries
    row = np.repeat(np.arange(len(queries)), [len(positions) for positions in forbidden])
    column = np.concatenate([np.empty(0, dtype=np.int64), *forbidden])
    best = np.empty((len(queries), 0), dtype=np.int64)
    value = np.empty((len(queries), 0))
    for start in range(0, len(items), ITEMS_AT_ONCE):
        part = rows(items, slice(start, start + ITEMS_AT_ONCE))
        block = similarity(queries, part, text_weight)  # (B, up to 8192)
        inside = (column >= start) & (column < start + block.shape[1])
        block[row[inside], column[inside] - start] = -np.inf
        found = top(block, min(count, block.shape[1]))
        best = np.concatenate([best, found + start], axis=1)
        value = np.concatenate([value, np.take_along_axis(block, found, axis=1)], axis=1)
        # stable: earlier items stand to the left, so ties go to them
        kept = np.argsort(-value, axis=1, kind="stable")[:, :count]
        best = np.take_along_axis(best, kept, axis=1)  # (B, count)
        value = np.take_along_axis(value, kept, axis=1)
    return best, value


def mmr_order(relevance: Floats, likeness: Likeness, mmr_lambda: float, count: int) -> Positions:
    """Maximal marginal relevance: near to the query, unlike what is chosen; positions in order of choice (B, count).

    The first is the most relevant; then each time the largest lambda * relevance - (1 - lambda) * (largest likeness to
    a chosen one). `relevance` is (B, N), -inf for what may not be chosen; `likeness` is asked only about what was
    chosen, so that nobody needs all N x N. Carbonell and Goldstein, SIGIR 1998.
    """
    if not 0 <= count <= relevance.shape[1]:
        raise LeverError(f"the best {count} of {relevance.shape[1]} candidates were asked for; ask for fewer")
    every_row = np.arange(len(relevance))
    closed = np.isneginf(relevance)  # (B, N)
    near = mmr_lambda * np.where(closed, 0.0, relevance)  # 0 * -inf would be NaN
    redundancy = np.full(relevance.shape, -np.inf)
    order = np.empty((len(relevance), count), dtype=np.int64)
    for step in range(count):
        gain = relevance if step == 0 else near - (1.0 - mmr_lambda) * redundancy
        order[:, step] = np.where(closed, -np.inf, gain).argmax(axis=1)
        closed[every_row, order[:, step]] = True
        if step + 1 < count:  # likeness to the last choice would not be used
            redundancy = np.maximum(redundancy, likeness(order[:, step]))
    return order
