"""One linear score from similarity, effects, labels and interactions, fitted in closed form, every part switchable.

A row is a query with one candidate. Features are taken as differences from the mean of the query's candidates, so that
what makes a query easy plays no part; ridge regression of the measured score on them gives the weights. Candidates are
then chosen by the largest score. The penalty is chosen by cross-validation over whole queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leverplus.effects.estimate import Effects, Floats, Measured, estimate_effects, left_out_effects
from leverplus.errors import DataError

Mask = NDArray[np.bool_]

PENALTIES = (1e2, 1e3, 1e4, 1e5)
"""In rows: a feature of unit spread is shrunk by penalty / (rows + penalty)."""
PARTS = 5
KNOTS = (0.25, 0.5, 0.75, 0.9, 0.97)
"""Quantiles at which a similarity may bend: near demonstrations mislead unless they are very near."""


@dataclass(frozen=True)
class Ranker:
    """Weights of named features, each divided by its spread `scale`."""

    names: tuple[str, ...]
    weights: Floats
    scale: Floats
    penalty: float

    def score(self, features: Mapping[str, Floats]) -> Floats:
        """The score of every candidate, from features of one shape (Q, K)."""
        found = np.zeros(np.shape(features[self.names[0]]))
        for name, weight, scale in zip(self.names, self.weights, self.scale, strict=True):
            found += features[name] * (weight / scale)
        return found


def fit_ranker(
    features: Mapping[str, Floats], scores: Floats, used: Mask, groups: Sequence[int] | NDArray[np.int64]
) -> Ranker:
    """Weights from features and scores (Q, K); `used` marks measured rows, `groups` (Q,) keeps pictures together."""
    names = tuple(features)
    if not names or not used.any():
        raise DataError("a ranker needs at least one feature and one measured row")
    x = np.stack(
        [within_queries(np.asarray(features[name], np.float64), used)[used] for name in names], axis=1
    )  # (R, F)
    y = within_queries(scores, used)[used]
    scale = np.maximum(x.std(axis=0), 1e-12)
    x /= scale
    part = _parts(np.asarray(groups))
    rows = np.broadcast_to(part[:, None], used.shape)[used]
    grams = [x[rows == number].T @ x[rows == number] for number in range(PARTS)]
    sums = [x[rows == number].T @ y[rows == number] for number in range(PARTS)]
    gram, total = np.sum(grams, axis=0), np.sum(sums, axis=0)
    missed = []
    for penalty in PENALTIES:
        lost = 0.0
        for number in range(PARTS):
            w = np.linalg.solve(gram - grams[number] + penalty * np.eye(len(names)), total - sums[number])
            lost += float(w @ grams[number] @ w - 2.0 * w @ sums[number])  # squared error less that of predicting 0
        missed.append(lost)
    best = PENALTIES[int(np.argmin(missed))]
    weights = np.linalg.solve(gram + best * np.eye(len(names)), total)
    return Ranker(names, weights, scale, best)


def within_queries(values: Floats, used: Mask) -> Floats:
    """Less the mean over a query's measured candidates."""
    mean = np.where(used, values, 0.0).sum(axis=1) / np.maximum(used.sum(axis=1), 1)
    return np.asarray(values - mean[:, None], np.float64)


def _parts(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """A part of the cross-validation for every query; one picture is in one part."""
    _, number = np.unique(groups, return_inverse=True)
    return np.random.default_rng(0).permutation(int(number.max()) + 1)[number] % PARTS


def bends(name: str, similarity: Floats, used: Mask) -> dict[str, Floats]:
    """A similarity and its bends: max(0, similarity - knot) at quantiles of what was measured."""
    knots = np.quantile(similarity[used], KNOTS)
    found = {name: similarity}
    return found | {f"{name} above {knot:.2f}": np.maximum(0.0, similarity - knot) for knot in knots}


def effect_features(
    name: str, candidates: NDArray[np.int64], scores: Floats, used: Mask, demonstrations: int
) -> tuple[Floats, Effects]:
    """The effect of every candidate (Q, K) and the effects themselves.

    A row that was used to estimate them gets the effect without itself; otherwise its own score would speak twice.
    `name` says what is missing where the rows do not suffice.
    """
    queries = np.broadcast_to(np.arange(len(scores))[:, None], used.shape)
    try:
        data = Measured.of(queries[used], candidates[used], scores[used], demonstrations)
        effects = estimate_effects(data)
    except DataError as error:
        raise DataError(f"effects by {name}: {error}") from error
    found = effects.effect[candidates]
    found[used] = left_out_effects(data, effects)
    return found, effects


def cross_features(query: Floats, demo: Floats, candidates: NDArray[np.int64], rank: int = 6) -> dict[str, Floats]:
    """Products of the first principal axes of queries (Q, D) and demonstrations (N, D): rank x rank features (Q, K)."""
    left, right = _axes(query, rank), _axes(demo, rank)
    return {
        f"query {a} x demo {b}": left[:, a : a + 1] * right[:, b][candidates] for a in range(rank) for b in range(rank)
    }


def _axes(vectors: Floats, rank: int) -> Floats:
    centred = vectors - vectors.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    found = centred @ axes[:, ::-1][:, :rank]
    return np.asarray(found / np.maximum(found.std(axis=0), 1e-12), np.float64)
