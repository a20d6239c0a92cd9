"""Ways that show everybody the same: one list that a pilot found best, or some examples and then the nearest ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from leverplus.arms.base import (
    Arm,
    ArmUnavailable,
    Needs,
    Rows,
    prompt_order,
    read_rows,
)
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.foretell import MOST_PARTS, answered_rows, shown_parts
from leverplus.arms.ridge import sample_rows
from leverplus.arms.similarity import Positions
from leverplus.arms.training import Training
from leverplus.arms.values import corpus_form
from leverplus.arms.words import Matrix, Vocabulary, products
from leverplus.errors import LeverError

MOST_FIXED = 32
"""Examples for everybody that are kept, in the order in which they were chosen."""
CHOSEN_FROM = 2000
"""Examples among which they are chosen."""


class Fixed(Arm):
    """One list for everybody, of each length that was searched.

    Of a length that was not, the examples that stand last in the next longer list. Closed ones are left out.
    """

    name = "fixed"
    title = "one list for everybody"
    says = "the same list for every question"
    needs = Needs(training=True, pilot=True)
    same_for_all = True

    def __init__(self, lists: Mapping[int, Sequence[int]] | None = None) -> None:
        self.lists = {n: list(rows) for n, rows in (lists or {}).items()}

    @property
    def most_shots(self) -> int:
        return max(self.lists, default=0)

    def shots(self, wanted: Sequence[int]) -> list[int]:
        # all of them where it is not fitted yet
        return [n for n in wanted if n in self.lists or not self.lists]

    def fit(self, training: Training) -> Self:
        rows = {item.id: row for row, item in enumerate(training.items)}
        found = training.fixed_lists()
        if not found:
            raise ArmUnavailable(
                "no list for everybody was searched; set score.pilot to a number of training queries"
            )
        for shots, demos in found.items():
            if missing := [demo for demo in demos if demo not in rows]:
                raise LeverError(f"there is no demonstration {missing[0]}")
            self.lists[shots] = [rows[demo] for demo in demos]
        return self

    def settings(self) -> Mapping[str, Any]:
        return {"lists": [self.lists[n] for n in sorted(self.lists)]}

    def restore(self, settings: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:  # noqa: ARG002
        self.lists = {len(rows): read_rows(rows) for rows in settings["lists"]}

    def check(self, rows: int) -> None:
        if any(max(own, default=0) >= rows for own in self.lists.values()):
            raise ValueError("its list belongs to other examples")

    def choose(self, queries: Queries, corpus: Corpus, shots: int) -> list[Rows]:
        longer = [n for n in sorted(self.lists) if n >= shots]
        rows = self.lists[longer[0]] if longer else []
        chosen = []
        for place in range(len(queries)):
            mask = queries.open_mask(place, corpus)
            left = [row for row in rows if mask[row]]
            chosen.append(left[max(0, len(left) - shots) :])
        return chosen


class FixedNearest(Arm):
    """Half for everybody, in front; the other half, one more where the number is odd, the nearest by text.

    Those for everybody are chosen so that the answer of every example is like one of theirs (facility location, greedy).
    """

    name = "fixed_nearest"
    title = "some for everybody and the nearest"
    says = "examples that cover the kinds of answers, then the nearest questions"
    needs = Needs(vectors=("text",))
    suits = ()
    keeps = (("fixed", read_rows),)
    fixed: Sequence[int] = ()

    def fit(self, training: Training) -> Self:
        corpus = training.corpus
        form = corpus_form(corpus)
        items = corpus.every_item
        rows = sample_rows(answered_rows(corpus), CHOSEN_FROM)
        shown = []
        for row in rows:
            shown.append(shown_parts(items[int(row)], form, corpus.rules))
        parts = Vocabulary.learn(shown, most=MOST_PARTS)
        chosen = covering_rows(parts.unit_rows(shown), MOST_FIXED)
        self.fixed = rows[chosen].tolist()
        return self

    def choose(self, queries: Queries, corpus: Corpus, shots: int) -> list[Rows]:
        chosen = []
        for place, near in enumerate(corpus.nearest(queries, 1.0, shots)):
            mask = queries.open_mask(place, corpus)
            nearest = near.rows.tolist()
            kept = nearest[: shots - shots // 2]
            fixed = [row for row in self.fixed if mask[row] and row not in kept]
            fixed = fixed[: shots - len(kept)]
            more = [row for row in nearest if row not in kept and row not in fixed]
            kept += more[: shots - len(kept) - len(fixed)]
            chosen.append(fixed + prompt_order(kept))
        return chosen

    def check(self, rows: int) -> None:
        if max(self.fixed, default=0) >= rows:
            raise ValueError("its examples for everybody belong to other examples")


def covering_rows(answers: Matrix, count: int) -> Positions:
    """Rows of which each answer is like at least one, the most useful first: greedy facility location."""
    like = products(answers, answers.T.tocsr())
    reached = np.zeros(len(like))
    chosen: list[int] = []
    for _ in range(min(count, len(like))):
        more = like - reached[:, None]
        gain = np.maximum(more, 0.0).sum(axis=0)
        gain[chosen] = -1.0
        best = int(gain.argmax())
        chosen.append(best)
        reached = np.maximum(reached, like[:, best])
    return np.array(chosen, np.int64)
