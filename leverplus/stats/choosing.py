"""Choosing one of several arms by what was measured: means on common ground, and the cheaper of equals.

Some arms were asked about fewer items than others (long prompts are dear). A plain mean would then reward an arm for
easy items. So the mean of a partly measured arm is moved by how much easier its items are for the arms that were
measured on all of them (a difference estimator). Where all arms were measured on all items these are plain means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leverplus.errors import EvaluationError
from leverplus.stats.paired import TIE

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AdjustedMeans:
    """Means of all arms (S,) as if each had been measured on all items, and on how many it was."""

    mean: Floats
    n: NDArray[np.int64]


def adjusted_means(scores: ArrayLike) -> AdjustedMeans:
    """From scores (n, S), NaN where an arm was not measured; at least one arm must have every item."""
    y = np.asarray(scores, np.float64)
    if y.ndim != 2 or not y.size:
        raise EvaluationError(f"scores must be one row per item and one column per arm; got shape {y.shape}")
    there = ~np.isnan(y)
    complete = there.all(axis=0)
    if not complete.any():
        raise EvaluationError("no arm was measured on all items, so the others cannot be set beside it")
    if not there.any(axis=0).all():
        raise EvaluationError("an arm was measured on no item; leave it out")
    easy = y[:, complete].mean(axis=1)  # (n,)
    count = there.sum(axis=0)
    # column by column: NumPy adds the columns of a table in another order, and the last digit would differ
    own = np.array([column[seen].mean() for column, seen in zip(y.T, there.T, strict=True)])  # (S,)
    easier = (np.where(there, easy[:, None], 0.0).sum(axis=0) / count) - easy.mean()
    return AdjustedMeans(own - np.where(complete, 0.0, easier), count)


def best_first(means: ArrayLike, costs: Sequence[Any]) -> list[int]:
    """Arms by mean, the best first, the cheaper one of equals (`costs` sorts cheaper ones first)."""
    # rounded to multiples of TIE, so that means that differ in the last bit only count as equal
    rounded = np.round(np.asarray(means, np.float64) / TIE)
    return sorted(range(len(costs)), key=lambda arm: (-rounded[arm], costs[arm]))
