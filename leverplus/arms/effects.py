"""Effects: how much each demonstration was measured to add with whatever query, and the ranking that counts them in.

The score of query q with demonstration d is taken as

    y_qd = m_q + u_d + noise,      u_d ~ N(0, spread),      noise ~ N(0, noise)

m_q is free for every query. Both variances come from moments (Henderson's third method), u by the mixed-model equations
(Henderson 1975, BLUP), so that nothing is tuned. A demonstration that was never measured has u_d = 0.

The ranking is slope * similarity (by question, by picture) + label * expected(answer) + effect, in units of accuracy.
The ranking that needs no answer of the model is the start: measured answers say how much accuracy its score gains, and
a ridge regression on what it leaves unexplained adds the rest. So the less was measured, the more the ranking stays
what labels and similarity say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator, cg

from leverplus.arms.base import Needs
from leverplus.arms.labels import LABEL_SIMILARITY, LabelRank
from leverplus.arms.similarity import Floats, Mask, Positions
from leverplus.arms.training import Training
from leverplus.errors import DataError

PROBES = 64
"""Random signs that estimate sums of squares; up to so many demonstrations they are computed one by one."""
SMALLEST = 1e-9
"""Share of the noise below which the spread of effects counts as zero."""
PENALTIES = (1e2, 1e3, 1e4, 1e5)
"""In rows: a feature of unit spread is shrunk by penalty / (rows + penalty)."""
PARTS = 5
"""Parts of the queries in the cross-validation that chooses the penalty."""
LEAST_GAIN = 0.05
"""Labels and similarity decide at least where nothing else was learnt, whatever a few answers seem to say."""
FEWEST = 20
"""Training queries, each measured with two demonstrations or more, from which weights are learnt."""


@dataclass(frozen=True)
class Measured:
    """One-shot scores: `scores[r]` of query `queries[r]` with demonstration `demos[r]`, both as numbers from 0.

    `demonstrations` is how many there are, measured or not.
    """

    queries: Positions
    demos: Positions
    scores: Floats
    demonstrations: int

    @classmethod
    def of(
        cls,
        queries: ArrayLike,
        demos: ArrayLike,
        scores: ArrayLike,
        demonstrations: int,
    ) -> Measured:
        """Checked arrays; a number outside 0 .. demonstrations - 1 and scores that are no numbers are refused."""
        asked = np.asarray(queries, np.int64)
        shown = np.asarray(demos, np.int64)
        found = np.asarray(scores, np.float64)
        if not 0 < len(asked) == len(shown) == len(found):
            raise DataError(
                "queries, demos and scores must have the same length, at least 1"
            )
        if shown.min() < 0 or shown.max() >= demonstrations:
            raise DataError(
                f"demonstrations must be numbered from 0 to {demonstrations - 1}"
            )
        if not np.isfinite(found).all():
            raise DataError("a score is not a number; measure it or leave its row out")
        return cls(asked, shown, found, demonstrations)


@dataclass(frozen=True)
class Effects:
    """Effects of all demonstrations (N,), in the units of the scores, against the mean of what was tried with a query.

    `effect` is the best guess, `error` its standard error, `counts` how often it was measured. `noise` and `spread` are
    variances: of one score, and of effects.
    """

    effect: Floats
    error: Floats
    counts: Positions
    noise: float
    spread: float

    @property
    def reliability(self) -> float:
        """Share of the variance of estimated effects that is real, over the demonstrations measured."""
        seen = self.counts > 0
        if not seen.any() or self.spread == 0.0:
            return 0.0
        unknown = (self.error[seen] ** 2).mean()
        return float(1.0 - unknown / self.spread)


def estimate_effects(data: Measured) -> Effects:
    """Effects from measured scores."""
    design = _Design(data)
    noise, spread = design.variances()
    effect = np.zeros(data.demonstrations)
    error = np.zeros(data.demonstrations)
    if spread > 0.0:
        effect = design.shrunk(noise / spread)
        error = np.sqrt(1.0 / (design.information / noise + 1.0 / spread))
    return Effects(effect, error, design.counts, noise, spread)


def left_out_effects(data: Measured, effects: Effects) -> Floats:
    """For every row the effect of its demonstration as estimated without this row (R,).

    Close to refitting without the row: only the sums of the demonstration change, query means stay.
    """
    if effects.spread == 0.0:
        return np.zeros(len(data.demos))
    design = _Design(data)
    counts = design.counts[data.demos] - 1
    others = design.sums[data.demos] - design.rest
    return np.asarray(others / (counts + effects.noise / effects.spread), np.float64)


class _Design:
    """Which demonstration was measured with which query, query means taken out."""

    def __init__(self, data: Measured) -> None:
        _, self.query = np.unique(data.queries, return_inverse=True)
        self.demo = data.demos
        self.size = data.demonstrations
        self.per_query = np.bincount(self.query).astype(np.float64)
        self.counts = np.bincount(self.demo, minlength=self.size)
        # what is known of a demonstration: its rows, less what the queries' means take away
        taken = self._by_demo(1.0 / self.per_query[self.query])
        self.information = np.maximum(self.counts - taken, 0.0)
        means = np.bincount(self.query, data.scores) / self.per_query
        self.rest: Floats = data.scores - means[self.query]
        """Scores less the mean of their query."""
        self.sums = self._by_demo(self.rest)

    def _by_demo(self, values: Floats) -> Floats:
        found = np.bincount(self.demo, values, minlength=self.size)
        return found.astype(np.float64)

    def times(self, values: Floats) -> Floats:
        """(N'N within queries) @ values: each demonstration's rows, less the means of the queries they belong to."""
        taken = np.bincount(self.query, values[self.demo]) / self.per_query
        found: Floats = self.counts * values - self._by_demo(taken[self.query])
        return found

    def squared_rows(self) -> Floats:
        """The sum of squares of every row of that matrix; by random signs where there are many demonstrations.

        For random signs z the expectation of (M z)_d squared is the sum over e of M_de squared (Hutchinson 1989).
        """
        if self.size <= PROBES:
            columns = [self.times(column) for column in np.eye(self.size)]
            return np.asarray((np.array(columns) ** 2).sum(axis=0))
        rng = np.random.default_rng(0)
        signs = rng.choice([-1.0, 1.0], size=(PROBES, self.size))
        squares = [self.times(row) ** 2 for row in signs]
        return np.asarray(np.mean(squares, axis=0))

    def variances(self) -> tuple[float, float]:
        """Noise and spread of effects, from the sums of squares within queries and between demonstrations.

        Both are linear in the two variances; solving gives unbiased estimates, and a negative spread counts as 0.
        """
        rows = len(self.rest)
        queries = len(self.per_query)
        if rows <= queries:
            raise DataError(
                "every query was measured with one demonstration only; effects need at least two for each query"
            )
        seen = self.information > SMALLEST
        known = self.information[seen]
        squares = self.squared_rows()[seen]
        within = float((self.rest**2).sum())
        between = float((self.sums[seen] ** 2 / known).sum())
        a = np.array(
            [
                [rows - queries, self.information.sum()],
                [seen.sum(), (squares / known).sum()],
            ]
        )
        noise = within / (rows - queries)
        spread = 0.0
        # else every demonstration once: effects and noise cannot be told apart
        if abs(np.linalg.det(a)) >= SMALLEST:
            solved = np.linalg.solve(a, np.array([within, between]))
            if solved[1] > SMALLEST * max(solved[0], 0.0):
                noise = max(solved[0], SMALLEST)
                spread = solved[1]
        return float(noise), float(spread)

    def shrunk(self, penalty: float) -> Floats:
        """(N'N within queries + noise / spread) u = sums, the mixed-model equations with free query means."""
        shape = (self.size, self.size)
        matrix = LinearOperator(
            shape, lambda v: self.times(v.ravel()) + penalty * v.ravel(), dtype=float
        )
        scaled = LinearOperator(
            shape, lambda v: v.ravel() / (self.information + penalty), dtype=float
        )
        found, missed = cg(matrix, self.sums, rtol=1e-10, maxiter=2000, M=scaled)
        if missed:
            raise DataError(
                "the effects of these demonstrations cannot be solved for; are all scores numbers?"
            )
        return np.asarray(found, np.float64)


@dataclass(frozen=True)
class Ranking:
    """Weights of the terms; `effect` has one number for each demonstration, 0 for one that was never measured."""

    similarity: Mapping[str, float]
    """What a similarity of 1 counts, by the field that is compared: text, image."""
    label: float
    effect: Floats
    about: Mapping[str, Any] = field(default_factory=dict)
    """What it was learnt from, for people."""


@dataclass(frozen=True)
class MeasuredTable:
    """One-shot scores of Q queries with up to K demonstrations: all arrays (Q, K), `used` marks what was measured.

    `probability` is None where the model does not weigh answers, `expected` where labels say nothing.
    """

    candidates: Positions
    used: Mask
    accuracy: Floats
    probability: Floats | None
    near: Mapping[str, Floats]
    fields: Mapping[str, float]
    """The share of each field in the similarity by which labels alone rank."""
    expected: Floats | None
    groups: Positions
    """(Q,): queries on one picture share a number."""
    demonstrations: int


def fit_ranking(table: MeasuredTable) -> Ranking:
    """The ranking of measured answers; DataError where too little was measured."""
    shown = table.used.sum(axis=1)
    several = int((shown > 1).sum())
    if several < FEWEST:
        raise DataError(
            f"{several} training queries were asked with several demonstrations; effects need {FEWEST}"
        )
    slopes = {}
    known = np.zeros(table.used.shape)  # (Q, K): how labels and similarity alone rank
    for name, share in table.fields.items():
        if share > 0.0:
            slopes[name] = LABEL_SIMILARITY * share
            known = known + slopes[name] * table.near[name]
    features = {}
    if table.expected is not None:
        known = known + table.expected
        features["label"] = table.expected
    gain = _gain(known, table.accuracy, table.used)
    measured = {"accuracy": table.accuracy, "probability": table.probability}
    effects: dict[str, Effects] = {}
    for name, scores in measured.items():
        if scores is not None:
            features[name], effects[name] = effect_feature(name, table, scores)
    rest = table.accuracy - gain * known
    weights, penalty = fit_weights(features, rest, table.used, table.groups)
    total = np.zeros(table.demonstrations)
    for name, own in effects.items():
        total += weights[name] * own.effect
    on_accuracy = effects["accuracy"]
    about = {
        "queries": several,
        "answers": int(table.used.sum()),
        "demonstrations": int((on_accuracy.counts > 0).sum()),
        "effect_sd": on_accuracy.spread**0.5,
        "reliability": on_accuracy.reliability,
        "penalty": penalty,
        "gain": gain,
    }
    label = gain + weights["label"] if "label" in weights else 0.0
    return Ranking(
        {name: gain * slope for name, slope in slopes.items()}, label, total, about
    )


def effect_feature(
    name: str, table: MeasuredTable, scores: Floats
) -> tuple[Floats, Effects]:
    """The effect of every candidate (Q, K) and the effects themselves.

    A row that was used to estimate them gets the effect without itself; otherwise its own score would speak twice.
    """
    used = table.used
    numbers = np.arange(len(scores))
    queries = np.broadcast_to(numbers[:, None], used.shape)
    own = queries[used], table.candidates[used], scores[used]
    try:
        data = Measured.of(*own, table.demonstrations)
        effects = estimate_effects(data)
    except DataError as error:
        raise DataError(f"effects by {name}: {error}") from error
    found = effects.effect[table.candidates]
    found[used] = left_out_effects(data, effects)
    return found, effects


def fit_weights(
    features: Mapping[str, Floats], scores: Floats, used: Mask, groups: Positions
) -> tuple[dict[str, float], float]:
    """Ridge weights of features for scores, all (Q, K) and less the mean of a query's measured candidates; the penalty.

    `groups` (Q,) keeps pictures together in the cross-validation that chooses the penalty.
    """
    columns = [within_queries(own, used)[used] for own in features.values()]
    x = np.stack(columns, axis=1)  # (R, F)
    y = within_queries(scores, used)[used]
    scale = np.maximum(x.std(axis=0), 1e-12)
    x /= scale
    _, number = np.unique(groups, return_inverse=True)
    rng = np.random.default_rng(0)
    parts = rng.permutation(int(number.max()) + 1) % PARTS
    drawn = parts[number]
    part = np.broadcast_to(drawn[:, None], used.shape)[used]
    grams = []
    sums = []
    for own in range(PARTS):
        inside = part == own
        grams.append(x[inside].T @ x[inside])
        sums.append(x[inside].T @ y[inside])
    gram = np.sum(grams, axis=0)
    total = np.sum(sums, axis=0)
    eye = np.eye(x.shape[1])
    missed = []
    for penalty in PENALTIES:
        lost = 0.0
        for held, seen in zip(grams, sums, strict=True):
            w = np.linalg.solve(gram - held + penalty * eye, total - seen)
            # squared error less that of predicting 0
            lost += float(w @ held @ w - 2.0 * w @ seen)
        missed.append(lost)
    best = PENALTIES[int(np.argmin(missed))]
    weights = np.linalg.solve(gram + best * eye, total) / scale
    return dict(zip(features, weights.tolist(), strict=True)), best


def within_queries(values: Floats, used: Mask) -> Floats:
    """Less the mean over a query's measured candidates: what makes a query easy plays no part."""
    total = np.where(used, values, 0.0).sum(axis=1)
    mean = total / np.maximum(used.sum(axis=1), 1)
    return np.asarray(values - mean[:, None], np.float64)


def _gain(known: Floats, accuracy: Floats, used: Mask) -> float:
    """How much accuracy a point of a score gains between the candidates of a query; never nothing."""
    own = within_queries(known, used)[used]
    gained = within_queries(accuracy, used)[used]
    squares = float(own @ own)
    if squares == 0.0:
        return LEAST_GAIN
    return max(LEAST_GAIN, float(own @ gained) / squares)


class EffectsArm(LabelRank):
    """The same sum as by labels, with weights and effects learnt from the answers that training asked for."""

    name = "effects"
    title = "ranked by effects"
    says = (
        "similarity, labels and measured effects of examples; score: their weighted sum"
    )
    suits: ClassVar[tuple[str, ...]] = ("label", "short", "long")
    unasked_for = ""
    needs = Needs(vectors=("text", "image"), training=True)

    def fit(self, training: Training) -> Self:
        ranking = training.effects()
        self.labels = training.labels  # else similarity and effects remain
        self.slopes = dict(ranking.similarity)
        self.label_weight = ranking.label
        self.effect = ranking.effect
        return self
