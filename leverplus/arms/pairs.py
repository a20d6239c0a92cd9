"""What can be said of a question and an example together before any model is asked: numbers that a selector weighs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from leverplus.arms.base import Arrays
from leverplus.arms.by_answer import ByAnswer
from leverplus.arms.by_words import word_index
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.similarity import Floats, Positions
from leverplus.arms.training import Training
from leverplus.arms.values import (
    KnownValues,
    Place,
    Words,
    answer_values,
    corpus_form,
    known_values,
    masked_words,
    swap_values,
    value_words,
)
from leverplus.arms.words import Bm25, find_words

STARTED_FROM = 2
"""The first two are those that `by_answer` adds up: what a selector knows before it has learnt."""
NAMES = (
    "answer", "similarity", "near", "words", "masked words",
    "same words of the question", "same words of the example", "same order", "same masked words of the question",
    "same masked words of the example", "same masked order", "more values", "as many values", "same slots",
    "same values", "values of the answer", "values left over", "values not used", "changed by swapping",
    "length of the answer", "longer question", "as long a question", "question in the copy",
)  # fmt: skip


@dataclass(frozen=True)
class Read:
    """A question taken apart: its words, those with values masked, its values and their slots."""

    text: str
    words: Words
    masked: Words
    places: Sequence[Place]

    @classmethod
    def of(cls, text: str, known: KnownValues) -> Read:
        return cls(text, value_words(text), known.masked(text), known.places(text))


class PairFeatures:
    """Numbers about a query and each of some rows, (K, F): likeness of the foretold answer, nearness by words and by
    meaning, and what swapping the question's values into the example's answer would leave undone."""

    def __init__(self, start: ByAnswer) -> None:
        self.start = start

    @classmethod
    def fit(cls, training: Training) -> PairFeatures:
        return cls(ByAnswer().fit(training))

    @property
    def vector_fields(self) -> tuple[str, ...]:
        return self.start.vector_fields

    def of(self, query: Queries, corpus: Corpus, rows: Positions) -> Floats:
        """The features of one query (a batch of one) with some rows."""
        form = corpus_form(corpus)
        known = known_values(corpus, form)
        asked = Read.of(query.words[0], known)
        index = corpus.derive("masked", lambda own: Bm25(masked_words(own, form)))
        columns = []
        for values in self.start.terms(query, corpus, rows).values():
            columns.append(values[0])
        near = np.zeros(len(rows))
        for name in corpus.compared_fields:
            near = near + corpus.near(query, name, rows)[0]
        columns.append(near)
        columns.append(word_index(corpus).shares([asked.words])[0, rows])
        columns.append(index.shares([asked.masked])[0, rows])
        reads = corpus.derive(("read", form), lambda own: read_examples(own, known))
        compared = []
        for row in rows.tolist():
            example, answer = reads[row]
            compared.append(compare(asked, example, answer, known))
        together = np.array(compared).reshape(len(rows), -1)
        return np.concatenate([np.stack(columns, axis=1), together], axis=1)

    def settings(self) -> Mapping[str, Any]:
        return self.start.settings()

    def arrays(self) -> Arrays:
        return self.start.arrays()

    @classmethod
    def restored(cls, settings: Mapping[str, Any], arrays: Arrays) -> PairFeatures:
        start = ByAnswer()
        start.restore(settings, arrays)
        return cls(start)


def read_examples(corpus: Corpus, known: KnownValues) -> dict[int, tuple[Read, str]]:
    """The question of every example taken apart, and the answer that it shows."""
    found = {}
    for row, item in corpus.every_item.items():
        answer = item.answer if item.answers else ""
        found[row] = (Read.of(item.question, known), answer)
    return found


def compare(asked: Read, example: Read, answer: str, known: KnownValues) -> list[float]:
    """What a question and an example have in common, and what is left over of the example's values; near [-1, 1]."""
    form = known.form
    copy = swap_values(example.text, answer, asked.text, known)
    placed = answer_values(form, copy)
    used: set[str] = set()
    left = 0
    for place in placed:
        if find_words(place.words, asked.words) >= 0:
            used.update(place.words)
        else:
            left += 1
    given = {word for place in asked.places for word in place.words}
    own_values = {place.words for place in asked.places}
    shown_values = answer_values(form, answer)
    kept = sum(place.words in own_values for place in shown_values)
    more = len(asked.places) - len(example.places)
    longer = len(example.words) - len(asked.words)
    in_copy = set(value_words(copy)) & set(asked.words)
    return [
        *overlap(asked.words, example.words),
        *overlap(asked.masked, example.masked),
        more / 4.0,
        -abs(more) / 4.0,
        jaccard(slots(asked), slots(example)),
        kept / max(1, len(shown_values)),
        len(placed) / 8.0,
        -left / 4.0,
        -len(given - used) / 4.0,
        float(copy != answer),
        math.log1p(len(answer)) / 8.0,
        longer / 16.0,
        -abs(longer) / 16.0,
        len(in_copy) / max(1, len(set(asked.words))),
    ]


def overlap(first: Words, second: Words) -> list[float]:
    """The shared words as a part of the first and of the second text, and how far they stand in one order."""
    shared = (Counter(first) & Counter(second)).total()
    order = SequenceMatcher(None, first, second, autojunk=False).ratio()
    return [shared / max(1, len(first)), shared / max(1, len(second)), order]


def slots(read: Read) -> Counter[Hashable]:
    """How often a question has a value of each slot."""
    return Counter(place.slot for place in read.places)


def jaccard(first: Counter[Hashable], second: Counter[Hashable]) -> float:
    """Shared things as a part of all things."""
    shared = (first & second).total()
    return shared / max(1, first.total() + second.total() - shared)
