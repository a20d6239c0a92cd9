"""The comparison of two methods that were each trained with several seeds: items and seeds both vary.

The variance of the difference is that of items (paired over the arms) plus that of seeds (one part per arm, without
the item noise that seed means carry), with degrees of freedom after Satterthwaite (1946). Drawing items and seeds with
replacement gives the shape of the interval; its width is set from the variance above, because drawing S seeds
understates their variance by (S - 1) / S and counts the item-by-seed noise more than once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import chdtri, ndtr, ndtri, stdtr, stdtrit

from leverplus.errors import EvaluationError
from leverplus.evaluate.stats.bootstrap import RESAMPLES, Interval
from leverplus.evaluate.stats.paired import Floats, blocks, check_range


@dataclass(frozen=True)
class SeededComparison:
    """Two methods on n common items, each the mean of its seeds; `seed_sd` is the spread over seeds of each arm."""

    n: int
    seeds: tuple[int, int]
    diff: float
    ci95: Interval
    p_value: float
    mde80: float
    seed_sd: tuple[float, float]
    spread: _Spread = field(repr=False)

    def detectable(self, comparisons: int) -> float:
        """The difference found 80 % of the time where p is corrected by Holm's rule over so many comparisons."""
        return self.spread.detectable(0.05 / comparisons)


def compare_seeds(
    a: ArrayLike,
    b: ArrayLike,
    *,
    clusters: Sequence[Hashable] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> SeededComparison:
    """Compares methods from scores of shape (seeds, n), the same items in the same order; each score in [0, 1].

    An arm without randomness may be given as one row; its seed spread is then zero. An arm that was trained must
    have at least two rows, else its spread is unknown, and at least one of the two arms must be such an arm.
    """
    first = _runs(a, "first")
    second = _runs(b, "second")
    if first.shape[1] != second.shape[1]:
        raise EvaluationError(
            f"paired scores must be of the same items; got {first.shape[1]} and {second.shape[1]}, "
            "compare their common items"
        )
    if len(first) == 1 and len(second) == 1:
        raise EvaluationError(
            "one run per arm shows no spread over seeds; use compare, or train more seeds"
        )
    arms = (_by_block(first, clusters), _by_block(second, clusters))
    means = [arm.mean() for arm in arms]
    diff = float(means[0] - means[1])
    spread = _Spread.of(*arms)
    rng = np.random.default_rng(seed)
    draws = _drawn_differences(arms, resamples, rng) - diff  # (resamples,), around 0
    return SeededComparison(
        n=first.shape[1],
        seeds=(len(first), len(second)),
        diff=diff,
        ci95=spread.interval(diff, draws),
        p_value=spread.p_value(diff),
        mde80=spread.detectable(),
        seed_sd=(_seed_sd(arms[0]), _seed_sd(arms[1])),
        spread=spread,
    )


@dataclass(frozen=True)
class _Spread:
    """Standard error of a difference, its degrees of freedom, and the number of blocks behind it."""

    error: float
    freedom: float
    pieces: int

    @classmethod
    def of(cls, first: Floats, second: Floats) -> _Spread:
        """From both arms (seeds, blocks)."""
        pieces = first.shape[1]
        changed = first.mean(axis=0) - second.mean(axis=0)  # (blocks,), over seeds
        items = float(np.var(changed, ddof=1)) / pieces
        seeds = of_seeds = 0.0
        # Satterthwaite's denominator: sum of (part of the variance)^2 / (its degrees of freedom). That of seeds is S, not
        # S - 1: the square of an estimate is too large on average.
        weight = items**2 / (pieces - 1)
        for arm in (first, second):
            if len(arm) > 1:
                seeds += _seed_variance(arm) / len(arm)
                means = arm.mean(axis=1)  # (seeds,)
                of_means = float(np.var(means, ddof=1)) / len(arm)
                of_seeds += of_means**2 / len(arm)
        weight += of_seeds
        # The seed part may fall below zero, as an unbiased estimate must; cut at zero, intervals were too wide (96.5 %
        # covered at 200 items). A quarter of the item part bounds the rare very low estimate.
        variance = items + max(-0.25 * items, seeds)
        freedom = variance**2 / weight if weight > 0 else float(pieces - 1)
        freedom = min(freedom, float(pieces - 1))
        return cls(math.sqrt(variance), freedom, pieces)

    def interval(self, diff: float, draws: Floats) -> Interval:
        if self.error == 0.0:
            unseen = 1.0 - 0.025 ** (
                1.0 / self.pieces
            )  # as for a constant difference without seeds
            return max(diff - unseen, -1.0), min(diff + unseen, 1.0)
        # both ends in standard errors: the shape of the draws, with the tails of t instead of a normal distribution
        ends = (
            np.quantile(draws / draws.std(), (0.025, 0.975))
            * stdtrit(self.freedom, 0.975)
            / ndtri(0.975)
        )
        low = diff + self.error * float(ends[0])
        high = diff + self.error * float(ends[1])
        return max(low, -1.0), min(high, 1.0)

    def p_value(self, diff: float) -> float:
        if (
            self.error == 0.0
        ):  # all blocks differ alike: the sign-flip test's p-value, 2 / 2^blocks
            if diff == 0.0:
                return 1.0
            return math.ldexp(1.0, 1 - self.pieces)
        return float(2.0 * stdtr(self.freedom, -abs(diff) / self.error))

    def detectable(self, alpha: float = 0.05) -> float:
        """The smallest true difference that is found 80 % of the time at this level."""
        if self.error == 0.0:
            return float(1.0 - 0.2 ** (1.0 / self.pieces))
        # The degrees of freedom are an estimate too; with nine tenths of them the effect is found as often as stated.
        # Two significant digits are enough, and let the cache below serve many comparisons.
        freedom = float(f"{0.9 * self.freedom:.2g}")
        return min(1.0, self.error * _detectable_errors(max(1.0, freedom), alpha))


@lru_cache(maxsize=1024)
def _detectable_errors(freedom: float, alpha: float = 0.05) -> float:
    """How many of its standard errors a difference must have to be found 80 % of the time.

    Both the error it is stated with and the error of the next trial are estimates with these degrees of freedom; the
    chance is taken over both, on a grid of their quantiles. With many it is the familiar 2.80.
    """
    levels = (np.arange(64) + 0.5) / 64
    error = np.sqrt(
        chdtri(freedom, levels) / freedom
    )  # (64,), estimated over true error
    threshold = float(stdtrit(freedom, 1.0 - alpha / 2)) * error

    def power_above_goal(size: float) -> float:
        found = ndtr(
            size * error[:, None] - threshold
        )  # (64 stated errors, 64 errors of the next trial)
        return float(np.mean(found)) - 0.8

    return float(brentq(power_above_goal, 0.0, 1e6))


def _runs(scores: ArrayLike, name: str) -> Floats:
    """Checked scores of shape (seeds, items); one row may be given as a plain vector."""
    values = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    if values.ndim != 2 or values.shape[1] < 2:
        raise EvaluationError(
            f"scores of the {name} arm must have shape (seeds, items >= 2); got {values.shape}"
        )
    check_range(values, f"scores of the {name} arm")
    return values


def _by_block(runs: Floats, clusters: Sequence[Hashable] | None) -> Floats:
    """(seeds, blocks) whose row means are the seeds' mean scores over items."""
    parts = [blocks(row, clusters) for row in runs]
    return np.stack([part.sums / part.sizes.mean() for part in parts])


def _seed_sd(arm: Floats) -> float:
    return math.sqrt(max(0.0, _seed_variance(arm)))


def _seed_variance(arm: Floats) -> float:
    """Variance over seeds of the mean score without the noise of the items; unbiased, so it can fall below 0.

    Two-way analysis of variance: what seed means and block means leave unexplained is the item-by-seed noise, and a
    seed's mean carries 1 / blocks of it.
    """
    if len(arm) == 1:
        return 0.0
    means = arm.mean(axis=1)  # (seeds,)
    rest = arm - means[:, None] - arm.mean(axis=0) + arm.mean()  # (seeds, blocks)
    freedom = (len(arm) - 1) * (arm.shape[1] - 1)
    noise = float((rest**2).sum()) / freedom
    return float(np.var(means, ddof=1) - noise / arm.shape[1])


def _drawn_differences(
    arms: tuple[Floats, Floats], resamples: int, rng: np.random.Generator
) -> Floats:
    """Differences of samples in which blocks, and within each arm seeds, are drawn with replacement."""
    pieces = arms[0].shape[1]
    # blocks that score alike under every seed of both arms are interchangeable: only their numbers are drawn
    kinds, counts = np.unique(
        np.round(np.concatenate(arms), 9), axis=1, return_counts=True
    )  # (seeds of both, kinds)
    total = np.zeros(resamples)
    step = max(1, 4_000_000 // len(counts))  # bounds the numbers held at once
    for start in range(0, resamples, step):
        stop = min(start + step, resamples)
        drawn_blocks = rng.multinomial(
            pieces, counts / pieces, size=stop - start
        )  # (rows, kinds)
        means = drawn_blocks @ kinds.T / pieces  # (rows, seeds of both)
        first = means[:, : len(arms[0])]
        second = means[:, len(arms[0]) :]
        for sign, own in ((1.0, first), (-1.0, second)):
            seeds = own.shape[1]
            drawn_seeds = rng.multinomial(
                seeds, np.full(seeds, 1.0 / seeds), size=stop - start
            )  # (rows, seeds)
            total[start:stop] += sign * (drawn_seeds * own).sum(axis=1) / seeds
    return total
