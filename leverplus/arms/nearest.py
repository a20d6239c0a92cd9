"""Ways that compare vectors: the most similar examples, two stages, diverse ones; and those that look at nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np

from leverplus.arms.base import (
    Arm,
    Explanation,
    Needs,
    RankedArm,
    Rows,
    read_share,
)
from leverplus.arms.corpus import Corpus, Queries, Ranked
from leverplus.arms.similarity import mmr_order, top
from leverplus.arms.training import Training

FIRST = 64
"""Nearest examples among which the second stage chooses."""


class ZeroShot(Arm):
    """Nothing is shown."""

    name = "zero_shot"
    title = "zero-shot"
    says = "no example is shown"
    shows = False


class Random(Arm):
    """Drawn by the query's words and pixels: the same query gets the same ones until something is added or deleted."""

    name = "random"
    title = "random"
    says = "drawn by chance; score: none"
    advised = False
    nested = "prefix"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def draws(self, count: int) -> list[Arm]:
        return [Random(seed) for seed in range(count)]

    def choose(self, queries: Queries, corpus: Corpus, shots: int) -> list[Rows]:
        chosen: list[Rows] = []
        for place, digest in enumerate(queries.digests):
            rows = np.flatnonzero(queries.open_mask(place, corpus))
            start = int(digest[:15] or "0", 16)
            rng = np.random.default_rng([self.seed, start])
            size = min(self.most_shots, len(rows))
            drawn = rng.choice(rows, size=size, replace=False)
            chosen.append(drawn[:shots].tolist())
        return chosen

    def explain(self, query: Queries, corpus: Corpus, shots: int) -> Explanation:
        shown = self.choose(query, corpus, shots)[0]
        return Explanation(np.array(shown, np.int64), np.zeros(len(shown)), shown)


class Nearest(RankedArm):
    """The most similar ones, the nearest next to the query."""

    text_weight = 1.0

    def rank(self, queries: Queries, corpus: Corpus, count: int) -> list[Ranked]:
        return corpus.nearest(queries, self.text_weight, count)


class NearestText(Nearest):
    """The most similar questions."""

    name = "nearest_text"
    title = "nearest by text"
    says = "the most similar questions; score: similarity"
    needs = Needs(vectors=("text",))
    unasked_for = "short"
    is_rival = True


class NearestImage(Nearest):
    """The most similar pictures."""

    name = "nearest_image"
    title = "nearest by image"
    says = "the most similar pictures; score: similarity"
    needs = Needs(vectors=("image",), pictures=True)
    text_weight = 0.0


class NearestBoth(Nearest):
    """The largest weighted sum of both similarities; dev questions decide the weight."""

    name = "nearest_both"
    title = "nearest by both"
    says = "the most similar questions and pictures; score: similarity"
    needs = Needs(vectors=("text", "image"), pictures=True)
    is_rival = True
    keeps = (("text_weight", read_share),)

    def fit(self, training: Training) -> Self:
        super().fit(training)
        self.text_weight = training.text_share
        return self


class TwoStage(RankedArm):
    """Of the 64 most similar pictures those with the most similar questions; equal questions by picture."""

    name = "two_stage"
    title = "two-stage"
    says = (
        "the most similar questions among the most similar pictures; score: similarity"
    )
    needs = Needs(vectors=("text", "image"), pictures=True)

    def rank(self, queries: Queries, corpus: Corpus, count: int) -> Iterator[Ranked]:
        return two_stages(queries, corpus, max(FIRST, count))


class Mmr(RankedArm):
    """Of the 64 nearest those that are near to the query and unlike each other; the first choice stands next to it."""

    name = "mmr"
    title = "nearest, diverse (MMR)"
    says = "similar examples that are unlike each other; score: similarity"
    needs = Needs(vectors=("text",))
    text_weight = 1.0
    keeps = (("text_weight", read_share),)

    @property
    def vector_fields(self) -> tuple[str, ...]:
        if self.text_weight == 1.0:
            return ("text",)
        return ("text", "image")

    def fit(self, training: Training) -> Self:
        self.text_weight = training.text_share
        return self

    def rank(self, queries: Queries, corpus: Corpus, count: int) -> Iterator[Ranked]:
        first = max(FIRST, count)
        return diverse(queries, corpus, self.text_weight, first, count)


def two_stages(queries: Queries, corpus: Corpus, first: int) -> Iterator[Ranked]:
    """The `first` most similar pictures of each query in the order of their questions' similarity."""
    for place, ranked in enumerate(corpus.nearest(queries, 0.0, first)):
        rows = ranked.rows
        near = corpus.near(queries[place : place + 1], "text", rows)
        order = top(near, len(rows))[0]
        yield Ranked(rows[order], near[0][order])


def diverse(
    queries: Queries, corpus: Corpus, text_weight: float, first: int, count: int
) -> Iterator[Ranked]:
    """Of the `first` nearest of each query `count` by marginal relevance, in the order of their choice."""
    for ranked in corpus.nearest(queries, text_weight, first):
        like = corpus.likeness(ranked.rows, text_weight)
        order = mmr_order(ranked.score, like, count)
        yield Ranked(ranked.rows[order], ranked.score[order])
