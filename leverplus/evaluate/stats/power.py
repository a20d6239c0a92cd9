"""How small a difference n items can show, and how many items a difference needs.

When every item that changes does so by one size, the test is McNemar's and its power is computed exactly, up to
EXACT changed items. For more, and for mixed sizes, a normal approximation of the sign-flip test's power is used, which
was checked against the exact one and by simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import bdtr, bdtrc, ndtr, ndtri

from leverplus.errors import EvaluationError
from leverplus.evaluate.stats.paired import TIE, Blocks
from leverplus.evaluate.stats.significance import binomial_chances


@dataclass(frozen=True)
class Changes:
    """The share of items on which two arms score differently, and by how much they do.

    `size` is the root mean square of the differences that are not zero and `uniform` whether they all have it; if not,
    `step` is the largest number they are all multiples of (0 for none). Where whole images are the pieces, these
    describe pieces, scaled to items, and `block` is how many items one holds.
    """

    discordance: float
    size: float = 1.0
    uniform: bool = True
    step: float = 0.0
    block: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.discordance <= 1.0:
            raise EvaluationError(
                f"discordance is a share of items in [0, 1]; got {self.discordance:g}"
            )
        if not self.size > 0.0:
            raise EvaluationError(
                f"the size of a change must be above 0; got {self.size:g}"
            )

    @classmethod
    def seen_in(cls, data: Blocks) -> Changes:
        """The changes seen in paired differences; where none differ, a change is taken to be a full point."""
        block = float(data.sizes.mean())
        sizes = np.abs(data.sums)
        moves = sizes[sizes > TIE] / block
        if len(moves) == 0:
            return cls(0.0)
        return cls(
            discordance=len(moves) / len(data),
            size=float(np.sqrt(np.mean(moves**2))),
            uniform=bool(np.ptp(moves) < TIE),
            step=_step(data.sums) / block,
            block=block,
        )


EXACT = 100_000
"""McNemar's power is summed exactly up to this many changed items. At that number the approximation is within 1e-5 of
it, or within 3e-4 if every item changes."""

USUAL = Changes(0.2)
"""Two selectors on the same model typically differ on about a fifth of the items; measure it where you can."""


def paired_power(
    effect: float, n: int, changes: Changes, *, alpha: float = 0.05
) -> float:
    """Chance that a true difference of `effect` is found at level `alpha` on n paired pieces (items, or images).

    An effect larger than discordance * size needs more discordance than was seen, and is given it.
    """
    if n < 1:
        raise EvaluationError(f"the number of items must be at least 1; got {n}")
    share = abs(effect) / changes.size  # of items helped minus harmed
    needed = min(1.0, max(changes.discordance, share))  # the discordance assumed
    if needed == 0.0:
        return 0.0
    if changes.uniform and n * needed <= EXACT:
        return _mcnemar_power(share, n, needed, alpha)
    # The test divides the sum by the root of the summed squares. The items of an image gain together, which adds to
    # those squares; and as both grow with the number of items that happen to differ, their ratio varies less than the
    # sum (delta method for changes of one size). Flipping a sign moves the sum by two steps, so that the threshold lies
    # one step too far out on average.
    squares = needed + share**2 * (1.0 - 1.0 / changes.block)
    ratio = share / squares
    variance = 1.0 - 0.75 * ratio**2 - 0.25 * ratio * share
    spread = math.sqrt(max(variance, 1e-12))
    shift = (
        math.sqrt(n / squares) * share
    )  # the expected test statistic, in standard errors
    step = 1.0 if changes.uniform else changes.step / changes.size
    limit = -float(ndtri(alpha / 2)) + step / math.sqrt(n * squares)
    right_side = ndtr((shift - limit) / spread)
    wrong_side = ndtr((-shift - limit) / spread)
    return float(right_side + wrong_side)


@lru_cache(maxsize=4096)
def minimum_detectable_effect(
    n: int, changes: Changes, *, power: float = 0.8, alpha: float = 0.05
) -> float:
    """The smallest true difference that n paired pieces show with this power (80 %) at this level (5 %); at most 1.0.

    800 items of which 10 % differ show 0.032: `minimum_detectable_effect(800, Changes(0.1))`.
    """

    def power_above_goal(effect: float) -> float:
        return paired_power(effect, n, changes, alpha=alpha) - power

    largest = min(changes.size, 1.0)
    if power_above_goal(largest) < 0.0:
        return 1.0
    return float(brentq(power_above_goal, 0.0, largest, xtol=1e-7))


def plan_n(
    effect: float, changes: Changes = USUAL, *, power: float = 0.8, alpha: float = 0.05
) -> int:
    """How many paired items are needed to find a true difference of `effect` with this power at this level."""
    if not 0.0 < abs(effect) <= 1.0:
        raise EvaluationError(
            f"an effect must be a difference of accuracies in (0, 1]; got {effect:g}, try 0.01"
        )
    if abs(effect) > changes.size:
        raise EvaluationError(
            f"items that change by {changes.size:g} cannot differ by {effect:g} on average"
        )

    def enough(n: int) -> bool:
        return paired_power(effect, n, changes, alpha=alpha) >= power

    # doubled until enough, then the smallest n is found by halving the range
    low = 1
    high = 16
    while not enough(high):
        low = high
        high = 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _step(sums: NDArray[np.float64]) -> float:
    """The largest number all sums are multiples of, if they are thirtieths, as with ten annotators; else 0."""
    thirtieths = np.round(30 * sums)
    if np.abs(30 * sums - thirtieths).max() > 1e-6:
        return 0.0
    return float(np.gcd.reduce(thirtieths.astype(np.int64))) / 30


def _mcnemar_power(share: float, n: int, discordance: float, alpha: float) -> float:
    """Exact: the number of discordant items is binomial, and given it the test is a fair-coin test."""
    expected = n * discordance
    spread = math.sqrt(n * discordance * (1.0 - discordance))
    # numbers further than 8 standard deviations out have a chance below 1e-14
    fewest = max(0, math.floor(expected - 8 * spread))
    most = min(n, math.ceil(expected + 8 * spread))
    m = np.arange(fewest, most + 1)  # numbers of discordant items
    chance = binomial_chances(m, n, discordance)
    limit = _rejection_limits(int(m[0]), int(m[-1]), alpha)
    up = 0.5 * (
        1.0 + share / discordance
    )  # the chance that a discordant item is helped
    tested = limit >= 0
    m = m[tested]
    limit = limit[tested]
    chance = chance[tested]
    found = bdtr(limit, m, up) + bdtrc(m - limit - 1, m, up)  # rejected on either side
    return float(np.sum(chance * found))


@lru_cache(maxsize=256)
def _rejection_limits(first: int, last: int, alpha: float) -> NDArray[np.float64]:
    """For m = first..last discordant items, the largest minority count that is significant; -1 where none is."""
    m = np.arange(first, last + 1)
    guess = (
        np.floor(m / 2 + 0.5 * ndtri(alpha / 2) * np.sqrt(m)) + 2
    )  # never too small; lowered to the exact limit
    limit = np.minimum(guess, (m - 1) // 2)
    while True:
        p_value = 2.0 * bdtr(np.maximum(limit, 0), m, 0.5)
        over = (limit >= 0) & (p_value > alpha)
        if not over.any():
            return np.asarray(np.maximum(limit, -1), dtype=np.float64)
        limit = np.where(over, limit - 1, limit)
