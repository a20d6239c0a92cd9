"""Two sources for one answer: what the frozen model says, and what labels of similar questions let expect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from leverplus.arms.base import Arm, Arrays, Explanation, Rows
from leverplus.arms.composed import Composed, Vote
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.labels import Labels, require_labels
from leverplus.arms.nearest import NearestText
from leverplus.arms.ridge import sample_rows
from leverplus.arms.similarity import Floats
from leverplus.arms.training import Training
from leverplus.arms.voting import agreeing
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, Score

WEIGHED_ON = 64
"""Training questions whose answers set the weight of the labels."""
MOST_WEIGHT = 16.0
"""More than this and the model's answers hardly count."""
PRIOR = (0.3, 1.0)
PRIOR_COUNT = 3.0
"""Before anything is asked: what the model's whole share, and a score of 1 that labels expect, are worth in accuracy."""


@dataclass(frozen=True)
class Candidate:
    """An answer that may be given: its share of what the model said, from 0 to 1, and what labels expect of it."""

    answer: str
    share: float
    expected: float


class Fused(Composed):
    """The model's answers and the labels together: `fused(vote(nearest_text, 5))`, `fused(nearest_text)`, `fused`.

    Of every answer: its share of the model's answers + weight * the score that the regression on labels expects of it;
    the greatest sum wins. Where the model weighs all labels, its share is the label's probability, the mean over the
    lists. Labels are a closed set, so each of them may win; of other answers only those that the model gave, because
    the regression knows no answer that no example has.

    How far the model can be trusted, no label tells: the model is asked WEIGHED_ON training questions, with the lists
    that it will see, and the weight follows by least squares. `fused(nearest_text, 2)` sets the weight and asks nothing.
    """

    name = "fused"
    title = "the model's answers and the labels together"
    says = "lists of examples; the model's answers, weighed by what labels of similar questions predict"
    combines = takes_several = True
    labels: Labels
    weight: float

    def __init__(self, parts: Sequence[Arm] = (), weight: int | None = None) -> None:
        super().__init__(parts or [Vote([NearestText()], 5)])
        self.is_plain = not parts
        part = self.parts[0]
        if part.asks_first or part.calls < 1 or isinstance(part, Fused):
            raise ValueError(f"{part.spec} brings no answers of the model to weigh")
        if weight is not None:
            if not 0 <= weight <= MOST_WEIGHT:
                raise ValueError(f"labels weigh 0 to {MOST_WEIGHT:.0f}, not {weight}")
            self.weight = float(weight)
        self.given_weight = weight
        vectors = dict.fromkeys([*self.needs.vectors, "text", "image"])
        self.needs = replace(self.needs, vectors=tuple(vectors))

    @classmethod
    def of_parts(cls, arms: Sequence[Arm], numbers: Sequence[int]) -> Self:
        if len(arms) > 1 or len(numbers) > len(arms):
            raise ValueError("fused takes one arm, and the weight of the labels")
        return cls(arms, *numbers)

    @property
    def spec(self) -> str:
        if self.is_plain:
            return self.known_as
        more = ""
        if self.given_weight is not None:
            more = f", {self.given_weight}"
        return f"{self.known_as}({self.parts[0].spec}{more})"

    @property
    def label(self) -> str:
        label = super().label
        if self.given_weight is None:
            return label
        return f"{label}, labels weigh {self.given_weight}"

    @property
    def fit_calls(self) -> int:
        own = WEIGHED_ON * self.calls if self.given_weight is None else 0
        return super().fit_calls + own

    @property
    def vector_fields(self) -> tuple[str, ...]:
        own = (*super().vector_fields, *self.labels.ridge.fields)
        return tuple(dict.fromkeys(own))

    def shots(self, wanted: Sequence[int]) -> list[int]:
        return self.parts[0].shots(wanted)

    def fit(self, training: Training) -> Self:
        self.labels = require_labels(training)
        super().fit(training)
        if self.given_weight is None:
            self.weight = self._fitted_weight(training)
        return self

    def _fitted_weight(self, training: Training) -> float:
        """The weight by what the model answers to some training questions, with the middle number of examples."""
        known = []
        for row, item in sorted(training.corpus.every_item.items()):
            # what labels say of these was computed without them
            if item.id in self.labels.ridge.left_out:
                known.append(row)
        rows = sample_rows(known, WEIGHED_ON)
        queries = training.asked(rows.tolist())
        shots = sorted(self.shots(training.shots)) or [1]
        lists = self.choose_lists(queries, training.corpus, shots[len(shots) // 2])
        scores = training.ask(queries, lists, f"the weight of {self.spec}")
        rules = training.rules
        expected = self.labels.expected(queries, training.corpus)
        features = []
        worth = []
        for item, own, given in zip(queries.items, expected, scores, strict=True):
            candidates = self.candidates(item, own, given, rules)
            features.append([(each.share, each.expected) for each in candidates])
            worth.append([rules.score(each.answer, item) for each in candidates])
        return label_weight(features, worth)

    def candidates(
        self, item: Item, expected: Floats, scores: Sequence[Score], rules: AnswerRules
    ) -> list[Candidate]:
        """The answers among which one is chosen, those that the model gave last, in their order.

        `expected` (A,) is what labels expect of their answers for this question.
        """
        voiced = voiced_answers(scores, rules, item)
        columns = self.labels.columns
        found = []
        if rules.kind == "label":
            for key, column in columns.items():
                if key not in voiced:
                    answer = self.labels.answers[column]
                    found.append(Candidate(answer, 0.0, float(expected[column])))
        for key, (answer, share) in voiced.items():
            own = float(expected[columns[key]]) if key in columns else 0.0
            found.append(Candidate(answer, share, own))
        return found

    def choose(self, queries: Queries, corpus: Corpus, shots: int) -> list[Rows]:
        return self.parts[0].choose(queries, corpus, shots)

    def choose_lists(
        self, queries: Queries, corpus: Corpus, shots: int
    ) -> list[list[Rows]]:
        return self.parts[0].choose_lists(queries, corpus, shots)

    def explain(self, query: Queries, corpus: Corpus, shots: int) -> Explanation:
        return self.parts[0].explain(query, corpus, shots)

    def answer(
        self,
        queries: Queries,
        corpus: Corpus,
        lists: Sequence[Sequence[Rows]],  # noqa: ARG002
        answers: Sequence[Sequence[Score]],
    ) -> list[str]:
        """The best candidate of each; among equal ones the last that the model gave, which is nearest to the query."""
        expected = self.labels.expected(queries, corpus)  # (B, A)
        found = []
        for item, own, scores in zip(queries.items, expected, answers, strict=True):
            best = ""
            most = -math.inf
            for each in self.candidates(item, own, scores, corpus.rules):
                total = each.share + self.weight * each.expected
                if total >= most:
                    best = each.answer
                    most = total
            found.append(best)
        return found

    def check(self, rows: int) -> None:
        super().check(rows)
        self.labels.ridge.check(rows)

    def settings(self) -> Mapping[str, Any]:
        return {**self.labels.settings(), "weight": self.weight}

    def arrays(self) -> Arrays:
        return self.labels.arrays()

    def restore(self, settings: Mapping[str, Any], arrays: Arrays) -> None:
        self.labels = Labels.restored(settings, arrays)
        weight = settings["weight"]
        if type(weight) not in (int, float) or not 0 <= weight <= MOST_WEIGHT:
            raise ValueError(f"{weight!r} is no weight of labels")
        self.weight = float(weight)


def label_weight(
    features: Sequence[Sequence[tuple[float, float]]], worth: Sequence[Sequence[float]]
) -> float:
    """What labels count beside the model's share: the ratio of both slopes of the worth of answers, within questions.

    `features` are share and expectation of each question's answers, `worth` what these score. Least squares, drawn
    towards PRIOR as if by PRIOR_COUNT answers; within questions, because a choice is made within one.

    >>> label_weight([[(1.0, 0.0), (0.0, 0.5)]] * 1000, [[0.0, 1.0]] * 1000) == MOST_WEIGHT
    True
    """
    left = PRIOR_COUNT * np.eye(2)
    right = PRIOR_COUNT * np.array(PRIOR)
    for own, scores in zip(features, worth, strict=True):
        if len(own) > 1:
            centred = np.array(own) - np.mean(own, axis=0)  # (answers, 2)
            left += centred.T @ centred
            right += centred.T @ (np.array(scores) - np.mean(scores))
    of_model, of_labels = np.linalg.solve(left, right).tolist()
    if of_labels <= 0:
        return 0.0
    if of_model > 0:
        ratio: float = of_labels / of_model
        return min(MOST_WEIGHT, ratio)
    return MOST_WEIGHT


def voiced_answers(
    scores: Sequence[Score], rules: AnswerRules, item: Item
) -> dict[str, tuple[str, float]]:
    """What the model said of one question, and the share of each answer, by the answer's normal form.

    Every list has one part to give: to its answer, or to all labels by their probabilities where these were weighed.
    An empty answer takes its part with it.
    """
    parts: list[tuple[str, float]] = []
    for score in scores:
        if score.choices:
            parts += label_probabilities(score.choices).items()
        elif score.answer.strip():
            parts.append((score.answer, 1.0))
    groups = agreeing([answer for answer, _ in parts], rules, item)
    written: dict[int, str] = {}
    totals: dict[int, float] = {}
    for group, (answer, part) in zip(groups, parts, strict=True):
        written.pop(group, None)  # in the order of the last time each was given
        written[group] = answer
        totals[group] = totals.get(group, 0.0) + part / len(scores)
    found = {}
    for group, answer in written.items():
        found[rules.key(answer)] = answer, totals[group]
    return found


def label_probabilities(choices: Mapping[str, float]) -> dict[str, float]:
    """Probabilities of all labels, which sum to 1, from their log-probabilities.

    >>> label_probabilities({"a": -1.0, "b": -1.0})
    {'a': 0.5, 'b': 0.5}
    """
    values = np.array(list(choices.values()))
    weights = np.exp(values - values.max())
    return dict(zip(choices, (weights / weights.sum()).tolist(), strict=True))
