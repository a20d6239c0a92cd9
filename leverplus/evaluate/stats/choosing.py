"""Accuracies of many ways of choosing on the same items, corrected for picking the best of them.

The best of many is high by luck: its own accuracy is too good by 3 to 13 points on 20 items. The correction is empirical
Bayes. Ways that the items cannot tell from the leader (`in_race`) are taken as draws from one distribution and pulled
towards each other, the more the noisier they are. With `y` (K,) their accuracies on n items,

    y = level + way + noise,    way ~ N(0, P),    noise ~ N(0, s^2 / n),

where s^2 is what is left of the scores without the means of items and ways: luck that all share moves the level, not
the order. P[j, k] is `own^2 + near^2 exp(-d^2 / 8)` for two numbers of examples of one arm, d apart in log2(shots + 1):
4, 8 and 16 examples of an arm tell of each other. On its diagonal stand `rest^2` besides, and for an arm that asks no
model ALONE^2: it is of another kind. The estimate is the mean of `way + level` over PRIORS, each weighed by its
likelihood. Its interval counts half the square of the pull as variance, because ways may not be alike.

All constants were settled by draws from dev items (benchmarks/advice.py), without a look at test.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from leverplus.evaluate.stats.bootstrap import Interval
from leverplus.evaluate.stats.paired import Floats, blocks, check_range

PRIORS = tuple(product((0.0, 0.05, 0.15), (0.0, 0.03, 0.1), (0.003, 0.01, 0.03)))
"""Standard deviations `own`, `near` and `rest`, in accuracy."""
ALONE = 0.1
REACH = 3.0
"""Ways further behind the leader than so many standard errors are out of the race."""
PULL = 0.5
"""The share of the squared pull that counts as variance."""
DIGITS = 6
"""Estimates are rounded, so that they are the same bytes on every machine."""


@dataclass(frozen=True)
class Way:
    """An arm at a number of shots; `alone` where it answers without a model."""

    arm: str
    shots: int
    alone: bool = False


@dataclass(frozen=True)
class Corrected:
    """What a way's accuracy is worth after choosing among many."""

    raw: float
    estimate: float
    ci95: Interval


def correct(
    scores: Floats, ways: Sequence[Way], clusters: Sequence[Hashable] | None = None
) -> list[Corrected]:
    """Every way's accuracy corrected for choosing, from scores (n, K) in [0, 1]; `clusters` are drawn as one item.

    >>> scores = np.zeros((20, 2))
    >>> scores[:11, 0] = scores[:9, 1] = 1
    >>> [round(own.estimate, 2) for own in correct(scores, [Way("a", 1), Way("b", 1)])]
    [0.51, 0.49]
    """
    check_range(scores, "scores")
    raw = scores.mean(axis=0)  # (K,)
    items = _pieces(scores, clusters)
    count = len(items)
    if count < 2:
        return [Corrected(float(value), float(value), (0.0, 1.0)) for value in raw]
    # as if one more item had been half right: nothing is certain that few items say
    spread = (items.var(axis=0) * count + 0.5) / (count + 1)
    estimate = raw.copy()
    variance = spread / count
    race = in_race(items)
    if len(race) > 1:
        runners = [ways[place] for place in race]
        estimate[race], variance[race] = _shrink(items[:, race], raw[race], runners)
        variance[race] += PULL * (estimate[race] - raw[race]) ** 2
    reach = stdtrit(count - 1, 0.975) * np.sqrt(variance)
    found = []
    for value, middle, half in zip(raw, estimate, reach, strict=True):
        low = round(max(0.0, float(middle - half)), DIGITS)
        high = round(min(1.0, float(middle + half)), DIGITS)
        found.append(Corrected(float(value), round(float(middle), DIGITS), (low, high)))
    return found


def _pieces(scores: Floats, clusters: Sequence[Hashable] | None) -> Floats:
    """One row for each piece that is drawn as one, whose mean is the mean over items."""
    if clusters is None or len(set(clusters)) == len(scores):
        return scores
    if len(set(clusters)) < 2:
        return scores[:1]
    columns = []
    for column in scores.T:
        grouped = blocks(column, clusters)
        columns.append(grouped.sums * len(grouped) / grouped.sizes.sum())
    return np.stack(columns, axis=1)


def in_race(items: Floats) -> NDArray[np.int64]:
    """The places of ways that these items (n, K) cannot tell from the leader."""
    count = len(items)
    raw = items.mean(axis=0)
    leader = int(raw.argmax())
    behind = items[:, [leader]] - items
    # as if one more item had told them apart
    spread = (behind.var(axis=0) * count + 1.0) / (count - 1)
    return np.flatnonzero(raw[leader] - raw <= REACH * np.sqrt(spread / count))


def _shrink(items: Floats, raw: Floats, ways: Sequence[Way]) -> tuple[Floats, Floats]:
    """Posterior means and variances of the ways (K,), from the pieces' scores (n, K)."""
    count, width = items.shape
    mean = items.mean(axis=1)
    left = items - mean[:, None]
    left = left - left.mean(axis=0)
    noise = ((left**2).sum() / (width - 1) + 0.25) / count
    shared = max(float(mean.var(ddof=1)) - noise / width, 0.0)
    ones = np.ones(width)
    likelihoods = []
    means = []
    variances = []
    for own, near, rest in PRIORS:
        prior = _prior(ways, own, near, rest)  # (K, K)
        root = np.linalg.cholesky(prior + noise / count * np.eye(width))
        solved = np.linalg.solve(root, np.column_stack([ones, raw, prior]))
        one = solved[:, 0]
        seen = solved[:, 1]
        ties = solved[:, 2:]
        weight = one @ one
        level = (one @ seen) / weight
        off = seen - level * one
        # the level is not known beforehand: likelihood and variances are those with a flat prior on it
        size = 2 * np.log(np.diag(root)).sum() + np.log(weight)
        likelihoods.append(-0.5 * (size + off @ off))
        means.append(level + ties.T @ off)
        loose = 1 - ties.T @ one
        known = np.diag(prior) - (ties**2).sum(axis=0)
        variances.append(known + loose**2 / weight)
    share = np.exp(np.array(likelihoods) - max(likelihoods))
    share /= share.sum()
    every = np.array(means)  # (P, K)
    estimate = share @ every
    variance = share @ (np.array(variances) + (every - estimate) ** 2)
    return estimate, variance + shared / count


def _prior(ways: Sequence[Way], own: float, near: float, rest: float) -> Floats:
    """How ways are alike before anything was measured: their covariance (K, K)."""
    width = len(ways)
    prior = np.zeros((width, width))
    for row, first in enumerate(ways):
        for column, second in enumerate(ways):
            if first.arm == second.arm:
                apart = np.log2((first.shots + 1) / (second.shots + 1))
                prior[row, column] = own**2 + near**2 * np.exp(-(apart**2) / 8)
        prior[row, row] += rest**2
        if first.alone:
            prior[row, row] += ALONE**2
    return prior
