"""Similarities that are the same to the last bit however they are batched, and the largest of them.

Components of unit vectors are rounded to multiples of 2^-25 (float32 holds no more near 1). Products are then multiples
of 2^-50 and every partial sum of a dot product is below 2^53 of them, so float64 adds them without rounding, in any
order. A query therefore has the same neighbours in whatever batch, on whatever machine it is searched, and equal
vectors tie exactly; ties go to the item that comes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.encode.base import Vectors

Floats = NDArray[np.float64]
Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]

GRID = 2.0**25
"""Components become whole multiples of 1 / GRID."""
MMR_LAMBDA = 0.7
"""What nearness counts against variety in marginal relevance."""


def cosine(left: NDArray[np.float32], right: NDArray[np.float32]) -> Floats:
    """Exact inner products of unit vectors rounded to the grid: (B, D) and (N, D) -> (B, N)."""
    snapped = snap(left)
    # numpy computes half of the products when both sides are the same array
    other = snapped if left is right else snap(right)
    products: Floats = snapped @ other.T
    return products / GRID**2


def snap(vectors: NDArray[np.float32]) -> Floats:
    """The components as whole numbers of grid steps, in float64."""
    snapped = vectors.astype(np.float64)
    snapped *= GRID
    return np.rint(snapped, out=snapped)


def rows(vectors: Vectors, index: Any) -> Vectors:
    """Some rows of the vectors, by slice or by positions."""
    image = None if vectors.image is None else vectors.image[index]
    return Vectors(image=image, text=vectors.text[index], answer=vectors.answer[index])


def top(values: Floats, count: int) -> Positions:
    """Positions of the `count` largest of each row, largest first, equal ones in order of position: (B, count)."""
    if count == 0:
        return np.empty((len(values), 0), dtype=np.int64)
    rest = values.shape[1] - count
    chosen = np.argpartition(values, rest, axis=1)[:, rest:]  # (B, count), in no order
    taken = np.take_along_axis(values, chosen, axis=1)
    smallest = taken.min(axis=1, keepdims=True)
    # argpartition takes any of the values that tie for the last place; here the first of them must be taken
    reaching = (values >= smallest).sum(axis=1)
    for row in np.flatnonzero(reaching > count):
        above = np.flatnonzero(values[row] > smallest[row])
        equal = np.flatnonzero(values[row] == smallest[row])
        chosen[row] = np.concatenate([above, equal[: count - len(above)]])
    chosen.sort(axis=1)  # so that the stable sort keeps equal ones in this order
    found = np.take_along_axis(values, chosen, axis=1)
    order = np.argsort(-found, axis=1, kind="stable")
    return np.take_along_axis(chosen, order, axis=1).astype(np.int64)


def best_open(scores: Floats, is_open: Mask, count: int) -> Positions:
    """The open rows with the largest scores (N,), best first, equal ones in order of rows; fewer where fewer are open."""
    open_rows = np.flatnonzero(is_open)
    best = top(scores[open_rows][None], min(count, len(open_rows)))[0]
    return np.asarray(open_rows[best], np.int64)


def mmr_order(
    near: Floats, like: Floats, count: int, weight: float = MMR_LAMBDA
) -> Positions:
    """Maximal marginal relevance: near to the query, unlike what is chosen; positions in order of choice (count,).

    The first is the nearest; then each time the largest weight * near - (1 - weight) * (largest likeness to a chosen
    one). `near` is (N,), `like` (N, N). Carbonell and Goldstein, SIGIR 1998.
    """
    is_open = np.ones(len(near), np.bool_)
    redundancy = np.full(len(near), -np.inf)
    gain = near
    order = np.empty(min(count, len(near)), np.int64)
    for step in range(len(order)):
        chosen = int(np.where(is_open, gain, -np.inf).argmax())
        order[step] = chosen
        is_open[chosen] = False
        redundancy = np.maximum(redundancy, like[chosen])
        gain = weight * near - (1.0 - weight) * redundancy
    return order
