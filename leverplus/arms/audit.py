"""What was measured, for people: which demonstrations help and which harm, and what choosing by effects could gain.

A pilot asks a few demonstrations, drawn by chance, with a few queries, each with each: some hundred calls. Its two-way
table splits the variance of a score into queries (how easy they are), demonstrations (their own effects) and the rest:
interaction and luck, which one answer a prompt cannot tell apart. Effects with standard deviation s, each known with
reliability r, gain s sqrt(r) E(K) where the best of K candidates is taken, E(K) being the expected largest of K
standard normal numbers. The interval carries the error of s (the pilot has few demonstrations) and of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from leverplus.arms.effects import Effects, Measured, estimate_effects
from leverplus.arms.similarity import Floats
from leverplus.errors import DataError

DRAWS = 4000
FEWEST = 3
"""Answers that a demonstration must have been shown for to be listed."""


@dataclass(frozen=True)
class AuditLine:
    """A demonstration with its effect and standard error, in accuracy, and how many queries it was shown to."""

    demo: str
    effect: float
    error: float
    shown: int


@dataclass(frozen=True)
class Audit:
    """Effects of all demonstrations of a table; `names[d]` is the id of demonstration d."""

    names: Sequence[str]
    effects: Effects
    rows: int
    queries: int

    def ranked(self) -> list[AuditLine]:
        """Demonstrations that were shown often enough, most useful first."""
        own, lines = self.effects, []
        for place in np.argsort(-own.effect, kind="stable").tolist():
            shown = int(own.counts[place])
            if shown >= FEWEST:
                effect, error = float(own.effect[place]), float(own.error[place])
                lines.append(AuditLine(self.names[place], effect, error, shown))
        return lines

    @property
    def is_noise(self) -> bool:
        """Whether the effects could be the luck of few answers: no spread, or next to none of what is seen is real."""
        return self.effects.reliability < 0.05


def audit(data: Measured, names: Sequence[str]) -> Audit:
    """Effects from one-shot rows; demonstrations are numbered as in `names`."""
    queries = len(np.unique(data.queries))
    return Audit(names, estimate_effects(data), len(data.scores), queries)


@dataclass(frozen=True)
class VarianceShares:
    """Variances of a score: between queries, between demonstrations, and the rest; from a table of Q x D scores."""

    queries: int
    demonstrations: int
    query: float
    demonstration: float
    rest: float

    def as_json(self) -> dict[str, float | int]:
        """Variances as shares of their sum, and the standard deviation of effects."""
        whole = self.query + self.demonstration + self.rest or 1.0
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
    if y.ndim != 2 or min(y.shape) < 2 or not np.isfinite(y).all():
        raise DataError(
            f"a pilot asks at least two demonstrations with at least two queries, each with each; got scores of shape "
            f"{y.shape}, or one is missing"
        )
    queries, demos = y.shape
    by_query, by_demo = y.mean(axis=1), y.mean(axis=0)
    residual = y - by_query[:, None] - by_demo + y.mean()
    rest = float((residual**2).sum() / ((queries - 1) * (demos - 1)))
    demo = max(0.0, float(by_demo.var(ddof=1)) - rest / queries)
    query = max(0.0, float(by_query.var(ddof=1)) - rest / demos)
    return VarianceShares(queries, demos, query, demo, rest)


def predicted_gain(
    shares: VarianceShares, *, corpus: int, candidates: int, calls: int, seed: int = 0
) -> PredictedGain:
    """What effects of a corpus may gain when `calls` are spent on it evenly and the best of `candidates` is shown.

    The interval is of the error of the pilot: mean squares are drawn anew from their chi-square distributions
    (Graybill and Wang 1980 in spirit), and half of it is what a sample of test queries adds.
    """
    each, largest = calls / max(1, corpus), expected_largest(candidates)

    def reliability(demo: Floats | float, rest: Floats | float) -> Floats:
        known = each * np.asarray(demo)
        return np.asarray(known / np.maximum(known + rest, 1e-12), np.float64)

    rng = np.random.default_rng(seed)
    between = shares.demonstrations - 1
    within = (shares.queries - 1) * between
    # mean square of demonstrations / its expectation is chi-square / df; invert it for the expectation given the square
    square = shares.rest + shares.queries * shares.demonstration
    rest = shares.rest * within / rng.chisquare(within, DRAWS)
    demo = square * between / rng.chisquare(between, DRAWS) - rest
    demo = np.maximum(0.0, demo) / shares.queries
    gains = np.sqrt(demo * reliability(demo, rest)) * largest
    low, high = np.quantile(gains, (0.025, 0.975)).tolist()
    known = float(reliability(shares.demonstration, shares.rest))
    gain = math.sqrt(shares.demonstration * known) * largest
    return PredictedGain(gain, (low, high), known, calls)


def expected_largest(count: int) -> float:
    """The expected largest of `count` independent standard normal numbers, by numerical integration."""
    x = np.linspace(-10.0, 10.0, 20001)
    density = count * np.exp((count - 1) * log_ndtr(x) - x**2 / 2)
    return float(np.trapezoid(x * density, x)) / math.sqrt(2 * math.pi)
