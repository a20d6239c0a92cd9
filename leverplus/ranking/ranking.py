"""A ranking: one score for every demonstration with a query, a sum of similarity, label and the demonstration's own.

    score = bent(similarity by question) + bent(similarity by picture) + label * expected(answer) + effect

`bent` is a line with bends, because a demonstration that is only somewhat near may mislead. `expected` is what labels
let expect of the answer that the demonstration shows (`leverplus.ranking.labels`). `effect` is a number of each
demonstration: what it was measured to add with whatever query, shrunk by how little is known of it
(`leverplus.effects`). All weights come from one ridge regression on measured accuracies, in units of accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.effects.estimate import Effects
from leverplus.embedders.base import Vectors
from leverplus.errors import DataError
from leverplus.pools.similarity import Floats, Positions, cosine, top
from leverplus.ranking.labels import LabelModel
from leverplus.ranking.linear import KNOTS, Mask, Ranker, effect_features, fit_ranker

RANKED = ("label_rank", "effects")
"""The arms that go by a ranking: of labels and similarity, and of these and measured effects."""
LABEL_SIMILARITY = 0.1
"""Ranking by labels alone: what a similarity of 1 counts beside the expected score of an answer, which is at most 1."""
QUERIES_AT_ONCE = 256
FEWEST = 20
"""Training queries, each measured with two demonstrations or more, from which weights are learnt."""


@dataclass(frozen=True)
class Line:
    """A line with bends: slope * x, and from each knot on another slope more."""

    slope: float
    bends: tuple[tuple[float, float], ...] = ()
    """(knot, slope) pairs."""

    def __call__(self, values: Floats) -> Floats:
        found = self.slope * values
        for knot, slope in self.bends:
            found = found + slope * np.maximum(0.0, values - knot)
        return np.asarray(found, np.float64)


@dataclass(frozen=True)
class Ranking:
    """Weights of the terms; `effect` has one number for each demonstration, 0 for one that was never measured."""

    similarity: Mapping[str, Line]
    """By the field that is compared: text, image."""
    label: float
    effect: Floats
    about: Mapping[str, Any] = field(default_factory=dict)
    """What it was learnt from, for people."""

    def terms(self, near: Mapping[str, Floats], expected: Floats | None, effect: Floats) -> dict[str, Floats]:
        """The terms of every candidate; `near` by field, `expected` and `effect` are of one shape."""
        shape = np.zeros_like(effect, dtype=np.float64)
        similar = sum((line(near[name]) for name, line in self.similarity.items()), shape)
        label = shape if expected is None else self.label * expected
        return {"similarity": similar, "label": label, "effect": effect}

    def score(self, near: Mapping[str, Floats], expected: Floats | None, effect: Floats) -> Floats:
        return np.asarray(sum(self.terms(near, expected, effect).values()), np.float64)


@dataclass(frozen=True)
class Rankings:
    """What ranked arms choose by: labels, and the ranking of measured answers; `why` says why that is missing."""

    labels: LabelModel | None
    effects: Ranking | None
    why: str = ""

    def about(self) -> dict[str, Any]:
        """What eval.json says of them."""
        found: dict[str, Any] = {"labels": None, "effects": {"missing": self.why}}
        if self.labels is not None:
            own = self.labels
            found["labels"] = {
                "items": len(own.items),
                "answers": len(own.answers),
                "left_out_accuracy": own.accuracy,
                "tries": own.tries,
            }
        if self.effects is not None:
            found["effects"] = dict(self.effects.about)
        return found


def candidate_similarities(queries: Vectors, items: Vectors, candidates: Positions) -> dict[str, Floats]:
    """By field how near each query is to its candidates: rows of `items` (B, K) -> (B, K)."""
    found = {"text": _near(queries.text, items.text, candidates)}
    if queries.image is not None and items.image is not None:
        found["image"] = _near(queries.image, items.image, candidates)
    return found


def _near(queries: NDArray[np.float32], items: NDArray[np.float32], candidates: Positions) -> Floats:
    found = np.empty(candidates.shape)
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        every, places = np.unique(candidates[part], return_inverse=True)
        near = cosine(queries[part], items[every])  # (B, U)
        found[part] = np.take_along_axis(near, places.reshape(candidates[part].shape), axis=1)
    return found


def by_labels(fields: Mapping[str, float], count: int) -> Ranking:
    """The ranking that needs no answer of the model; `fields` has the share of each similarity."""
    lines = {name: Line(LABEL_SIMILARITY * share) for name, share in fields.items() if share > 0.0}
    return Ranking(lines, 1.0, np.zeros(count))


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
    expected: Floats | None
    groups: Positions
    """(Q,): queries on one picture share a number."""
    demonstrations: int


def fit_ranking(table: MeasuredTable) -> Ranking:
    """The ranking of measured answers; DataError where too little was measured."""
    several = int((table.used.sum(axis=1) > 1).sum())
    if several < FEWEST:
        raise DataError(f"{several} training queries were asked with several demonstrations; effects need {FEWEST}")
    features: dict[str, Floats] = {}
    knots = {}
    for name, values in table.near.items():
        own = np.unique(np.quantile(values[table.used], KNOTS))
        knots[name] = own
        features[name] = values
        features |= {f"{name} {place}": np.maximum(0.0, values - knot) for place, knot in enumerate(own.tolist())}
    if table.expected is not None:
        features["label"] = table.expected
    effects: dict[str, Effects] = {}
    for name, scores in (("accuracy", table.accuracy), ("probability", table.probability)):
        if scores is not None:
            own_effects = effect_features(name, table.candidates, scores, table.used, table.demonstrations)
            features[f"effect on {name}"], effects[f"effect on {name}"] = own_effects
    ranker = fit_ranker(features, table.accuracy, table.used, table.groups)
    weight = dict(zip(ranker.names, (ranker.weights / ranker.scale).tolist(), strict=True))
    lines = {}
    for name, own in knots.items():
        bends = tuple((knot, weight[f"{name} {place}"]) for place, knot in enumerate(own.tolist()))
        lines[name] = Line(weight[name], bends)
    total = np.zeros(table.demonstrations)
    for name, found in effects.items():
        total += weight[name] * found.effect
    return Ranking(lines, weight.get("label", 0.0), total, _about(table, several, effects, ranker))


def _about(table: MeasuredTable, queries: int, effects: Mapping[str, Effects], ranker: Ranker) -> dict[str, Any]:
    own = effects["effect on accuracy"]
    return {
        "queries": queries,
        "answers": int(table.used.sum()),
        "demonstrations": int((own.counts > 0).sum()),
        "effect_sd": own.spread**0.5,
        "reliability": own.reliability,
        "penalty": ranker.penalty,
    }


def ranked(scores: Floats, allowed: Mask, count: int) -> Positions:
    """Places of the best of each row (B, S) in prompt order: the best stands last, next to the query."""
    return top(np.where(allowed, scores, -np.inf), count)[:, ::-1].copy()
