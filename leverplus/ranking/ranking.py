"""A ranking: one score for every demonstration with a query, a sum of similarity, label and the demonstration's own.

    score = slope * similarity (by question, by picture) + label * expected(answer) + effect

`expected` is what labels let expect of the answer that the demonstration shows (`leverplus.ranking.labels`). `effect`
is a number of each demonstration: what it was measured to add with whatever query, shrunk by how little is known of it
(`leverplus.effects`). Weights are in units of accuracy. The ranking that needs no answer of the model is the start:
measured answers say how much accuracy its score gains, and a ridge regression on what it leaves unexplained adds the
rest. So the less was measured, the more the ranking stays what labels and similarity say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from leverplus.effects.estimate import Effects
from leverplus.errors import DataError
from leverplus.pools.similarity import Floats, Positions, top
from leverplus.ranking.labels import LabelModel
from leverplus.ranking.linear import Mask, Ranker, effect_features, fit_ranker, within_queries

RANKED = ("label_rank", "effects")
"""The arms that go by a ranking: of labels and similarity, and of these and measured effects."""
LABEL_SIMILARITY = 0.1
"""Ranking by labels alone: what a similarity of 1 counts beside the expected score of an answer, which is at most 1."""
LEAST_GAIN = 0.05
"""Labels and similarity decide at least where nothing else was learnt, whatever a few answers seem to say."""
FEWEST = 20
"""Training queries, each measured with two demonstrations or more, from which weights are learnt."""


@dataclass(frozen=True)
class Ranking:
    """Weights of the terms; `effect` has one number for each demonstration, 0 for one that was never measured."""

    similarity: Mapping[str, float]
    """What a similarity of 1 counts, by the field that is compared: text, image."""
    label: float
    effect: Floats
    about: Mapping[str, Any] = field(default_factory=dict)
    """What it was learnt from, for people."""

    def terms(self, near: Mapping[str, Floats], expected: Floats | None, effect: Floats) -> dict[str, Floats]:
        """The terms of every candidate; `near` by field, `expected` and `effect` are of one shape."""
        shape = np.zeros_like(effect, dtype=np.float64)
        similar = sum((slope * near[name] for name, slope in self.similarity.items()), shape)
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


def by_labels(fields: Mapping[str, float], count: int) -> Ranking:
    """The ranking that needs no answer of the model; `fields` has the share of each similarity."""
    return Ranking(
        {name: LABEL_SIMILARITY * share for name, share in fields.items() if share > 0.0}, 1.0, np.zeros(count)
    )


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
    several = int((table.used.sum(axis=1) > 1).sum())
    if several < FEWEST:
        raise DataError(f"{several} training queries were asked with several demonstrations; effects need {FEWEST}")
    start = by_labels(table.fields, table.demonstrations)
    known = start.score(table.near, table.expected, np.zeros(table.used.shape))  # (Q, K)
    gain = _gain(known, table.accuracy, table.used)
    features: dict[str, Floats] = {}
    if table.expected is not None:
        features["label"] = table.expected
    effects: dict[str, Effects] = {}
    for name, scores in (("accuracy", table.accuracy), ("probability", table.probability)):
        if scores is not None:
            own = effect_features(name, table.candidates, scores, table.used, table.demonstrations)
            features[f"effect on {name}"], effects[f"effect on {name}"] = own
    ranker = fit_ranker(features, table.accuracy - gain * known, table.used, table.groups)
    weight = dict(zip(ranker.names, (ranker.weights / ranker.scale).tolist(), strict=True))
    total = np.zeros(table.demonstrations)
    for name, found in effects.items():
        total += weight[name] * found.effect
    slopes = {name: gain * slope for name, slope in start.similarity.items()}
    label = gain + weight["label"] if table.expected is not None else 0.0
    return Ranking(slopes, label, total, {**_about(table, several, effects, ranker), "gain": gain})


def _gain(known: Floats, accuracy: Floats, used: Mask) -> float:
    """How much accuracy a point of a score gains between the candidates of a query; never nothing."""
    own, gained = within_queries(known, used)[used], within_queries(accuracy, used)[used]
    squares = float(own @ own)
    return max(LEAST_GAIN, float(own @ gained) / squares) if squares > 0.0 else LEAST_GAIN


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
