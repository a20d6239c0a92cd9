"""A set of examples that together cover what the answer will probably be made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Self

import numpy as np

from leverplus.arms.base import MOST_SHOTS, Arm, Arrays, RankedArm, ScoredArm
from leverplus.arms.by_answer import ByAnswer
from leverplus.arms.composed import Composed
from leverplus.arms.corpus import Corpus, Queries, Ranked
from leverplus.arms.similarity import Floats, Positions
from leverplus.arms.training import Training

CANDIDATES = 128
"""So many of the examples that the inner arm scores highest are combined."""
KEPT = 0.3
"""What a part still counts for once it has been shown, and again each time it is shown."""
SCORE_SHARE = 0.3
"""What the inner arm's score counts, as a part of its best one, beside what an example adds."""


class Cover(Composed, RankedArm):
    """Greedy: each time the example whose answer adds most of the foretold parts; a part shown counts less after that.

    The parts of an example weigh as a vector of length 1, so that long answers gain nothing by their length.
    Candidates are the best of an arm that gives scores, `cover(bm25)`; alone it takes those of `by_answer`.
    """

    name = "cover"
    title = "a set that covers the answer's likely parts"
    says = "together they cover the foretold answer; score: what each adds"
    suits = ("long",)
    default = ByAnswer

    def __init__(self, parts: Sequence[Arm] = ()) -> None:
        super().__init__(parts)
        self.by_answer = ByAnswer()
        """Foretells the answer."""
        (self.inner,) = self.parts
        if isinstance(self.inner, ByAnswer):
            self.by_answer = self.inner
        elif not isinstance(self.inner, ScoredArm):
            raise ValueError("cover takes one arm that gives every example a score")
        vectors = dict.fromkeys(["text", *self.needs.vectors])
        self.needs = replace(self.needs, vectors=tuple(vectors))

    @property
    def most_shots(self) -> int:
        return MOST_SHOTS

    @property
    def vector_fields(self) -> tuple[str, ...]:
        foretold = (
            () if self.by_answer.foreteller is None else self.by_answer.vector_fields
        )
        return tuple(dict.fromkeys([*self.inner.vector_fields, *foretold]))

    def fit(self, training: Training) -> Self:
        super().fit(training)
        self.by_answer.fit(training)
        return self

    def rank(self, queries: Queries, corpus: Corpus, count: int) -> Iterator[Ranked]:
        own = self.by_answer.learnt
        parts = own.corpus_parts(corpus)
        foretold = own.foretold(queries, corpus)
        assert isinstance(self.inner, ScoredArm)
        best = self.inner.rank(queries, corpus, CANDIDATES)
        for place, (rows, scores, _) in enumerate(best):
            few = parts[rows]
            used = np.unique(few.indices)
            wanted = np.asarray(own.axes[used], np.float64) @ foretold[place]
            held = few[:, used].toarray()
            order, added = greedy_cover(held, wanted, scores, count)
            yield Ranked(rows[order], added)

    def settings(self) -> Mapping[str, object]:
        if self.inner is self.by_answer:
            return {}
        return self.by_answer.settings()

    def arrays(self) -> Arrays:
        if self.inner is self.by_answer:
            return {}
        return self.by_answer.arrays()

    def restore(self, settings: Mapping[str, object], arrays: Arrays) -> None:
        if self.inner is not self.by_answer:
            self.by_answer.restore(settings, arrays)

    def check(self, rows: int) -> None:
        super().check(rows)
        self.by_answer.check(rows)


def greedy_cover(
    parts: Floats, wanted: Floats, scores: Floats, count: int
) -> tuple[Positions, Floats]:
    """The order in which candidates are chosen, and what each adds; the others follow by what they would add.

    `parts` (K, F) are unit rows, `wanted` (F,) is how much each part is wanted.
    """
    left = np.maximum(wanted, 0.0)
    highest = float(scores.max(initial=0.0))
    bonus = SCORE_SHARE * scores / highest if highest > 0.0 else 0.0 * scores
    is_open = np.ones(len(parts), np.bool_)
    order = []
    added = []
    for _ in range(min(count, len(parts))):
        gain = np.where(is_open, parts @ left + bonus, -np.inf)
        chosen = int(gain.argmax())
        order.append(chosen)
        added.append(gain[chosen])
        is_open[chosen] = False
        left = np.where(parts[chosen] > 0.0, KEPT * left, left)
    gain = parts @ left + bonus
    rest = np.flatnonzero(is_open)
    rest = rest[np.argsort(-gain[rest], kind="stable")]
    rows = np.concatenate([order, rest]).astype(np.int64)
    return rows, np.concatenate([added, gain[rest]])
