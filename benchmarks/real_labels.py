"""Answers that labels alone predict, without any call of a model: a tuned vote of neighbours, and kernel regression.

Both give what every shown answer may expect to score with every item (N, A), for an item of the training set as if it
and its picture were not in it.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parent))
from real_data import Floats, TaskData

from leverplus.pools.similarity import top

Mask = NDArray[np.bool_]
NEIGHBOURS = (4, 8, 16, 32, 64)
WARMTH = (0.03, 0.1, 0.3)
WIDTHS, RIDGES = (0.15, 0.5), (0.3,)


def vote(task: TaskData, field: str, train: Mask, neighbours: int, warmth: float) -> Floats:
    """Expected score of every answer: the mean over the nearest training items, weighed by exp(similarity / warmth)."""
    places, value = nearest(task, field, train)
    places, value = places[:, :neighbours], value[:, :neighbours]
    weight = np.exp((value - value[:, :1]) / warmth)
    weight /= weight.sum(axis=1, keepdims=True)
    starts = np.arange(0, places.size + 1, neighbours)
    chosen = sparse.csr_matrix((weight.ravel(), places.ravel(), starts), shape=(len(places), len(task.items)))
    return np.asarray((chosen @ sparse.csr_matrix(task.worth)).todense())


def nearest(task: TaskData, field: str, train: Mask) -> tuple[NDArray[np.int64], Floats]:
    """The nearest training items of every item (N, 64), not on its own picture, and their similarities."""
    known = np.flatnonzero(train)
    near = task.likeness[field][:, known].copy()
    near[task.group[:, None] == task.group[known]] = -np.inf
    best = top(near, max(NEIGHBOURS))
    return known[best], np.take_along_axis(near, best, axis=1)


def kernel_regression(task: TaskData, field: str, train: Mask, width: float, ridge: float) -> Floats:
    """Ridge regression of scores on the kernel exp((cosine - 1) / width); training items by leaving them out."""
    known = np.flatnonzero(train)
    kernel = np.exp((task.likeness[field][:, known].astype(np.float32) - 1.0) / width)
    inverse = np.linalg.inv(kernel[known] + np.float32(ridge) * np.eye(len(known), dtype=np.float32))
    weights = inverse @ task.worth[known]
    found = kernel @ weights
    # closed form of leaving one out: y - (C^-1 y) / diag(C^-1)
    found[known] = task.worth[known] - weights / np.diag(inverse)[:, None]
    return np.asarray(found)


def tuned(task: TaskData, train: Mask, dev: Mask) -> dict[str, tuple[Floats, int]]:
    """The best vote and the best regression by dev accuracy of their likeliest answer, and how many were tried."""

    def right(expected: Floats) -> float:
        places = np.flatnonzero(dev)
        return float(task.worth[places, expected[places].argmax(axis=1)].mean())

    fields = list(task.vectors)
    found = {}
    for name, predict, settings in (
        ("vote", vote, list(product(fields, NEIGHBOURS, WARMTH))),
        ("regression", kernel_regression, list(product(fields[:2], WIDTHS, RIDGES))),
    ):
        best, most = np.zeros_like(task.worth), -1.0
        for field, first, second in settings:
            expected = predict(task, field, train, first, second)  # type: ignore[operator]
            if (now := right(expected)) > most:
                best, most = expected, now
        found[name] = best, len(settings)
    return found
