"""Effects of demonstrations in company: what each one adds to the lists that it was shown in.

The score of query q with a list of demonstrations is taken as

    y_r = m_q + x_r w + sum over d in the list of u_d + noise,      u_d ~ N(0, spread),      noise ~ N(0, noise)

m_q is free for every query, x_r are features of the list (mean similarity, how alike its members are, ...), and u_d is
what demonstration d adds whoever else is shown and whatever is asked. Variances come from moments and u from the
mixed-model equations, as for one demonstration (`estimate.py`), here with several members in a row (Browne, Goldstein
and Rasbash 2001 call it multiple membership). The equations are solved densely, which serves some thousand
demonstrations.

The spread of effects is read from pairs of rows of different queries only. What a demonstration adds to one query is
seen again in every list of that query that shows it, and does not help the next query; counted as an effect of its
own, it made effects of 3 points out of nothing on OK-VQA (docs/recorded.md). Here it is a part of the noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leverplus.effects.estimate import SMALLEST, Floats, Ints
from leverplus.errors import DataError

NOBODY = -1
"""Fills up lists that are shorter than the longest."""


@dataclass(frozen=True)
class ListScores:
    """Scores of lists: row r is query `queries[r]` with the demonstrations `lists[r]` (filled up with -1).

    `features` (R, F) describe the lists; F may be 0. `demonstrations` is how many there are, shown or not.
    """

    queries: Ints
    lists: Ints
    scores: Floats
    features: Floats
    demonstrations: int

    @classmethod
    def of(
        cls, queries: ArrayLike, lists: ArrayLike, scores: ArrayLike, features: ArrayLike | None, demonstrations: int
    ) -> ListScores:
        """Checked arrays; scores that are no numbers and demonstrations that there are not are refused."""
        rows, members = np.asarray(queries, np.int64), np.asarray(lists, np.int64)
        values = np.asarray(scores, np.float64)
        about = np.zeros((len(rows), 0)) if features is None else np.asarray(features, np.float64)
        if members.ndim != 2 or not (len(rows) == len(members) == len(values) == len(about)) or not len(rows):
            raise DataError("queries, lists, scores and features of lists must have the same length, at least 1")
        if members.min() < NOBODY or members.max() >= demonstrations:
            raise DataError(f"demonstrations must be numbered from 0 to {demonstrations - 1}")
        if not np.isfinite(values).all() or not np.isfinite(about).all():
            raise DataError("a score or a feature of a list is not a number; leave its row out")
        return cls(rows, members, values, about, demonstrations)


@dataclass(frozen=True)
class CompanyEffects:
    """What each demonstration adds to a list (N,), its standard error (N,), and the weights of list features (F,).

    `noise` and `spread` are variances, of one score and of effects; `counts` says how often each was shown.
    """

    effect: Floats
    error: Floats
    weights: Floats
    counts: Ints
    noise: float
    spread: float

    @property
    def reliability(self) -> float:
        """Share of the variance of estimated effects that is real, over the demonstrations shown."""
        seen = self.counts > 0
        if not seen.any() or self.spread == 0.0:
            return 0.0
        return float(1.0 - (self.error[seen] ** 2).mean() / self.spread)


def estimate_company(data: ListScores) -> CompanyEffects:
    """Effects of demonstrations in the lists they were shown in; 0 for those that were never shown."""
    counts = np.bincount(data.lists[data.lists != NOBODY], minlength=data.demonstrations)
    seen = np.flatnonzero(counts)
    shown = _membership(data.lists, seen, data.demonstrations)  # (R, M)
    known = _Fixed(data.queries, data.features)
    shown = known.without(shown)
    scores = known.without(data.scores[:, None])[:, 0]
    gram = shown.T @ shown  # (M, M)
    sums = shown.T @ scores
    noise, spread = _variances(known, shown, scores, gram)
    effect, error = np.zeros(data.demonstrations), np.zeros(data.demonstrations)
    if spread > 0.0:
        inverse = np.linalg.inv(gram + noise / spread * np.eye(len(seen)))
        effect[seen] = inverse @ sums
        error[:] = np.sqrt(spread)
        error[seen] = np.sqrt(noise * np.diag(inverse))
    padded = np.append(effect, 0.0)  # NOBODY adds nothing
    weights = known.weights(data.scores - padded[data.lists].sum(axis=1))
    return CompanyEffects(effect, error, weights, counts, noise, spread)


def _membership(lists: Ints, seen: Ints, demonstrations: int) -> Floats:
    """How often each shown demonstration stands in each list (R, M)."""
    column = np.full(demonstrations, NOBODY)
    column[seen] = np.arange(len(seen))
    found = np.zeros((len(lists), len(seen)))
    for place in lists.T:
        rows = np.flatnonzero(place != NOBODY)
        np.add.at(found, (rows, column[place[rows]]), 1.0)
    return found


class _Fixed:
    """Means of queries and weights of features, to be taken out of other columns."""

    def __init__(self, queries: Ints, features: Floats) -> None:
        _, self.query = np.unique(queries, return_inverse=True)
        self.size = np.bincount(self.query).astype(np.float64)
        basis, strength, self.axes = np.linalg.svd(self._centred(features), full_matrices=False)
        kept = strength > SMALLEST * max(1.0, float(strength.max(initial=0.0)))
        self.basis, self.strength, self.axes = basis[:, kept], strength[kept], self.axes[kept]
        self.free = len(queries) - len(self.size) - int(kept.sum())
        if self.free <= 0:
            raise DataError(
                "every query was asked with one list only; effects in longer lists need at least two lists for a query"
            )

    def _centred(self, columns: Floats) -> Floats:
        sums = np.zeros((len(self.size), columns.shape[1]))
        np.add.at(sums, self.query, columns)
        return np.asarray(columns - (sums / self.size[:, None])[self.query])

    def without(self, columns: Floats) -> Floats:
        """Columns (R, M) less what means of queries and features explain."""
        rest = self._centred(columns)
        return np.asarray(rest - self.basis @ (self.basis.T @ rest))

    def weights(self, scores: Floats) -> Floats:
        """Least squares weights of the features; the shortest ones where features depend on one another."""
        along = self.basis.T @ self._centred(scores[:, None])[:, 0]
        return np.asarray(self.axes.T @ (along / self.strength), np.float64)


def _variances(known: _Fixed, shown: Floats, scores: Floats, gram: Floats) -> tuple[float, float]:
    """Noise and spread, from `shown` (R, M) and scores (R,) without queries and features; a negative spread is 0.

    For rows i, j of different queries the expected product of scores is spread x K_ij, K = shown shown'. Their sum
    weighted by K_ij is taken over all pairs of rows, less those within each query.
    """
    sums = shown.T @ scores
    products, squares = float(sums @ sums), float((gram**2).sum())
    order = np.argsort(known.query, kind="stable")
    ends = np.cumsum(known.size).astype(np.int64)[:-1]
    for own, right in zip(np.split(shown[order], ends), np.split(scores[order], ends), strict=True):
        products -= float(((own.T @ right) ** 2).sum())
        squares -= float(((own @ own.T) ** 2).sum())
    total = float(scores @ scores)
    spread = products / squares if squares > SMALLEST else 0.0
    if spread <= SMALLEST * total / known.free:
        return total / known.free, 0.0
    return max((total - spread * float(np.trace(gram))) / known.free, SMALLEST), spread
