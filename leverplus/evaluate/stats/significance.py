"""Tests of no difference on paired items: sign-flip permutation, exact McNemar; and Holm's correction over many.

Sources: Fisher, "The Design of Experiments" (1935), for sign flips; McNemar (1947); Holm (1979).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, gammaln, xlog1py, xlogy

from leverplus.errors import EvaluationError
from leverplus.evaluate.stats.paired import TIE, Floats, blocks, paired_differences

FLIPS = 20_000  # random swaps where no exact distribution can be had: p-values of 0.05 are good to about 0.003
_LARGEST_TABLE = 1_000_000  # sums held while the exact distribution is built


def sign_flip_test(
    a: ArrayLike,
    b: ArrayLike,
    *,
    clusters: Sequence[Hashable] | None = None,
    flips: int = FLIPS,
    seed: int = 0,
) -> float:
    """Two-sided p-value that swapping the arms at random, item by item, gives a difference as large as the observed.

    With `clusters` the arms are swapped for whole images. Exact wherever the differences lie on a grid, as VQA
    accuracies do; otherwise from `flips` random swaps, the observed one counted among them. On scores of 0 and 1 it
    is McNemar's test.
    """
    sums = blocks(paired_differences(a, b), clusters).sums
    observed = (
        abs(float(sums.sum())) - TIE
    )  # sums that tie with the observed one up to rounding count as equal
    moves = np.abs(sums)
    # blocks that differ by the same size are interchangeable; those that do not differ have no sign to flip
    sizes, counts = np.unique(np.round(moves[moves > TIE], 12), return_counts=True)
    exact = _flip_distribution(sizes.astype(np.float64), counts)
    if exact is not None:
        totals, chances = exact
        extreme = chances[np.abs(totals) >= observed]
        return float(min(1.0, extreme.sum()))
    rng = np.random.default_rng(seed)
    signed = np.zeros(flips)
    for size, count in zip(sizes, counts, strict=True):
        heads = rng.binomial(count, 0.5, size=flips)
        signed += size * (2.0 * heads - count)
    as_large = np.count_nonzero(np.abs(signed) >= observed)
    return float((1 + as_large) / (flips + 1))


def _flip_distribution(
    sizes: Floats, counts: NDArray[np.int64]
) -> tuple[Floats, Floats] | None:
    """Every sum of randomly signed differences with its chance; None when there are too many different sums."""
    totals: Floats = np.zeros(1)
    chances: Floats = np.ones(1)
    for size, count in zip(sizes, counts, strict=True):
        if len(totals) * (count + 1) > _LARGEST_TABLE:
            return None
        heads = np.arange(
            count + 1
        )  # how many of the differences of this size keep their sign
        ways = binomial_chances(heads, int(count), 0.5)
        moved = size * (2.0 * heads - count)
        sums = np.add.outer(totals, moved).ravel()
        joint = np.multiply.outer(chances, ways).ravel()
        # sums that are equal up to rounding become one, and their chances are added
        _, first, place = np.unique(
            np.round(sums, 9), return_index=True, return_inverse=True
        )
        totals = sums[first]
        chances = np.bincount(place, joint).astype(np.float64)
    return totals, chances


def binomial_chances(heads: NDArray[np.int64], count: int, chance: float) -> Floats:
    """P(heads) for `count` tosses of a coin that falls heads with `chance`."""
    # in logarithms: the number of ways overflows from about 1,000 tosses on
    log_ways = gammaln(count + 1) - gammaln(heads + 1) - gammaln(count - heads + 1)
    log_chances = log_ways + xlogy(heads, chance) + xlog1py(count - heads, -chance)
    return np.asarray(np.exp(log_chances), dtype=np.float64)


def mcnemar_test(helped: int, harmed: int) -> float:
    """Exact two-sided p-value that `helped` and `harmed` items are a fair coin's heads and tails."""
    if helped < 0 or harmed < 0:
        raise EvaluationError(
            f"counts of helped and harmed items cannot be negative; got {helped} and {harmed}"
        )
    fewer = min(helped, harmed)
    chance = 2.0 * bdtr(fewer, helped + harmed, 0.5)
    return float(min(1.0, chance))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given.

    Claiming those below 0.05 has a chance of at most 5 % of any false alarm among all of them.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.size == 0:
        return []
    if not np.all((p >= 0.0) & (p <= 1.0)):
        raise EvaluationError("p-values must be numbers in [0, 1]")
    order = np.argsort(p, kind="stable")
    factors = np.arange(len(p), 0, -1)  # n for the smallest, n - 1 for the next, ... 1
    stepped = np.maximum.accumulate(
        p[order] * factors
    )  # never below that of a smaller p-value
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return list(map(float, adjusted))
