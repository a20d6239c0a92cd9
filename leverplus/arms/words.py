"""Questions as words: cut in any script, weighed by how rare they are, compared by BM25 and by tf-idf.

Weights are rounded to multiples of a power of two, so that sums of products are exact in float64 and do not depend on
how many queries are compared at once.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Floats = NDArray[np.float64]
Hashes = NDArray[np.uint64]
Matrix: TypeAlias = sparse.csr_matrix
GRID = 2.0**25
"""Weights of tf-idf are multiples of 1 / GRID, as the components of unit vectors are."""
BM25_GRID = 2.0**24
K1 = 1.5
B = 0.75
"""Constants of BM25 as `rank_bm25` and the papers on choosing examples have them."""
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3007\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
"""Characters of scripts without spaces between words, each of which counts as a word."""


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the words of a text begin and end, in any script.

    >>> [("north-west 2nd"[a:b]) for a, b in word_spans("north-west 2nd")]
    ['north', 'west', '2nd']
    """
    if text.isascii():
        return [match.span() for match in _ASCII_WORD.finditer(text)]
    spans: list[tuple[int, int]] = []
    start = -1
    for place, char in enumerate(text):
        category = unicodedata.category(char)[0]
        alone = category in "LN" and _UNSPACED.match(char) is not None
        inside = category in "LN" or (category == "M" and start >= 0)
        if start >= 0 and (alone or not inside):
            spans.append((start, place))
            start = -1
        if alone:
            spans.append((place, place + 1))
        elif inside and start < 0:
            start = place
    if start >= 0:
        spans.append((start, len(text)))
    return spans


def plain_word(word: str) -> str:
    """A word as it is compared: without case and with composed accents."""
    if word.isascii():
        return word.lower()
    return unicodedata.normalize("NFKC", word).casefold()


@lru_cache(maxsize=1 << 16)
def words_of(text: str) -> tuple[str, ...]:
    """The words of a text as they are compared; of a text without any, its marks.

    >>> words_of("Which Städte?"), words_of("北京 2024"), words_of("?!")
    (('which', 'städte'), ('北', '京', '2024'), ('?', '!'))
    """
    words = [plain_word(text[start:end]) for start, end in word_spans(text)]
    return tuple(words) or tuple("".join(text.split()))


def find_words(words: Sequence[str], text: Sequence[str]) -> int:
    """Where some words first stand one after the other in a text; -1 where they do not."""
    wanted = tuple(words)
    size = len(words)
    for start in range(len(text) - size + 1):
        if text[start] == wanted[0] and tuple(text[start : start + size]) == wanted:
            return start
    return -1


def with_pairs(words: Sequence[str]) -> list[str]:
    """The words, and each two neighbours as one more."""
    pairs = [f"{first} {second}" for first, second in pairwise(words)]
    return [*words, *pairs]


@lru_cache(maxsize=1 << 18)
def hash_term(term: str) -> int:
    """The number that stands for a word or a part: the same on every machine."""
    digest = blake2b(term.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def hash_terms(terms: Sequence[str]) -> Hashes:
    """The numbers of some terms, as often as they occur."""
    return np.array([hash_term(term) for term in terms], np.uint64)


def pair_hashes(texts: Sequence[Sequence[str]]) -> list[Hashes]:
    """The numbers of the words of each text and of its pairs of neighbours."""
    return [hash_terms(with_pairs(words)) for words in texts]


@dataclass(frozen=True)
class Vocabulary:
    """Terms by their hashes, sorted (V,), with how much each weighs (V,); `unseen` is the weight of any other."""

    hashes: Hashes
    weights: Floats
    unseen: float

    @classmethod
    def learn(cls, texts: Sequence[Hashes], most: int = 1 << 18) -> Vocabulary:
        """Weights ln((1 + texts) / (1 + texts with the term)) + 1, of the `most` frequent terms."""
        hashes, counts = _frequencies(texts)
        if len(hashes) > most:
            kept = np.sort(np.argsort(-counts, kind="stable")[:most])
            hashes = hashes[kept]
            counts = counts[kept]
        weights = np.log((1.0 + len(texts)) / (1.0 + counts)) + 1.0
        unseen = math.log((1.0 + len(texts)) / 2.0) + 1.0
        return cls(hashes, weights, unseen)

    def unit_rows(self, texts: Sequence[Hashes]) -> Matrix:
        """Texts as rows of length 1 (N, V) on the grid; terms that are not known count in the length only."""
        rows, strange = _counted(texts, self.hashes)
        rows.data = (1.0 + np.log(rows.data)) * self.weights[rows.indices]
        for place, counts in enumerate(strange):
            own = slice(rows.indptr[place], rows.indptr[place + 1])
            values = rows.data[own]
            others = (1.0 + np.log(counts)) * self.unseen
            length = math.sqrt(float(values @ values) + float(others @ others))
            unit = values / (length or 1.0)
            rows.data[own] = np.rint(unit * GRID) / GRID
        return rows


def _frequencies(texts: Sequence[Hashes]) -> tuple[Hashes, NDArray[np.int64]]:
    """All terms, sorted, and in how many texts each stands."""
    kinds = [np.unique(terms) for terms in texts]
    joined = np.concatenate([np.empty(0, np.uint64), *kinds])
    return np.unique(joined, return_counts=True)


def _counted(texts: Sequence[Hashes], hashes: Hashes) -> tuple[Matrix, list[Floats]]:
    """How often each text has each of some terms (N, V), and how often the others."""
    data = []
    columns = []
    ends = [0]
    strange = []
    for terms in texts:
        kinds, counts = np.unique(terms, return_counts=True)
        places = np.searchsorted(hashes, kinds)
        known = places < len(hashes)
        known[known] = hashes[places[known]] == kinds[known]
        data.append(counts[known].astype(np.float64))
        columns.append(places[known])
        ends.append(ends[-1] + len(data[-1]))
        strange.append(counts[~known].astype(np.float64))
    values = np.concatenate([np.empty(0), *data])
    places = np.concatenate([np.empty(0, np.int64), *columns])
    shape = (len(texts), len(hashes))
    return sparse.csr_matrix((values, places, ends), shape=shape), strange


def products(left: Matrix, right_transposed: Matrix) -> Floats:
    """Inner products of sparse rows (B, V) with the columns of (V, N), as a full array (B, N)."""
    found: Floats = np.asarray((left @ right_transposed).toarray(), np.float64)
    return found


class Bm25:
    """Texts that are searched by the words of a query (Robertson and Zaragoza, 2009; idf never below 0, as in Lucene).

    >>> index = Bm25([("a", "red", "ball"), ("a", "blue", "ball"), ()])
    >>> scores = index.scores([("red", "ball")])
    >>> scores.shape, bool(scores[0, 0] > scores[0, 1] > scores[0, 2] == 0)
    ((1, 3), True)
    """

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        terms = [hash_terms(words) for words in texts]
        lengths = np.array([len(words) for words in texts], np.float64)
        count = int((lengths > 0).sum())
        self.mean = float(lengths.sum()) / max(count, 1) or 1.0
        self.hashes, frequency = _frequencies(terms)
        self.idf = np.log(1.0 + (count - frequency + 0.5) / (frequency + 0.5))
        matrix, _ = _counted(terms, self.hashes)
        often = np.repeat(lengths, np.diff(matrix.indptr))
        matrix.data = self._weights(matrix, often)
        self.transposed: Matrix = matrix.T.tocsr()

    def _weights(self, counts: Matrix, lengths: Floats) -> Floats:
        """What each word of a text adds to its score, by the length of the text it stands in."""
        often = counts.data
        damped = often + K1 * (1.0 - B + B * lengths / self.mean)
        weights = self.idf[counts.indices] * often * (K1 + 1.0) / damped
        rounded: Floats = np.rint(weights * BM25_GRID) / BM25_GRID
        return rounded

    def scores(self, queries: Sequence[Sequence[str]]) -> Floats:
        """The score of every text with every query (B, N)."""
        asked, _ = _counted([hash_terms(words) for words in queries], self.hashes)
        return products(asked, self.transposed)

    def shares(self, queries: Sequence[Sequence[str]]) -> Floats:
        """Scores as shares of what the query would score with itself, words that no text has left out (B, N)."""
        asked, _ = _counted([hash_terms(words) for words in queries], self.hashes)
        found = products(asked, self.transposed)
        lengths = np.array([len(words) for words in queries], np.float64)
        counts = np.diff(asked.indptr)
        weights = self._weights(asked, np.repeat(lengths, counts))
        own = asked.copy()
        own.data = weights * asked.data
        total = np.asarray(own.sum(axis=1)).ravel()
        return found / np.where(total > 0.0, total, 1.0)[:, None]
