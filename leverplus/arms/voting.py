"""Answers that need no model: the most common one of the nearest examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Self

from leverplus.arms.base import Needs, Rows, prompt_order, read_share
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.nearest import Nearest
from leverplus.arms.training import Training
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, Score
from leverplus.errors import DataError

NEIGHBOURS = 16
"""Nearest examples that vote where none are shown."""


def most_common(
    answers: Sequence[str], rules: AnswerRules, item: Item | None = None
) -> str:
    """The most common answer; among equally common ones the last, which is nearest to the query.

    Answers to `item` count together where the metric takes them for the same. No answer counts only among none.

    >>> most_common(["cat", "dog", "Cat"], AnswerRules("exact_match"))
    'Cat'
    """
    given = [answer for answer in answers if answer.strip()]
    groups = agreeing(given, rules, item)
    counts = Counter(groups)
    best = ""
    for group, answer in zip(groups, given, strict=True):
        if counts[group] == max(counts.values()):
            best = answer
    return best


def agreeing(
    answers: Sequence[str], rules: AnswerRules, item: Item | None = None
) -> list[int]:
    """A number for each answer; those that share it are one answer: SQL that gives the same rows, equal numbers.

    Normal forms are compared first. Only where they differ, and the question is known, the metric compares an answer
    with the first one of every group before it: at most n (n - 1) / 2 comparisons of n answers, and each SQL runs once.

    >>> agreeing(["1,000", "7", "1000.0"], AnswerRules("number"))
    [0, 1, 0]
    """
    firsts: list[str] = []
    by_key: dict[str, int] = {}
    found = []
    for answer in answers:
        key = rules.key(answer)
        if key not in by_key:
            group = len(firsts)
            for number, first in enumerate(firsts):
                if item is not None and _agree(first, answer, item, rules):
                    group = number
                    break
            by_key[key] = group
            if group == len(firsts):
                firsts.append(answer)
        found.append(by_key[key])
    return found


def _agree(first: str, second: str, item: Item, rules: AnswerRules) -> bool:
    """Whether the metric takes two answers for the same; not where it lacks a file here, such as a database in use."""
    try:
        return rules.agree(first, second, item)
    except DataError:
        return False


class Majority(Nearest):
    """The most common answer among the nearest examples."""

    name = "majority"
    title = "majority answer"
    says = "the most common answer of the most similar examples, without the model; score: similarity"
    needs = Needs(vectors=("text", "image"), calls=0)
    keeps = (("text_weight", read_share),)

    @property
    def vector_fields(self) -> tuple[str, ...]:
        if self.text_weight == 1.0:
            return ("text",)
        return ("text", "image")

    def fit(self, training: Training) -> Self:
        self.text_weight = training.text_share
        return self

    def answer(
        self,
        queries: Queries,  # noqa: ARG002
        corpus: Corpus,
        lists: Sequence[Sequence[Rows]],
        answers: Sequence[Sequence[Score]],  # noqa: ARG002
    ) -> list[str]:
        found = []
        for own in lists:
            items = corpus.items(own[0])
            shown = [items[row].answer for row in own[0] if row in items]
            found.append(most_common(shown, corpus.rules))
        return found


class LabelVote(Majority):
    """The most common answer among the 16 nearest of the whole labelled set; it shows nothing."""

    name = "label_vote"
    title = "label vote"
    says = "the most common answer of the nearest examples, without the model"
    shows = False

    def choose_lists(
        self,
        queries: Queries,
        corpus: Corpus,
        shots: int,  # noqa: ARG002
    ) -> list[list[Rows]]:
        ranked = self.rank(queries, corpus, NEIGHBOURS)
        return [[prompt_order(own.rows)] for own in ranked]
