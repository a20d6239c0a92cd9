"""Answers that labels alone predict, without any call of a model: a tuned vote of neighbours, and kernel regression.

Both give what every shown answer may expect to score with every item (N, A), for an item of the training set as if it
and its picture were not in it. So training items serve to choose settings, beside dev.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parent))
from real_data import Floats, TaskData

from leverplus.pools.similarity import top
from leverplus.ranking.labels import left_out_residual

Mask = NDArray[np.bool_]
NEIGHBOURS = (4, 8, 16, 32, 64)
WARMTH = (0.03, 0.1, 0.3)
WIDTHS, RIDGES = (0.15, 0.5), (0.3,)


Near = tuple[NDArray[np.int64], Floats]
"""The nearest training items of every item (N, 64), best first, and their similarities."""


def vote(task: TaskData, near: Near, neighbours: int, warmth: float) -> Floats:
    """Expected score of every answer: the mean over the nearest training items, weighed by exp(similarity / warmth)."""
    places, value = near
    places, value = places[:, :neighbours], value[:, :neighbours]
    weight = np.exp((value - value[:, :1]) / warmth)
    weight /= weight.sum(axis=1, keepdims=True)
    starts = np.arange(0, places.size + 1, neighbours)
    chosen = sparse.csr_matrix((weight.ravel(), places.ravel(), starts), shape=(len(places), len(task.items)))
    return np.asarray((chosen @ sparse.csr_matrix(task.answer_accuracy)).todense())


def nearest(task: TaskData, field: str, train: Mask) -> Near:
    """The nearest training items of every item, none on its own picture."""
    known = np.flatnonzero(train)
    near = task.likeness[field][:, known].copy()
    near[task.group[:, None] == task.group[known]] = -np.inf
    best = top(near, max(NEIGHBOURS))
    return known[best], np.take_along_axis(near, best, axis=1)


def kernel_regression(task: TaskData, field: str, train: Mask, width: float, ridge: float) -> Floats:
    """Ridge regression of scores on the kernel exp((cosine - 1) / width); training items without their own picture."""
    known = np.flatnonzero(train)
    kernel = np.exp((task.likeness[field][:, known].astype(np.float32) - 1.0) / width)
    inverse = np.linalg.inv(kernel[known] + np.float32(ridge) * np.eye(len(known), dtype=np.float32))
    weights = inverse @ task.answer_accuracy[known].astype(np.float32)
    found = (kernel @ weights).astype(np.float64)
    found[known] = task.answer_accuracy[known] - left_out_residual(inverse, weights, task.group[known])
    return found


def tuned(task: TaskData, train: Mask, judged: Mask) -> dict[str, tuple[Floats, int]]:
    """The best vote and the best regression by the accuracy of their likeliest answer on the judged items.

    Beside each stands how many were tried.
    """
    places = np.flatnonzero(judged)

    def right(expected: Floats) -> float:
        return float(task.answer_accuracy[places, expected[places].argmax(axis=1)].mean())

    fields = list(task.vectors)
    near = {field: nearest(task, field, train) for field in fields}
    tries: dict[str, list[Callable[[], Floats]]] = {
        "vote": [
            partial(vote, task, near[field], neighbours, warmth)
            for field, neighbours, warmth in product(fields, NEIGHBOURS, WARMTH)
        ],
        "regression": [
            partial(kernel_regression, task, field, train, width, ridge)
            for field, width, ridge in product(fields[:2], WIDTHS, RIDGES)
        ],
    }
    found = {}
    for name, settings in tries.items():
        best, most = np.zeros_like(task.answer_accuracy), -1.0
        for predict in settings:
            expected = predict()
            if (now := right(expected)) > most:
                best, most = expected, now
        found[name] = best, len(settings)
    return found
