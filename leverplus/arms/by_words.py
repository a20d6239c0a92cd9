"""Ways that read words: BM25 over questions, over questions with names and values masked, and with vectors together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from leverplus.arms.base import Needs, ScoredArm, read_share
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.foretell import (
    MOST_PARTS,
    TUNED_ON,
    Trial,
    answered_rows,
    shown_parts,
)
from leverplus.arms.ridge import sample_rows, vector_likeness
from leverplus.arms.similarity import Floats, Positions
from leverplus.arms.training import Training
from leverplus.arms.values import Words, corpus_form, masked_queries, masked_words
from leverplus.arms.words import Bm25, Vocabulary, words_of

WORD_SHARES = (0.5, 0.3, 0.7, 0.1, 0.9)
"""Shares of words that are tried; the first among equals is kept."""


def corpus_words(corpus: Corpus) -> list[Words]:
    """The words of every question by row; none for a row that is gone."""
    found: list[Words] = [()] * len(corpus)
    for row, item in corpus.every_item.items():
        found[row] = words_of(item.question)
    return found


def word_index(corpus: Corpus) -> Bm25:
    """The questions, searched by their words."""
    return corpus.derive("bm25", lambda own: Bm25(corpus_words(own)))


class NearestWords(ScoredArm):
    """BM25 over the words of questions, in any script."""

    name = "bm25"
    title = "nearest by words (BM25)"
    says = "questions that share rare words; score: BM25"
    suits = ("long",)
    scores_all = True

    def terms(
        self, queries: Queries, corpus: Corpus, rows: Positions
    ) -> Mapping[str, Floats]:
        asked = [words_of(text) for text in queries.words]
        return {"words": word_index(corpus).scores(asked)[:, rows]}


class NearestMasked(ScoredArm):
    """BM25 over words in which the names and values that examples show are replaced by their kind."""

    name = "masked"
    title = "nearest by words, names and values masked"
    says = "questions that share words, names and values masked; score: BM25"
    suits = ()
    scores_all = True

    def terms(
        self, queries: Queries, corpus: Corpus, rows: Positions
    ) -> Mapping[str, Floats]:
        form = corpus_form(corpus)
        index = corpus.derive("masked", lambda own: Bm25(masked_words(own, form)))
        asked = masked_queries(queries, corpus, form)
        return {"words": index.scores(asked)[:, rows]}


class Hybrid(ScoredArm):
    """share * BM25 (as a part of what the query scores with itself) + (1 - share) * cosine of the vectors."""

    name = "hybrid"
    title = "nearest by words and vectors"
    says = "questions near by words and by meaning; score: weighted sum"
    needs = Needs(vectors=("text",))
    suits = ("long",)
    word_share = 0.5
    keeps = (("word_share", read_share),)

    @property
    def vector_fields(self) -> tuple[str, ...]:
        if self.word_share < 1.0:
            return self.needs.vectors
        return ()

    def fit(self, training: Training) -> Self:
        corpus = training.corpus
        rows = sample_rows(answered_rows(corpus), TUNED_ON)
        near = vector_likeness(corpus, rows).get("text")
        if near is None:
            self.word_share = 1.0
            return self
        form = corpus_form(corpus)
        items = corpus.every_item
        own = [items[row] for row in rows.tolist()]
        shown = [shown_parts(item, form, corpus.rules) for item in own]
        parts = Vocabulary.learn(shown, most=MOST_PARTS)
        trial = Trial.of(own, form, corpus.rules, parts)
        asked = [words_of(item.question) for item in own]
        words = word_index(corpus).shares(asked)[:, rows]
        best = -1.0
        for share in WORD_SHARES if own else ():
            quality = trial.quality(share * words + (1.0 - share) * near)
            if quality > best:
                best = quality
                self.word_share = share
        return self

    def terms(
        self, queries: Queries, corpus: Corpus, rows: Positions
    ) -> Mapping[str, Floats]:
        asked = [words_of(text) for text in queries.words]
        words = word_index(corpus).shares(asked)[:, rows]
        found = {"words": self.word_share * words}
        if self.word_share < 1.0:
            near = corpus.near(queries, "text", rows)
            found["similarity"] = (1.0 - self.word_share) * near
        return found
