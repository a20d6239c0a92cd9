"""Answers without a model: the answer of the best example, with the question's own values in the places of its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leverplus.arms.base import Arm, Explanation, Rows
from leverplus.arms.by_answer import ByAnswer
from leverplus.arms.composed import Composed
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.values import corpus_form, known_values, swap_values
from leverplus.data.types import Score


class CopyNearest(Composed):
    """Copies the first example's answer; what the example's question gave is replaced by what the question gives.

    `copy_nearest(bm25)` copies from another arm's first example; alone it takes that of `by_answer`.
    """

    name = "copy_nearest"
    title = "the best example's answer, values swapped (no model)"
    says = "the example whose answer is copied; score: that of the arm that finds it"
    suits = ("long",)
    default = ByAnswer
    shows = False

    def __init__(self, parts: Sequence[Arm] = ()) -> None:
        super().__init__(parts)
        self.needs = replace(self.needs, calls=0)

    def choose_lists(
        self,
        queries: Queries,
        corpus: Corpus,
        shots: int,  # noqa: ARG002
    ) -> list[list[Rows]]:
        return [[rows] for rows in self.parts[0].choose(queries, corpus, 1)]

    def explain(self, query: Queries, corpus: Corpus, shots: int) -> Explanation:  # noqa: ARG002
        return replace(self.parts[0].explain(query, corpus, 1), shown=[])

    def answer(
        self,
        queries: Queries,
        corpus: Corpus,
        lists: Sequence[Sequence[Rows]],
        answers: Sequence[Sequence[Score]],  # noqa: ARG002
    ) -> list[str]:
        known = known_values(corpus, corpus_form(corpus))
        found = []
        for own, question in zip(lists, queries.words, strict=True):
            text = ""
            if own[0]:
                example = corpus.items(own[0])[own[0][-1]]
                text = swap_values(example.question, example.answer, question, known)
            found.append(text)
        return found
