"""Effects of demonstrations: one number for each, from measured scores, shrunk towards what its features predict.

The score of query q with demonstration d is taken as

    y_qd = m_q + f(x_d) + u_d + noise,      u_d ~ N(0, spread),      noise ~ N(0, noise)

m_q is free for every query, f is linear in features of the demonstration (ridge), and u_d is what no feature shows.
Both variances come from moments (Henderson's third method), u by the mixed-model equations (Henderson 1975, BLUP), so
that nothing is tuned. A demonstration that was never measured has u_d = 0: it starts at what its features predict.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leverplus.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RIDGES = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Penalties tried for the prediction from features; the best by cross-validation is kept."""
PARTS = 5
"""Parts of the demonstrations in that cross-validation."""
PROBES = 64
"""Random signs that estimate sums of squares; up to so many demonstrations they are computed one by one."""
SMALLEST = 1e-9
"""Share of the noise below which the spread of effects counts as zero."""


@dataclass(frozen=True)
class Measured:
    """One-shot scores: `scores[r]` of query `queries[r]` with demonstration `demos[r]`, both as numbers from 0.

    `demonstrations` is how many there are, measured or not.
    """

    queries: Ints
    demos: Ints
    scores: Floats
    demonstrations: int

    @classmethod
    def of(cls, queries: ArrayLike, demos: ArrayLike, scores: ArrayLike, demonstrations: int) -> Measured:
        """Checked arrays; a number outside 0 .. demonstrations - 1 and scores that are no numbers are refused."""
        columns = np.asarray(queries, np.int64), np.asarray(demos, np.int64), np.asarray(scores, np.float64)
        if len({len(column) for column in columns}) != 1 or not len(columns[0]):
            raise DataError(
                f"queries, demos and scores must have the same length, at least 1; got {[len(c) for c in columns]}"
            )
        if columns[1].min() < 0 or columns[1].max() >= demonstrations:
            raise DataError(f"demonstrations must be numbered from 0 to {demonstrations - 1}")
        if not np.isfinite(columns[2]).all():
            raise DataError("a score is not a number; measure it or leave its row out")
        return cls(*columns, demonstrations)

    def only(self, rows: NDArray[np.bool_]) -> Measured:
        return Measured(self.queries[rows], self.demos[rows], self.scores[rows], self.demonstrations)


@dataclass(frozen=True)
class Effects:
    """Effects of all demonstrations (N,), in the units of the scores, against the mean of what was tried with a query.

    `effect` is the best guess, `error` its standard error, `predicted` what features alone say, `counts` how often it
    was measured. `noise` and `spread` are variances: of one score, and of effects around their prediction.
    """

    effect: Floats
    error: Floats
    predicted: Floats
    counts: Ints
    noise: float
    spread: float
    weights: Floats
    """Of features, with the constant last; empty without features."""

    @property
    def reliability(self) -> float:
        """Share of the variance of estimated effects that is real, over the demonstrations measured."""
        seen = self.counts > 0
        if not seen.any() or self.spread == 0.0:
            return 0.0
        return float(1.0 - (self.error[seen] ** 2).mean() / self.spread)

    def predict(self, features: ArrayLike) -> Floats:
        """What new demonstrations start at, from features (M, D)."""
        x = np.asarray(features, np.float64)
        return x @ self.weights[:-1] + self.weights[-1] if len(self.weights) else np.zeros(len(x))


def estimate_effects(data: Measured, features: ArrayLike | None = None) -> Effects:
    """Effects from measured scores; `features` (N, D) of every demonstration let unmeasured ones be predicted."""
    design = _Design(data)
    noise, spread = design.variances(data.scores)
    count = data.demonstrations
    predicted, weights = np.zeros(count), np.zeros(0)
    if features is not None and spread > 0.0:
        x = np.asarray(features, np.float64)
        if x.shape[:1] != (count,):
            raise DataError(f"features must have one row for each of {count} demonstrations; got shape {x.shape}")
        weights = _fit_features(design, data.scores, x, noise, spread)
        predicted = x @ weights[:-1] + weights[-1] if len(weights) else predicted
    rest = data.scores - predicted[data.demos]
    if len(weights):
        noise, spread = design.variances(rest)
    own = design.shrunk(rest, noise, spread)
    error = np.sqrt(1.0 / (design.information / noise + 1.0 / spread)) if spread > 0.0 else np.zeros(count)
    return Effects(predicted + own, error, predicted, design.counts, noise, spread, weights)


def left_out_effects(data: Measured, effects: Effects) -> Floats:
    """For every row the effect of its demonstration as estimated without this row (R,).

    Close to refitting without the row: only the sums of the demonstration change, query means stay.
    """
    if effects.spread == 0.0:
        return effects.predicted[data.demos]
    design = _Design(data)
    rest = design.centred(data.scores - effects.predicted[data.demos])
    sums = np.bincount(data.demos, rest, minlength=data.demonstrations)
    counts = design.counts[data.demos] - 1
    shrunk = (sums[data.demos] - rest) / (counts + effects.noise / effects.spread)
    return np.asarray(effects.predicted[data.demos] + shrunk, np.float64)


class _Design:
    """Which demonstration was measured with which query, query means taken out."""

    def __init__(self, data: Measured) -> None:
        _, self.query = np.unique(data.queries, return_inverse=True)
        self.demo, self.size = data.demos, data.demonstrations
        self.per_query = np.bincount(self.query).astype(np.float64)
        self.counts = np.bincount(self.demo, minlength=self.size)
        # what is known of a demonstration: its rows, less what the queries' means take away
        taken = np.bincount(self.demo, 1.0 / self.per_query[self.query], minlength=self.size)
        self.information = np.maximum(self.counts - taken, 0.0)

    def times(self, values: Floats) -> Floats:
        """(N'N within queries) @ values: each demonstration's rows, less the means of the queries they belong to."""
        taken = np.bincount(self.query, values[self.demo]) / self.per_query
        return np.asarray(self.counts * values - np.bincount(self.demo, taken[self.query], minlength=self.size))

    def squared_rows(self) -> Floats:
        """The sum of squares of every row of that matrix; by random signs where there are many demonstrations.

        For random signs z the expectation of (M z)_d squared is the sum over e of M_de squared (Hutchinson 1989).
        """
        if self.size <= PROBES:
            columns = [self.times(column) for column in np.eye(self.size)]
            return np.asarray((np.array(columns) ** 2).sum(axis=0))
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(PROBES, self.size))
        return np.asarray(np.mean([self.times(row) ** 2 for row in signs], axis=0))

    def centred(self, scores: Floats) -> Floats:
        """Scores less the mean of their query."""
        return np.asarray(scores - (np.bincount(self.query, scores) / self.per_query)[self.query], np.float64)

    def sums(self, scores: Floats) -> Floats:
        return np.bincount(self.demo, self.centred(scores), minlength=self.size).astype(np.float64)

    def variances(self, scores: Floats) -> tuple[float, float]:
        """Noise and spread of effects, from the sums of squares within queries and between demonstrations.

        Both are linear in the two variances; solving gives unbiased estimates, and a negative spread counts as 0.
        """
        rest = self.centred(scores)
        rows, queries = len(rest), len(self.per_query)
        if rows <= queries:
            raise DataError(
                "every query was measured with one demonstration only; effects need at least two for each query"
            )
        seen = self.information > SMALLEST
        sums = np.bincount(self.demo, rest, minlength=self.size)
        between = float((sums[seen] ** 2 / self.information[seen]).sum())
        squares = self.squared_rows()
        a = np.array(
            [
                [rows - queries, self.information.sum()],
                [seen.sum(), (squares[seen] / self.information[seen]).sum()],
            ]
        )
        if abs(np.linalg.det(a)) < SMALLEST:  # every demonstration once: effects and noise cannot be told apart
            return float((rest**2).sum() / (rows - queries)), 0.0
        noise, spread = np.linalg.solve(a, np.array([float((rest**2).sum()), between]))
        if spread <= SMALLEST * max(noise, 0.0):
            return float((rest**2).sum() / (rows - queries)), 0.0
        return float(max(noise, SMALLEST)), float(spread)

    def shrunk(self, scores: Floats, noise: float, spread: float) -> Floats:
        """(N'N within queries + noise / spread) u = sums, the mixed-model equations with free query means."""
        from scipy.sparse.linalg import LinearOperator, cg

        if spread == 0.0:
            return np.zeros(self.size)
        penalty = noise / spread
        shape = (self.size, self.size)
        matrix = LinearOperator(shape, matvec=lambda v: self.times(v.ravel()) + penalty * v.ravel(), dtype=np.float64)
        scaled = LinearOperator(shape, matvec=lambda v: v.ravel() / (self.information + penalty), dtype=np.float64)
        found, missed = cg(matrix, self.sums(scores), rtol=1e-10, maxiter=2000, M=scaled)
        if missed:
            raise DataError("the effects of these demonstrations cannot be solved for; are all scores numbers?")
        return np.asarray(found, np.float64)


def _fit_features(design: _Design, scores: Floats, x: Floats, noise: float, spread: float) -> Floats:
    """Ridge weights of features (D + 1, the constant last) for the mean residual of each demonstration.

    Demonstrations count by how well they are known. The penalty is chosen by cross-validation over demonstrations; no
    weights at all where no penalty predicts better than 0.
    """
    seen = np.flatnonzero(design.information > SMALLEST)
    if len(seen) < 2 * PARTS:
        return np.zeros(0)
    means = design.sums(scores)[seen] / design.information[seen]
    known = 1.0 / (spread + noise / design.information[seen])
    middle = np.average(x[seen], axis=0, weights=known)
    centred = x[seen] - middle
    level = float(np.average(means, weights=known))
    part = np.random.default_rng(0).permutation(len(seen)) % PARTS

    def weights(rows: NDArray[np.bool_], ridge: float) -> Floats:
        own = centred[rows] * known[rows, None]
        gram = own.T @ centred[rows] + ridge * np.eye(x.shape[1]) / max(spread, SMALLEST)
        return np.asarray(np.linalg.solve(gram, own.T @ (means[rows] - level)), np.float64)

    best, least = None, float((known * (means - level) ** 2).sum())
    for ridge in RIDGES:
        missed = 0.0
        for number in range(PARTS):
            held = part == number
            guess = centred[held] @ weights(~held, ridge) + level
            missed += float((known[held] * (means[held] - guess) ** 2).sum())
        if missed < least:
            best, least = ridge, missed
    if best is None:
        return np.zeros(0)
    found = weights(np.ones(len(seen), bool), best)
    # predictions average to 0 over what was measured, as effects do
    return np.append(found, -float(middle @ found))
