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
from leverplus.data.types import Score

NEIGHBOURS = 16
"""Nearest examples that vote where none are shown."""


def most_common(answers: Sequence[str], rules: AnswerRules) -> str:
    """The most common answer by its key; among equally common ones the last, which is nearest to the query.

    >>> most_common(["cat", "dog", "Cat"], AnswerRules("exact_match"))
    'Cat'
    """
    keys = [rules.key(answer) for answer in answers]
    counts = Counter(keys)
    best = ""
    for key, answer in zip(keys, answers, strict=True):
        if counts[key] == max(counts.values()):
            best = answer
    return best


class Majority(Nearest):
    """The most common answer among the nearest examples."""

    name, title = "majority", "majority answer"
    says = "the most common answer of the most similar examples, without the model; score: similarity"
    needs = Needs(vectors=("text", "image"), calls=0)
    keeps = (("text_weight", read_share),)

    @property
    def vector_fields(self) -> tuple[str, ...]:
        return ("text",) if self.text_weight == 1.0 else ("text", "image")

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

    name, title = "label_vote", "label vote"
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
