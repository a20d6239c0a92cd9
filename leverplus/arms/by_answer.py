"""Examples whose own answers are like the answer that the question will probably have, or that the model gave first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import numpy as np

from leverplus.arms.answers import take_apart
from leverplus.arms.base import Arrays, Needs, Rows, ScoredArm, prompt_order, rank_by
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.foretell import Foreteller
from leverplus.arms.similarity import Floats, Positions
from leverplus.arms.training import Training
from leverplus.arms.words import products


class ByAnswer(ScoredArm):
    """Ranked by how like an example's answer is to the foretold one, and by similarity of the questions."""

    name = "by_answer"
    title = "ranked by the answer's likely shape"
    says = (
        "answers like the one that is foretold, and near questions; score: sum of both"
    )
    needs = Needs(vectors=("text", "image"))
    suits: ClassVar[tuple[str, ...]] = ("long",)
    unasked_for = "long"
    foreteller: Foreteller | None = None

    @property
    def learnt(self) -> Foreteller:
        assert self.foreteller is not None, "fit or load comes first"
        return self.foreteller

    @property
    def vector_fields(self) -> tuple[str, ...]:
        if self.foreteller is None:
            return self.needs.vectors
        return self.foreteller.ridge.fields

    @property
    def shortlist_weight(self) -> float:
        shares = self.learnt.ridge.shares
        text = shares.get("text", 0.0)
        image = shares.get("image", 0.0)
        if image:
            return text / (text + image)
        return 1.0

    def fit(self, training: Training) -> Self:
        self.foreteller = Foreteller.of(training.corpus, self.name)
        return self

    def terms(
        self, queries: Queries, corpus: Corpus, rows: Positions
    ) -> Mapping[str, Floats]:
        own = self.learnt
        answers = own.corpus_answers(corpus)
        if len(rows) < len(answers):
            answers = answers[rows]
        near = own.weight * own.ridge.near(queries, corpus, rows)
        return {
            "answer": own.foretold(queries, corpus) @ answers.T,
            "similarity": near,
        }

    def check(self, rows: int) -> None:
        self.learnt.ridge.check(rows)

    def settings(self) -> Mapping[str, object]:
        return self.learnt.settings()

    def arrays(self) -> Arrays:
        return self.learnt.arrays()

    def restore(self, settings: Mapping[str, object], arrays: Arrays) -> None:
        self.foreteller = Foreteller.restored(settings, arrays)


class Predicted(ByAnswer):
    """The first call shows what `by_answer` chooses; the second shows examples whose answers are like the answer to it.

    `choose` gives the list of the first call, `choose_given` that of the second.
    """

    name = "predicted"
    title = "near the model's first answer"
    says = "answers like the model's first one and the foretold one; score: sum"
    needs = Needs(vectors=("text", "image"), calls=2)
    suits = ()
    unasked_for = ""
    advised = False  # a bundle chooses, and asks nobody
    asks_first = True

    def choose_given(
        self,
        queries: Queries,
        corpus: Corpus,
        shots: int,
        first_answers: Sequence[str],
    ) -> list[Rows]:
        own = self.learnt
        rows = np.arange(len(corpus))
        parts = []
        for answer, question in zip(first_answers, queries.words, strict=True):
            found = take_apart(own.form, corpus.rules, answer.strip(), question)
            parts.append(np.unique(found.parts))
        given = own.parts.unit_rows(parts)
        near = products(given, own.corpus_parts(corpus).T.tocsr())
        terms = {**self.terms(queries, corpus, rows), "first answer": near}
        ranked = rank_by(terms, queries, corpus, rows, shots)
        return [prompt_order(found.rows) for found in ranked]
