"""What an answer may expect to score with a query, from the labels of examples alone, and the ways that choose by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from leverplus.arms.base import (
    Arm,
    ArmUnavailable,
    Arrays,
    Needs,
    Rows,
    ScoredArm,
)
from leverplus.arms.corpus import Corpus, Queries, picture_groups
from leverplus.arms.ridge import (
    LEARNT_FROM,
    Ridge,
    Shares,
    fit_ridge,
    kernel_of,
    mixed,
    vector_likeness,
)
from leverplus.arms.similarity import Floats, Positions
from leverplus.arms.training import Training
from leverplus.data.metrics import MATCHING
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId, Score

TUNED_ON = 1000
"""Items on which the settings below are compared, each predicted without itself."""
MOST_ANSWERS = 2048
"""Answers that are told apart, the most frequent ones; another may expect nothing."""
WIDTHS = (0.15, 0.5)
SHARES = (1.0, 0.5, 0.0)
RIDGE = 0.3
"""Widths of the kernel and shares of the question in the similarity that are tried; the first among equals is kept."""
LABEL_SIMILARITY = 0.1
"""Ranking by labels alone: what a similarity of 1 counts beside the expected score of an answer, which is at most 1."""


@dataclass(frozen=True, eq=False)
class Labels:
    """Predicts what every answer would score: `columns` by the key of an answer, `answers` as somebody wrote them.

    `accuracy` is that of the answer that expects most, left out; `tries` how many settings were compared by it.
    """

    ridge: Ridge
    columns: Mapping[str, int]
    answers: Sequence[str]
    accuracy: float = float("nan")
    tries: int = 0

    def expected(self, queries: Queries, corpus: Corpus) -> Floats:
        """What every answer may expect with every query (B, A)."""
        return self.ridge.expected(queries, corpus)

    def of_rows(self, expected: Floats, corpus: Corpus, rows: Positions) -> Floats:
        """What the answer of some rows may expect: rows (K,) or (B, K) -> (B, K); 0 for one that is not told apart."""
        columns = corpus.derive(("columns", self), self._columns)[rows]
        columns = np.broadcast_to(columns, (len(expected), rows.shape[-1]))
        found = np.take_along_axis(expected, np.maximum(columns, 0), axis=1)
        return np.where(columns >= 0, found, 0.0)

    def _columns(self, corpus: Corpus) -> Positions:
        """The column of every row's answer, -1 for one that is not told apart."""
        found = np.full(len(corpus), -1, np.int64)
        known: dict[str, int] = {}
        for row, item in corpus.every_item.items():
            if item.answers:
                answer = item.answer
                if answer not in known:
                    key = corpus.rules.key(answer)
                    known[answer] = self.columns.get(key, -1)
                found[row] = known[answer]
        return found

    def settings(self) -> Mapping[str, Any]:
        own = {"answers": list(self.answers), "keys": list(self.columns)}
        return {**self.ridge.settings(), **own}

    def arrays(self) -> Arrays:
        return self.ridge.arrays()

    @classmethod
    def restored(cls, settings: Mapping[str, Any], arrays: Arrays) -> Labels:
        """ValueError where the parts do not fit each other."""
        ridge = Ridge.restored(settings, arrays)
        answers = [str(answer) for answer in settings["answers"]]
        columns = {str(key): column for column, key in enumerate(settings["keys"])}
        if not len(columns) == len(answers) == ridge.weights.shape[1]:
            raise ValueError("an answer stands twice among the labels, or in none")
        return cls(ridge, columns, answers)


def learn_labels(corpus: Corpus, first: Sequence[ItemId] = ()) -> Labels | None:
    """What labels predict; None where no example has an answer, or where labels say nothing of other answers.

    Where there are more than LEARNT_FROM, those named in `first` are taken before others.
    """
    items = corpus.every_item
    rules = corpus.rules
    labelled = []
    for row in sorted(items):
        if any(rules.key(own) for own in items[row].answers):
            labelled.append(row)
    if rules.metric not in MATCHING or not labelled:
        return None
    wanted = set(first)
    drawn = np.random.default_rng(0).permutation(labelled).tolist()
    # stable: chance decides among the others
    drawn.sort(key=lambda row: items[row].id not in wanted)
    rows = np.array(sorted(drawn[:LEARNT_FROM]), np.int64)
    own = [items[row] for row in rows.tolist()]
    columns, answers = _answers(own, rules)
    scores = _scores(own, columns, rules)  # (M, A)
    groups = picture_groups(own)
    near = vector_likeness(corpus, rows)

    drawn = np.random.default_rng(0).permutation(len(own))
    few = np.sort(drawn[:TUNED_ON])
    settings: list[tuple[Shares, float]] = []
    for share, width in product(SHARES if "image" in near else SHARES[:1], WIDTHS):
        both = {"text": share, "image": 1.0 - share}
        settings.append(({name: own for name, own in both.items() if own}, width))
    tuned = {}
    for name, values in near.items():
        tuned[name] = values[np.ix_(few, few)]
    right = []
    for shares, width in settings:
        kernel = kernel_of(mixed(tuned, shares), width)
        _, guess = fit_ridge(kernel, RIDGE, scores[few], groups[few])
        right.append(_accuracy(guess, scores[few]))
    shares, width = settings[int(np.argmax(right))]
    kernel = kernel_of(mixed(near, shares), width)
    weights, left_out = fit_ridge(kernel, RIDGE, scores, groups)
    accuracy = _accuracy(left_out, scores)
    single = left_out.astype(np.float32)
    without = {item.id: single[place] for place, item in enumerate(own)}
    halves = weights.astype(np.float32)
    ridge = Ridge(rows, shares, width, halves, left_out=without)
    return Labels(ridge, columns, answers, accuracy, len(settings))


def _answers(
    items: Sequence[Item], rules: AnswerRules
) -> tuple[dict[str, int], list[str]]:
    """Columns of the shown answers, the most frequent first, and how each was first written."""
    written: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for item in items:
        key = rules.key(item.answer)
        written.setdefault(key, item.answer)
        counts[key] += 1
    known = [key for key, _ in counts.most_common(MOST_ANSWERS)]
    columns = {key: column for column, key in enumerate(known)}
    return columns, [written[key] for key in known]


def _scores(
    items: Sequence[Item], columns: Mapping[str, int], rules: AnswerRules
) -> NDArray[np.float64]:
    """What every answer would score if it were given to every item (M, A); one that nobody gave scores nothing."""
    found = np.zeros((len(items), len(columns)))
    for row, item in enumerate(items):
        for answer in set(item.answers):
            column = columns.get(rules.key(answer))
            if column is not None:
                score = rules.score(answer, item)
                found[row, column] = max(found[row, column], score)
    return found


def _accuracy(guess: Floats, scores: Floats) -> float:
    """The accuracy of the answer that expects most."""
    best = guess.argmax(axis=1)[:, None]
    return float(np.take_along_axis(scores, best, axis=1).mean())


def require_labels(training: Training) -> Labels:
    """What labels predict; ArmUnavailable where answers are no labels."""
    if training.labels is None:
        raise ArmUnavailable("labels of these items say nothing about answers")
    return training.labels


class LabelRank(ScoredArm):
    """score = similarity slopes * similarity + label weight * what labels predict of the example's answer + its effect."""

    name = "label_rank"
    title = "ranked by labels"
    says = "similarity and how likely labels find the answer that an example shows; score: their weighted sum"
    needs = Needs(vectors=("text", "image"))
    suits: ClassVar[tuple[str, ...]] = ("label", "short")
    unasked_for = "label"
    label_weight = 1.0
    labels: Labels | None = None

    def __init__(self) -> None:
        self.slopes: dict[str, float] = {}
        """What a similarity of 1 counts, by field."""
        self.effect: Floats = np.empty(0)
        """A number for each of the first rows; later ones have none."""

    @property
    def vector_fields(self) -> tuple[str, ...]:
        learnt = () if self.labels is None else self.labels.ridge.fields
        return tuple(
            name for name in ("text", "image") if name in (*self.slopes, *learnt)
        )

    def fit(self, training: Training) -> Self:
        self.labels = require_labels(training)
        share = training.text_share
        for name, part in (("text", share), ("image", 1.0 - share)):
            if part > 0.0:
                self.slopes[name] = LABEL_SIMILARITY * part
        return self

    def terms(
        self, queries: Queries, corpus: Corpus, rows: Positions
    ) -> Mapping[str, Floats]:
        near = np.zeros((len(queries), len(rows)))
        for name in sorted(self.slopes, reverse=True):  # one order, one rounding
            near = near + self.slopes[name] * corpus.near(queries, name, rows)
        label = np.zeros_like(near)
        if self.labels is not None:
            expected = self.labels.expected(queries, corpus)
            label = self.label_weight * self.labels.of_rows(expected, corpus, rows)
        effect = np.zeros(len(corpus))
        effect[: len(self.effect)] = self.effect
        effects = np.broadcast_to(effect[rows], near.shape)
        return {"similarity": near, "label": label, "effect": effects}

    def check(self, rows: int) -> None:
        if len(self.effect) > rows:
            raise ValueError("its effects belong to other examples")
        if self.labels is not None:
            self.labels.ridge.check(rows)

    def settings(self) -> Mapping[str, Any]:
        labels = None if self.labels is None else self.labels.settings()
        own = {"slopes": self.slopes, "label_weight": self.label_weight}
        return {**own, "labels": labels}

    def arrays(self) -> Arrays:
        learnt = {} if self.labels is None else self.labels.ridge.arrays()
        return {**learnt, "effect": self.effect}

    def restore(self, settings: Mapping[str, Any], arrays: Arrays) -> None:
        self.slopes = {name: float(own) for name, own in settings["slopes"].items()}
        if not set(self.slopes) <= {"text", "image"}:
            raise ValueError(f"it compares {', '.join(self.slopes)}")
        self.label_weight = float(settings["label_weight"])
        if settings["labels"] is not None:
            self.labels = Labels.restored(settings["labels"], arrays)
        self.effect = np.asarray(arrays["effect"], np.float64)


class LabelRegression(Arm):
    """The answer that labels let expect most; it shows nothing and asks nothing."""

    name = "label_regression"
    title = "label regression"
    says = "the answer that labels of similar questions predict, without the model"
    needs = Needs(vectors=("text", "image"), calls=0)
    shows = False
    labels: Labels

    @property
    def vector_fields(self) -> tuple[str, ...]:
        return self.labels.ridge.fields

    def fit(self, training: Training) -> Self:
        self.labels = require_labels(training)
        return self

    def answer(
        self,
        queries: Queries,
        corpus: Corpus,
        lists: Sequence[Sequence[Rows]],  # noqa: ARG002
        answers: Sequence[Sequence[Score]],  # noqa: ARG002
    ) -> list[str]:
        best = self.labels.expected(queries, corpus).argmax(axis=1)
        return [self.labels.answers[place] for place in best.tolist()]

    def check(self, rows: int) -> None:
        self.labels.ridge.check(rows)

    def settings(self) -> Mapping[str, Any]:
        return self.labels.settings()

    def arrays(self) -> Arrays:
        return self.labels.ridge.arrays()

    def restore(self, settings: Mapping[str, Any], arrays: Arrays) -> None:
        self.labels = Labels.restored(settings, arrays)
