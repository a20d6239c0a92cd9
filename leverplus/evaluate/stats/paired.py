"""The input of every statistic: checked scores, paired differences, and the blocks of items that are drawn together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leverplus.errors import EvaluationError

Floats = NDArray[np.float64]

TIE = 1e-9
"""Two scores or sums closer than this are equal: 0.9 - 0.6 and 0.6 - 0.3 are one difference, whatever the last bit."""


def checked_scores(
    scores: ArrayLike, name: str = "scores", *, least: int = 2
) -> Floats:
    """Scores as a vector of at least `least` numbers in [0, 1]; anything else is refused with a sentence."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1:
        raise EvaluationError(
            f"{name} must be one number per item; got an array of shape {values.shape}"
        )
    if len(values) < least:
        raise EvaluationError(
            f"{name} must hold at least {least} items to say anything about noise; got {len(values)}"
        )
    check_range(values, name)
    return values


def check_range(values: Floats, name: str) -> None:
    """Refuses missing values and values outside [0, 1]."""
    missing = int(np.count_nonzero(~np.isfinite(values)))
    if missing:
        raise EvaluationError(
            f"{name} hold values that are not numbers ({missing} of {values.size}); measure them or leave the items out"
        )
    low = float(values.min())
    high = float(values.max())
    if low < 0.0 or high > 1.0:
        raise EvaluationError(
            f"{name} must lie in [0, 1] and range from {low:g} to {high:g}; divide percentages by 100"
        )


def paired_differences(a: ArrayLike, b: ArrayLike, *, least: int = 2) -> Floats:
    """a - b item by item; both are scores of the same items in the same order, at least `least` of them."""
    first = checked_scores(a, "scores of the first arm", least=least)
    second = checked_scores(b, "scores of the second arm", least=least)
    if len(first) != len(second):
        raise EvaluationError(
            f"paired scores must be of the same items; got {len(first)} and {len(second)}, compare their common items"
        )
    differences = first - second
    differences[np.abs(differences) < TIE] = 0.0
    return differences


def check_clusters(clusters: Sequence[Hashable] | None, n: int) -> None:
    """Refuses clusters that do not name one for each of the n items."""
    if clusters is not None and len(clusters) != n:
        raise EvaluationError(
            f"there are {n} scores but {len(clusters)} clusters; give one cluster per score"
        )


@dataclass(frozen=True)
class Blocks:
    """Items grouped into blocks that are drawn as one piece (an image with all its questions, or one item).

    `sums` and `sizes` have one entry per block; the mean over items is sum(sums) / sum(sizes).
    """

    sums: Floats
    sizes: Floats

    def __len__(self) -> int:
        return len(self.sums)

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.sizes.sum())

    @property
    def is_constant(self) -> bool:
        """Whether every block has the same mean, so that no drawing of blocks can show any spread."""
        means = self.sums / self.sizes
        return float(np.ptp(means)) < TIE


def blocks(values: Floats, clusters: Sequence[Hashable] | None) -> Blocks:
    """The blocks of item values; without clusters each item is its own."""
    if clusters is None:
        return Blocks(values, np.ones_like(values))
    check_clusters(clusters, len(values))
    numbers: dict[Hashable, int] = {}
    # clusters are numbered in the order in which they are first met
    index = np.array(
        [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    )
    if len(numbers) < 2:
        raise EvaluationError(
            "all items are in one cluster; at least 2 clusters are needed to say anything about noise"
        )
    sums = np.bincount(index, values).astype(np.float64)
    sizes = np.bincount(index).astype(np.float64)
    return Blocks(sums, sizes)
