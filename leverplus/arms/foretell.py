"""What the answer to a question will probably be made of, learnt from examples alone; no model is asked.

A kernel ridge regression foretells the parts of answers. They are weighed by how rare they are and projected on their
first principal axes, so that what is kept is small. All constants are chosen on the examples, each foretold without
itself and without others on its picture, by how good the answers are of those that would be shown for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.arms.answers import Form, take_apart
from leverplus.arms.base import ArmUnavailable, Arrays
from leverplus.arms.corpus import Corpus, Queries, picture_groups
from leverplus.arms.ridge import (
    LEARNT_FROM,
    Ridge,
    Shares,
    Singles,
    fit_ridge,
    kernel_of,
    missed_without_group,
    mixed,
    ridge_inverse,
    sample_rows,
    vector_likeness,
)
from leverplus.arms.similarity import Floats, Positions, top
from leverplus.arms.values import corpus_form, masked_words
from leverplus.arms.words import (
    GRID,
    Hashes,
    Matrix,
    Vocabulary,
    pair_hashes,
    products,
)
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item

FEWEST_LEARNT_FROM = 8
"""Fewer examples with answers teach nothing."""
TUNED_ON = 800
"""Examples on which constants are compared."""
AXES = 256
"""Principal axes of answers that are kept."""
MOST_PARTS = 1 << 15
"""Parts of answers that are told apart, the most frequent ones."""
SEVERAL = 10
"""Different answers of an example that are looked at."""

WIDTHS = (0.3, 0.6, 1.0, 2.0)
RIDGES = (0.03, 0.1, 0.3)
WEIGHTS = (0.01, 0.1, 0.3, 0.6, 1.0)
"""What a similarity counts beside the likeness of answers; among equal answers the nearer question comes first."""
FIRST = (1, 4, 8)
"""Lengths of lists whose best answer is looked at."""


def answered_rows(corpus: Corpus) -> Positions:
    """The rows of examples that have an answer."""
    items = corpus.every_item
    return np.array([row for row in sorted(items) if items[row].answers], np.int64)


def shown_parts(item: Item, form: Form, rules: AnswerRules) -> Hashes:
    """The parts of the answer that an example shows."""
    if not item.answers:
        return np.empty(0, np.uint64)
    return np.unique(take_apart(form, rules, item.answer, item.question).parts)


def several_answers(item: Item) -> list[str]:
    """The different answers of an example, the one that is shown first."""
    if not item.answers:
        return []
    return list(dict.fromkeys([item.answer, *item.answers]))[:SEVERAL]


def target_parts(item: Item, form: Form, rules: AnswerRules) -> Hashes:
    """The parts of all answers of an example, each as often as answers have it."""
    found = [np.empty(0, np.uint64)]
    for answer in several_answers(item):
        found.append(np.unique(take_apart(form, rules, answer, item.question).parts))
    return np.concatenate(found)


@dataclass(frozen=True)
class Trial:
    """Examples on which constants are compared: likeness of answers (n, n), what each is worth, groups (n,)."""

    likeness: Floats
    gain: Floats
    groups: Positions

    @classmethod
    def of(
        cls, items: Sequence[Item], form: Form, rules: AnswerRules, parts: Vocabulary
    ) -> Trial:
        wanted = parts.unit_rows([target_parts(item, form, rules) for item in items])
        given = parts.unit_rows([shown_parts(item, form, rules) for item in items])
        likeness = products(wanted, given.T.tocsr())
        gain = (likeness.clip(0.0, 1.0) + same_shapes(items, form, rules)) / 2.0
        return cls(likeness, gain, picture_groups(items))

    def quality(self, scores: Floats) -> float:
        """How good the best answer is among the 1, 4 and 8 that score highest, in [0, 1]."""
        closed = self.groups[:, None] == self.groups[None]
        scores = np.where(closed, -np.inf, scores)
        best = top(scores, min(max(FIRST), scores.shape[1]))
        allowed = np.where(closed, 0.0, self.gain)
        gains = np.take_along_axis(allowed, best, axis=1)
        total = 0.0
        for count in FIRST:
            reached = gains[:, :count].max(axis=1, initial=0.0)
            total += float(reached.mean())
        return total / len(FIRST)


def same_shapes(
    items: Sequence[Item], form: Form, rules: AnswerRules
) -> NDArray[np.bool_]:
    """Whether the answer that one example shows has the shape of an answer of another, (n, n)."""
    numbers: dict[str, int] = {}
    shapes = [shapes_of(item, form, rules) for item in items]
    shown = np.full(len(items), -1)
    for place, own in enumerate(shapes):
        if own:
            shown[place] = numbers.setdefault(own[0], len(numbers))
    same = np.zeros((len(items), len(items)), np.bool_)
    for place, own in enumerate(shapes):
        for shape in own:
            same[place] |= shown == numbers.get(shape, -2)
    return same


def shapes_of(item: Item, form: Form, rules: AnswerRules) -> list[str]:
    """The shapes of the different answers of an example, that of the shown one first."""
    shapes = []
    for answer in several_answers(item):
        shapes.append(take_apart(form, rules, answer, item.question).shape)
    return shapes


@dataclass(frozen=True, eq=False)
class Foreteller:
    """Foretells what answers are made of, and compares queries with the rows of a corpus.

    `parts` weigh F parts of answers, `axes` (F, D) take them to axes, which `ridge` predicts; `weight` is what
    similarity counts beside the likeness of answers.
    """

    ridge: Ridge
    weight: float
    parts: Vocabulary
    axes: Singles

    @property
    def form(self) -> Form:
        return self.ridge.form

    @classmethod
    def of(cls, corpus: Corpus, name: str) -> Foreteller:
        """Learnt from the examples of a corpus, once for all arms; ArmUnavailable where they are too few."""
        answered = len(answered_rows(corpus))
        if answered < FEWEST_LEARNT_FROM:
            raise ArmUnavailable(
                f'arm "{name}" learns from the answers of examples, and only {answered} have one'
            )
        return corpus.derive("foreteller", learn)

    def corpus_answers(self, corpus: Corpus) -> Floats:
        """The answers of all rows on the axes and on the grid (N, D); unknown parts count in their length only."""

        def make(own: Corpus) -> Floats:
            # scipy adds the parts of a row in their order, whatever other rows there are
            rows = self.corpus_parts(own) @ np.asarray(self.axes, np.float64)
            return np.asarray(np.rint(rows * GRID) / GRID, np.float64)

        return corpus.derive(("answers", self), make)

    def corpus_parts(self, corpus: Corpus) -> Matrix:
        """The parts of the answers of all rows (N, F)."""

        def make(own: Corpus) -> Matrix:
            shown = [np.empty(0, np.uint64)] * len(own)
            for row, item in own.every_item.items():
                shown[row] = shown_parts(item, self.form, own.rules)
            return self.parts.unit_rows(shown)

        return corpus.derive(("parts", self), make)

    def foretold(self, queries: Queries, corpus: Corpus) -> Floats:
        """What the answers will be made of, unit rows on the axes and on the grid (B, D)."""
        return unit_rows(self.ridge.expected(queries, corpus))

    def settings(self) -> Mapping[str, Any]:
        own = {"weight": self.weight, "unseen": self.parts.unseen}
        return {**self.ridge.settings(), **own}

    def arrays(self) -> Arrays:
        return {
            **self.ridge.arrays(),
            "part_hashes": self.parts.hashes,
            "part_weights": self.parts.weights,
            "axes": self.axes,
        }

    @classmethod
    def restored(cls, settings: Mapping[str, Any], arrays: Arrays) -> Foreteller:
        """The one that `settings` and `arrays` took apart; ValueError or KeyError where they do not fit."""
        ridge = Ridge.restored(settings, arrays)
        hashes = arrays["part_hashes"]
        weights = arrays["part_weights"]
        weight = settings["weight"]
        unseen = settings["unseen"]
        axes = arrays["axes"]
        widths = (axes.shape[0], ridge.weights.shape[1])
        if not (widths == (len(hashes), axes.shape[1]) and len(weights) == len(hashes)):
            raise ValueError("the parts of answers do not fit together")
        if not all(np.isfinite(own).all() for own in (weight, unseen, weights, axes)):
            raise ValueError("what weighs the parts of answers is no number")
        parts = Vocabulary(hashes.astype(np.uint64), weights, float(unseen))
        return cls(ridge, float(weight), parts, axes)


def unit_rows(values: Floats) -> Floats:
    """Rows of length 1 on the grid; each row for itself, so that a batch changes nothing."""
    found = np.empty_like(values)
    for row, own in enumerate(values):
        length = float(np.sqrt(np.square(own).sum()))
        found[row] = np.rint(own / (length or 1.0) * GRID) / GRID
    return found


def learn(corpus: Corpus) -> Foreteller:
    """A regression from the examples of a corpus that have answers."""
    form = corpus_form(corpus)
    rules = corpus.rules
    rows = sample_rows(answered_rows(corpus), LEARNT_FROM)
    items = [corpus.every_item[int(row)] for row in rows]
    near = vector_likeness(corpus, rows)
    texts = masked_words(corpus, form)
    words = pair_hashes([texts[int(row)] for row in rows])
    matrix = Vocabulary.learn(words).unit_rows(words)
    near["words"] = products(matrix, matrix.T.tocsr())

    shown = [shown_parts(item, form, rules) for item in items]
    parts = Vocabulary.learn(shown, most=MOST_PARTS)
    few = sample_rows(np.arange(len(rows)), TUNED_ON)
    tried = [items[place] for place in few.tolist()]
    trial = Trial.of(tried, form, rules, parts)
    tuned = {}
    for name, values in near.items():
        tuned[name] = values[np.ix_(few, few)]
    shares, width, ridge, weight = choose_constants(trial, tuned)

    axes = principal_axes(parts.unit_rows(shown), AXES)
    targets = [target_parts(item, form, rules) for item in items]
    goal = parts.unit_rows(targets) @ np.asarray(axes, np.float64)  # (M, D)
    kernel = kernel_of(mixed(near, shares), width)
    weights, left_out = fit_ridge(kernel, ridge, goal, picture_groups(items))
    single = left_out.astype(np.float32)
    own = {item.id: single[place] for place, item in enumerate(items)}
    halves = weights.astype(np.float32)
    learnt = Ridge(rows, shares, width, halves, form, own)
    return Foreteller(learnt, weight, parts, axes)


def possible_shares(compared: Sequence[str]) -> list[Shares]:
    """The weights of similarities that are tried, those of what there is; words are always there."""
    if "text" not in compared and "image" not in compared:
        return [{"words": 1.0}]
    images: tuple[float, ...] = (0.0,)
    if "image" in compared:
        images = (0.0, 0.5, 1.0) if "text" in compared else (1.0,)
    found: list[Shares] = []
    for words, image in product((0.0, 0.3, 0.5, 1.0), images):
        rest = 1.0 - words
        own = {"text": rest * (1.0 - image), "image": rest * image, "words": words}
        shares = {name: share for name, share in own.items() if share}
        if shares not in found:
            found.append(shares)
    return found


def choose_constants(
    trial: Trial, near: Mapping[str, Floats]
) -> tuple[Shares, float, float, float]:
    """Shares, width, ridge and weight under which the answers shown are best; the first among equals."""
    best = -1.0
    found = None
    for shares in possible_shares(list(near)):
        together = mixed(near, shares)
        for width, ridge in product(WIDTHS, RIDGES):
            inverse = ridge_inverse(kernel_of(together, width), ridge)
            expected = left_out_likeness(inverse, trial.likeness, trial.groups)
            for weight in WEIGHTS:
                quality = trial.quality(expected + weight * together)
                if quality > best:
                    best = quality
                    found = (shares, width, ridge, weight)
    assert found is not None
    return found


def left_out_likeness(inverse: Floats, likeness: Floats, groups: Positions) -> Floats:
    """The cosine of what is foretold for each example without its group with the answers of all, (n, n)."""
    # (n, n): what each example counts
    mixture = np.eye(len(inverse)) - missed_without_group(inverse, inverse, groups)
    expected = mixture @ likeness
    symmetric = (likeness + likeness.T) / 2.0
    square = np.einsum("ij,ij->i", mixture @ symmetric, mixture)
    length = np.sqrt(square.clip(min=1e-12))
    return np.asarray(expected / length[:, None], np.float64)


def principal_axes(rows: Matrix, most: int) -> Singles:
    """The first principal axes of sparse rows (N, F), as columns (F, D), by a randomised search.

    Halko, Martinsson and Tropp, SIAM Review 2011, with three rounds of subspace iteration.
    """
    width = rows.shape[1]
    if width <= most:
        return np.eye(width, dtype=np.float32)
    count = min(most, len(rows.indptr) - 1)
    tried = min(count + 32, *rows.shape)
    start = np.random.default_rng(0).standard_normal((width, tried))
    basis, _ = np.linalg.qr(rows @ start)
    for _ in range(3):
        across, _ = np.linalg.qr(rows.T @ basis)
        basis, _ = np.linalg.qr(rows @ across)
    inner = (rows.T @ basis).T
    _, _, axes = np.linalg.svd(inner, full_matrices=False)
    return np.asarray(axes[:count].T, np.float32)
