"""What an answer may expect to score with a query, from the labels of the demonstrations alone; no model is asked.

Ridge regression on the kernel exp((similarity - 1) / width): the scores of every answer are one column. What it says
of an item that it was learnt from is computed as if the item, and all others on its picture, were not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from leverplus.embedders.base import Vectors
from leverplus.metrics import Metric, normalise_answer
from leverplus.pools.build import picture_groups
from leverplus.pools.similarity import Floats, Positions, rows, similarity
from leverplus.types import Item, ItemId

LEARNT_FROM = 4000
"""Most items that are learnt from: time grows with the third power, 4,000 take some seconds of a core."""
TUNED_ON = 1000
"""Items on which the settings below are compared, each predicted without itself."""
MOST_ANSWERS = 2048
"""Answers that are told apart, the most frequent ones; another may expect nothing."""
WIDTHS, SHARES, RIDGE = (0.15, 0.5), (1.0, 0.5, 0.0), 0.3
"""Widths of the kernel and shares of the question in the similarity that are tried; the first among equals is kept."""

Singles = NDArray[np.float32]


@dataclass(frozen=True)
class LabelModel:
    """Learnt from M labelled items; A answers are told apart.

    `left_out[m]` is what may be expected of item m as if it and its picture were not among the items. `accuracy` is
    that of the answer that expects most there, `tries` how many settings were compared by it.
    """

    items: Sequence[ItemId]
    vectors: Vectors
    weights: Singles  # (M, A)
    left_out: Singles  # (M, A)
    columns: Mapping[str, int]  # of the normalised answers
    answers: Sequence[str]  # as somebody wrote them
    width: float
    text_share: float
    accuracy: float
    tries: int

    def expected(self, queries: Sequence[ItemId], vectors: Vectors) -> Floats:
        """What every answer may expect with every query (B, A)."""
        found = _kernel(vectors, self.vectors, self.text_share, self.width) @ self.weights  # (B, A)
        places = {item: place for place, item in enumerate(self.items)}
        for row, query in enumerate(queries):
            if query in places:
                found[row] = self.left_out[places[query]]
        return np.asarray(found, np.float64)

    def columns_of(self, items: Sequence[Item]) -> Positions:
        """The column of the answer that each item shows, -1 for one that is not told apart (N,)."""
        found = [self.columns.get(answer_key(item.answer), -1) if item.answers else -1 for item in items]
        return np.array(found, np.int64)


def answer_key(answer: str) -> str:
    """By what answers are told apart; one that normalises to nothing, as the label "A" does, stands as it is."""
    return normalise_answer(answer) or answer.strip()


def expected_of(expected: Floats, columns: Positions) -> Floats:
    """What the answer of every candidate may expect: (B, A) and columns (B, K) -> (B, K)."""
    return np.where(columns >= 0, np.take_along_axis(expected, np.maximum(columns, 0), axis=1), 0.0)


def learn_labels(
    items: Sequence[Item], vectors: Vectors, metric: Metric, *, first: Sequence[ItemId] = (), seed: int = 0
) -> LabelModel | None:
    """A label model of labelled items; None where no item has an answer.

    Where there are more than LEARNT_FROM, those named in `first` are taken before others.
    """
    labelled = [place for place, item in enumerate(items) if any(answer_key(own) for own in item.answers)]
    if not labelled:
        return None
    wanted = set(first)
    drawn = np.random.default_rng(seed).permutation(labelled).tolist()
    drawn.sort(key=lambda place: items[place].id not in wanted)  # stable: chance decides among the others
    chosen = sorted(drawn[:LEARNT_FROM])
    own, near = [items[place] for place in chosen], rows(vectors, chosen)
    columns, answers = _answers(own)
    scores = _scores(own, columns, metric)  # (M, A)
    groups = picture_groups(own)
    few = np.sort(np.random.default_rng(seed).permutation(len(own))[:TUNED_ON])
    settings = list(product(SHARES if near.image is not None else (1.0,), WIDTHS))
    right = []
    for share, width in settings:
        _, guess = _fit(rows(near, few), scores[few], groups[few], share, width)
        right.append(_right(guess, scores[few]))
    share, width = settings[int(np.argmax(right))]
    weights, left_out = _fit(near, scores, groups, share, width)
    return LabelModel(
        items=[item.id for item in own],
        vectors=near,
        weights=weights,
        left_out=left_out,
        columns=columns,
        answers=answers,
        width=width,
        text_share=share,
        accuracy=_right(left_out, scores),
        tries=len(settings),
    )


def _answers(items: Sequence[Item]) -> tuple[dict[str, int], list[str]]:
    """Columns of the shown answers, the most frequent first, and how each was first written."""
    written: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for item in items:
        own = answer_key(item.answer)
        written.setdefault(own, item.answer)
        counts[own] += 1
    known = [answer for answer, _ in counts.most_common(MOST_ANSWERS)]
    return {answer: column for column, answer in enumerate(known)}, [written[answer] for answer in known]


def _scores(items: Sequence[Item], columns: Mapping[str, int], metric: Metric) -> Singles:
    """What every answer would score if it were given to every item (M, A); one that nobody gave scores nothing."""
    found = np.zeros((len(items), len(columns)), np.float32)
    for row, item in enumerate(items):
        for answer in sorted(set(item.answers)):
            column = columns.get(answer_key(answer))
            if column is not None:
                found[row, column] = max(found[row, column], metric(answer, item.answers))
    return found


def _kernel(left: Vectors, right: Vectors, share: float, width: float) -> Singles:
    return np.exp((similarity(left, right, share) - 1.0) / width).astype(np.float32)


def _fit(near: Vectors, scores: Singles, groups: Positions, share: float, width: float) -> tuple[Singles, Singles]:
    """Weights of a ridge regression (M, A), and what it says of every item without its group (M, A)."""
    kernel = _kernel(near, near, share, width)
    kernel[np.diag_indices(len(kernel))] += np.float32(RIDGE)
    inverse = np.asarray(np.linalg.inv(kernel), np.float32)
    weights = np.asarray(inverse @ scores, np.float32)
    return weights, np.asarray(scores - left_out_residual(inverse, weights, groups), np.float32)


def left_out_residual(inverse: Singles, weights: Singles, groups: Positions) -> Singles:
    """What a fit without the rows of a group misses at those rows: (C^-1)_gg^-1 (C^-1 y)_g, C being kernel + ridge."""
    missed = weights / np.diag(inverse)[:, None]
    order = np.argsort(groups, kind="stable")
    for own in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if len(own) > 1:
            missed[own] = np.linalg.solve(inverse[np.ix_(own, own)], weights[own])
    return np.asarray(missed, np.float32)


def _right(guess: Singles, scores: Singles) -> float:
    """The accuracy of the answer that expects most."""
    return float(np.take_along_axis(scores, guess.argmax(axis=1)[:, None], axis=1).mean())
