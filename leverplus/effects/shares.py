"""Knowing beforehand: what the variance of scores is made of, and what choosing by effects could gain.

A pilot asks a few demonstrations, drawn by chance, with a few queries, each with each: some hundred calls. Its two-way
table splits the variance of a score into queries (how easy they are), demonstrations (their own effects) and the rest:
interaction and luck, which one answer a prompt cannot tell apart. Effects with standard deviation s, each known with
reliability r, gain s sqrt(r) E(K) where the best of K candidates is taken, E(K) being the expected largest of K
standard normal numbers. The interval carries the error of s (the pilot has few demonstrations) and of the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leverplus.errors import DataError

Floats = NDArray[np.float64]

DRAWS = 4000


@dataclass(frozen=True)
class VarianceShares:
    """Variances of a score: between queries, between demonstrations, and the rest; from a table of Q x D scores."""

    queries: int
    demonstrations: int
    query: float
    demonstration: float
    rest: float

    @property
    def total(self) -> float:
        return self.query + self.demonstration + self.rest

    def as_json(self) -> dict[str, float | int]:
        """Variances as shares of their sum, and the standard deviation of effects."""
        whole = self.total or 1.0
        return {
            "queries": self.queries,
            "demonstrations": self.demonstrations,
            "query": self.query / whole,
            "demonstration": self.demonstration / whole,
            "interaction_and_luck": self.rest / whole,
            "effect_sd": math.sqrt(self.demonstration),
        }


@dataclass(frozen=True)
class PredictedGain:
    """What choosing by effects may gain over a random demonstration, with 95 % interval."""

    gain: float
    ci95: tuple[float, float]
    reliability: float
    calls: int


def variance_shares(scores: ArrayLike) -> VarianceShares:
    """From scores (Q, D), every demonstration with every query: two-way analysis of variance by moments.

    Mean squares: of the rest e = rest, of demonstrations rest + Q d, of queries rest + D q. A negative estimate is 0.
    """
    y = np.asarray(scores, np.float64)
    if y.ndim != 2 or min(y.shape) < 2:
        raise DataError(f"a pilot needs at least two queries and two demonstrations; got scores of shape {y.shape}")
    if not np.isfinite(y).all():
        raise DataError("a pilot asks every demonstration with every query; a score is missing")
    queries, demos = y.shape
    by_query, by_demo, middle = y.mean(axis=1), y.mean(axis=0), y.mean()
    residual = y - by_query[:, None] - by_demo[None] + middle
    rest = float((residual**2).sum() / ((queries - 1) * (demos - 1)))
    demo = max(0.0, float(by_demo.var(ddof=1)) - rest / queries)
    query = max(0.0, float(by_query.var(ddof=1)) - rest / demos)
    return VarianceShares(queries, demos, query, demo, rest)


def predicted_gain(shares: VarianceShares, *, corpus: int, candidates: int, calls: int, seed: int = 0) -> PredictedGain:
    """What effects of a corpus may gain when `calls` are spent on it evenly and the best of `candidates` is shown.

    The interval is of the error of the pilot: mean squares are drawn anew from their chi-square distributions
    (Graybill and Wang 1980 in spirit), and half of it is what a sample of test queries adds.
    """
    each = calls / max(1, corpus)

    def expected_gain(demo: Floats | float, rest: Floats | float) -> Floats:
        reliability = each * np.asarray(demo) / np.maximum(each * np.asarray(demo) + rest, 1e-12)
        return np.asarray(np.sqrt(np.maximum(demo, 0.0) * reliability) * expected_largest(candidates))

    rng = np.random.default_rng(seed)
    between, within = shares.demonstrations - 1, (shares.queries - 1) * (shares.demonstrations - 1)
    # mean square of demonstrations / its expectation is chi-square / df; invert it for the expectation given the square
    square = shares.rest + shares.queries * shares.demonstration
    rest = shares.rest * within / rng.chisquare(within, DRAWS)
    demo = np.maximum(0.0, square * between / rng.chisquare(between, DRAWS) - rest) / shares.queries
    low, high = np.quantile(expected_gain(demo, rest), (0.025, 0.975))
    known = float(each * shares.demonstration / max(each * shares.demonstration + shares.rest, 1e-12))
    return PredictedGain(
        float(expected_gain(shares.demonstration, shares.rest)), (float(low), float(high)), known, calls
    )


def expected_largest(count: int) -> float:
    """The expected largest of `count` independent standard normal numbers, by numerical integration."""
    from scipy.special import log_ndtr

    if count < 1:
        raise DataError(f"the largest of {count} numbers; at least one candidate is needed")
    x = np.linspace(-10.0, 10.0, 20001)
    density = count * np.exp((count - 1) * log_ndtr(x) - x**2 / 2) / math.sqrt(2 * math.pi)
    return float(np.trapezoid(x * density, x))
