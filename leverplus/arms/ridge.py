"""What is known of a query's answer from examples alone: one kernel ridge regression, for labels and for answers' parts.

A kernel is exp((similarity - 1) / width), and a similarity a weighted sum over the vectors of questions, those of
pictures, and the words of questions with their values masked. What it says of an example that it was learnt from is
computed as if the example, and all others on its picture, were not there. Everything is rounded so far that sums of
products are exact in float64: a query has the same prediction alone and in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from leverplus.arms.answers import Form
from leverplus.arms.base import Arrays
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.similarity import Floats, Positions, cosine
from leverplus.arms.values import masked_queries, masked_words
from leverplus.arms.words import Matrix, Vocabulary, pair_hashes, products
from leverplus.data.types import ItemId

LEARNT_FROM = 4000
"""Most examples that are learnt from: time grows with the third power."""
KERNEL_GRID = 2.0**24
"""Kernels are rounded to multiples of 1 / KERNEL_GRID, weights so that all sums of products are exact."""

Singles = NDArray[np.float32]
COMPARED = ("text", "image", "words")
Shares = Mapping[str, float]
"""How much each similarity counts, by what is compared; together 1."""


@dataclass(frozen=True, eq=False)
class Ridge:
    """Learnt from M rows of a corpus: `weights` (M, T) of T numbers to predict.

    `left_out` has what is predicted of each of these examples without itself and others on its picture. `form` says how
    answers are taken apart, where words with masked values are compared.
    """

    rows: Positions
    shares: Shares
    width: float
    weights: Singles
    form: Form = Form.LABEL
    left_out: Mapping[ItemId, Singles] = field(default_factory=dict)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields whose vectors are compared."""
        return tuple(name for name in ("text", "image") if self.shares.get(name))

    def expected(self, queries: Queries, corpus: Corpus) -> Floats:
        """What is predicted for each query, (B, T)."""
        near = self.near(queries, corpus, self.rows)
        found: Floats = kernel_of(near, self.width) @ self._rounded
        for place, item in enumerate(queries.items):
            if item.id in self.left_out:
                found[place] = self.left_out[item.id]
        return found

    @cached_property
    def _rounded(self) -> Floats:
        return exact_weights(self.weights)

    def near(self, queries: Queries, corpus: Corpus, rows: Positions) -> Floats:
        """How near some rows are to the queries, words and vectors together, (B, K)."""
        near = {name: corpus.near(queries, name, rows) for name in self.fields}
        if self.shares.get("words"):
            words, across = self._words(corpus)
            asked = pair_hashes(masked_queries(queries, corpus, self.form))
            near["words"] = products(words.unit_rows(asked), across)[:, rows]
        return mixed(near, self.shares)

    def _words(self, corpus: Corpus) -> tuple[Vocabulary, Matrix]:
        """How rare words are among what was learnt from, and the words of all rows, turned for products (V, N)."""

        def make(own: Corpus) -> tuple[Vocabulary, Matrix]:
            terms = pair_hashes(masked_words(own, self.form))
            words = Vocabulary.learn([terms[row] for row in self.rows])
            return words, words.unit_rows(terms).T.tocsr()

        return corpus.derive(("words", self), make)

    def check(self, rows: int) -> None:
        """ValueError where it was learnt from other examples than the first `rows` of a corpus."""
        if not (self.rows.min(initial=0) >= 0 and self.rows.max(initial=-1) < rows):
            raise ValueError("what it learnt belongs to other examples")

    def settings(self) -> dict[str, Any]:
        return {"shares": self.shares, "width": self.width, "form": str(self.form)}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"rows": self.rows, "weights": self.weights}

    @classmethod
    def restored(cls, settings: Mapping[str, Any], arrays: Arrays) -> Ridge:
        """The one that `settings` and `arrays` took apart; ValueError or KeyError where they do not fit."""
        shares = {str(name): float(own) for name, own in settings["shares"].items()}
        width = settings["width"]
        rows = arrays["rows"]
        weights = arrays["weights"]
        values = np.array([width, *shares.values()])
        fits = np.isfinite(values).all() and width > 0.0 and values.min() >= 0.0
        if not (fits and set(shares) <= set(COMPARED)):
            raise ValueError("the constants of the regression are no numbers above 0")
        if not (weights.ndim == 2 and rows.shape == weights.shape[:1]):
            raise ValueError("the arrays of the regression do not fit together")
        if not np.isfinite(weights).all():
            raise ValueError("the weights of the regression are no numbers")
        form = Form(settings["form"])
        return cls(rows.astype(np.int64), shares, float(width), weights, form)


def sample_rows(rows: Sequence[int] | Positions, most: int) -> Positions:
    """At most so many of these rows, drawn by chance, ascending."""
    found = np.sort(np.asarray(rows, np.int64))
    if len(found) <= most:
        return found
    drawn = np.random.default_rng(0).permutation(len(found))[:most]
    return found[np.sort(drawn)]


def vector_likeness(corpus: Corpus, rows: Positions) -> dict[str, Floats]:
    """How near some rows are to one another by each field that has vectors, (M, M)."""
    near = {}
    for name in corpus.compared_fields:
        vectors = corpus.blocks[name].take(rows)
        near[name] = cosine(vectors, vectors)
    return near


def mixed(near: Mapping[str, Floats], shares: Shares) -> Floats:
    """The weighted sum of similarities, always in one order, so that it rounds alike."""
    used = [name for name in COMPARED if shares.get(name)]
    total: Floats = shares[used[0]] * near[used[0]]
    for name in used[1:]:
        total += shares[name] * near[name]
    return total


def kernel_of(similarity: Floats, width: float) -> Floats:
    """exp((similarity - 1) / width) on a grid."""
    near: Floats = (similarity - 1.0) / width
    np.exp(near, out=near)
    near *= KERNEL_GRID
    np.rint(near, out=near)
    near /= KERNEL_GRID
    return near


def exact_weights(weights: Singles) -> Floats:
    """Weights (M, T) rounded so far that no sum of products with a kernel needs more than 53 bits."""
    found = np.asarray(weights, np.float64)
    sums = np.abs(found).sum(axis=0)
    largest = float(sums.max(initial=0.0))
    if largest == 0.0:
        return found
    finest = np.log2(2.0**52 / (KERNEL_GRID * largest))
    grid = 2.0 ** int(np.floor(finest))
    return np.asarray(np.rint(found * grid) / grid, np.float64)


def fit_ridge(
    kernel: Floats, ridge: float, targets: Any, groups: Positions
) -> tuple[Floats, Floats]:
    """Weights (M, T), and what is predicted of each example without its group (M, T)."""
    inverse = ridge_inverse(kernel, ridge)
    weights = inverse @ targets
    missed = missed_without_group(inverse, weights, groups)
    return weights, targets - missed


def ridge_inverse(kernel: Floats, ridge: float) -> Floats:
    """The inverse of kernel + ridge (M, M), by Cholesky."""
    regular = kernel + ridge * np.eye(len(kernel))
    factor = linalg.cholesky(regular.T, lower=True, overwrite_a=True)
    inverse, _ = linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)
    half = np.tril(inverse, -1)
    half += half.T
    half[np.diag_indices(len(half))] = inverse.diagonal()
    return np.asarray(half, np.float64)


def missed_without_group(inverse: Floats, weights: Floats, groups: Positions) -> Floats:
    """What a fit without the rows of a group misses at those rows: (C^-1)_gg^-1 (C^-1 y)_g, C being kernel + ridge."""
    missed = weights / inverse.diagonal()[:, None]
    order = np.argsort(groups, kind="stable")
    for own in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if len(own) > 1:
            block = inverse[np.ix_(own, own)]
            missed[own] = linalg.solve(block, weights[own])
    return np.asarray(missed, np.float64)
