"""How small a difference n items can show, and how many items a difference needs.

Discordance is the share of items on which two arms score differently; a change is how much such an item moves. When
every change has one size the test is McNemar's and its power is computed exactly; mixed sizes use the normal
approximation of the sign-flip test, less what the test loses when sums of changes lie on a grid.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from leverplus.errors import EvaluationError
from leverplus.stats.significance import binomial_chances


def paired_power(
    effect: float,
    n: int,
    discordance: float,
    *,
    change: float = 1.0,
    uniform: bool = True,
    step: float = 0.0,
    alpha: float = 0.05,
) -> float:
    """Chance that a true difference of `effect` is found at level `alpha` on n paired items.

    `change` is the root mean square of the differences that are not zero, `uniform` whether all have that size;
    otherwise `step` is the largest number they are all multiples of (0 for none). An effect larger than
    discordance * change needs more discordance than was seen, and is given it.
    """
    _check(n, discordance, change)
    share = abs(effect) / change
    needed = min(1.0, max(discordance, share))
    if needed == 0.0:
        return 0.0
    if uniform:
        return _mcnemar_power(share, n, needed, alpha)
    from scipy.special import ndtr, ndtri

    # Flipping a sign moves the sum by two steps, so that the threshold lies one step too far out on average.
    shift, lost = math.sqrt(n) * share, step / change / math.sqrt(n)
    spread, limit = math.sqrt(needed), float(ndtri(alpha / 2))
    return float(ndtr(limit + (shift - lost) / spread) + ndtr(limit - (shift + lost) / spread))


@lru_cache(maxsize=4096)
def minimum_detectable_effect(
    n: int,
    discordance: float,
    *,
    change: float = 1.0,
    uniform: bool = True,
    step: float = 0.0,
    power: float = 0.8,
    alpha: float = 0.05,
) -> float:
    """The smallest true difference that n paired items show with this power (80 %) at this level (5 %); 1.0 at most.

    800 items of which 10 % differ: 0.031 by the normal approximation.
    """
    from scipy.optimize import brentq

    _check(n, discordance, change)

    def missing(effect: float) -> float:
        return paired_power(effect, n, discordance, change=change, uniform=uniform, step=step, alpha=alpha) - power

    largest = min(change, 1.0)
    if missing(largest) < 0.0:
        return 1.0
    return float(brentq(missing, 0.0, largest, xtol=1e-7))


def plan_n(
    effect: float,
    *,
    discordance: float = 0.2,
    change: float = 1.0,
    uniform: bool = True,
    step: float = 0.0,
    power: float = 0.8,
    alpha: float = 0.05,
) -> int:
    """How many paired items are needed to find a true difference of `effect` with this power at this level."""
    if not 0.0 < abs(effect) <= 1.0:
        raise EvaluationError(f"an effect must be a difference of accuracies in (0, 1]; got {effect:g}, try 0.01")
    _check(1, discordance, change)
    if abs(effect) > change:
        raise EvaluationError(f"items that change by {change:g} cannot differ by {effect:g} on average")

    def enough(n: int) -> bool:
        return paired_power(effect, n, discordance, change=change, uniform=uniform, step=step, alpha=alpha) >= power

    low, high = 1, 16
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _check(n: int, discordance: float, change: float) -> None:
    if n < 1:
        raise EvaluationError(f"the number of items must be at least 1; got {n}")
    if not 0.0 <= discordance <= 1.0:
        raise EvaluationError(f"discordance is a share of items in [0, 1]; got {discordance:g}")
    if not change > 0.0:
        raise EvaluationError(f"the size of a change must be above 0; got {change:g}")


def _mcnemar_power(share: float, n: int, discordance: float, alpha: float) -> float:
    """Exact: the number of discordant items is binomial, and given it the test is a fair-coin test."""
    from scipy.special import bdtr, bdtrc

    expected, spread = n * discordance, math.sqrt(n * discordance * (1.0 - discordance))
    m = np.arange(max(0, math.floor(expected - 8 * spread)), min(n, math.ceil(expected + 8 * spread)) + 1)
    chance = binomial_chances(m, n, discordance)
    limit = _rejection_limits(int(m[0]), int(m[-1]), alpha)
    up = 0.5 * (1.0 + share / discordance)
    tested = limit >= 0
    m, limit, chance = m[tested], limit[tested], chance[tested]
    found = bdtr(limit, m, up) + bdtrc(m - limit - 1, m, up)
    return float(np.sum(chance * found))


@lru_cache(maxsize=256)
def _rejection_limits(first: int, last: int, alpha: float) -> NDArray[np.float64]:
    """For m = first..last discordant items, the largest minority count that is significant; -1 where none is."""
    from scipy.special import bdtr, ndtri

    m = np.arange(first, last + 1)
    guess = np.floor(m / 2 + 0.5 * ndtri(alpha / 2) * np.sqrt(m)) + 2  # never too small; lowered to the exact limit
    limit = np.minimum(guess, (m - 1) // 2)
    while True:
        over = (limit >= 0) & (2.0 * bdtr(np.maximum(limit, 0), m, 0.5) > alpha)
        if not over.any():
            return np.asarray(np.maximum(limit, -1), dtype=np.float64)
        limit = np.where(over, limit - 1, limit)
