"""CIDEr-D for captions: agreement in rare n-grams between a caption and its references.

Source: Vedantam, Zitnick, Parikh, "CIDEr: Consensus-based Image Description Evaluation" (2015), in the D variant of the
COCO caption evaluator. The tokenizer is a light one of our own, not the Penn Treebank tokenizer of that evaluator, so
values differ slightly from its values on captions where the two cut words differently.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from leverplus.data.metrics.base import ConfiguredMetric, require_references
from leverplus.data.metrics.text import text_tokens
from leverplus.errors import EvaluationError

# both as in the official evaluator
LONGEST_NGRAM = 4
SIGMA = 6.0  # words of difference in length that shrink a score by exp(-1/2)

Ngram = tuple[str, ...]

_WORD = re.compile(r"\w+(?:['’]\w+)*")


def caption_words(text: str) -> list[str]:
    """Lower-case words: runs of letters and digits, inner apostrophes kept, all other marks dropped.

    In other scripts the tokens of `text_tokens`, so that a character of Chinese is a word.
    """
    if not text.isascii():
        return text_tokens(text)
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class _Vector:
    """TF-IDF weights of n-grams, their norms by length; `length` counts words as the evaluator does (bigrams)."""

    weights: dict[Ngram, float]
    norms: list[float]
    length: int


class CiderD:
    """Scores captions with the n-gram rarities of one corpus of reference captions (one list per image)."""

    def __init__(self, corpus: Iterable[Sequence[str]]) -> None:
        self._frequency: Counter[Ngram] = Counter()
        images = 0
        for references in corpus:
            seen: set[Ngram] = set()
            for reference in references:
                seen.update(_ngrams(reference))
            # once per image, however many of its references use the n-gram
            self._frequency.update(seen)
            images += 1
        if images == 0:
            raise EvaluationError(
                "CIDEr needs reference captions to know which words are rare, and the corpus is empty"
            )
        self._log_images = math.log(images)

    def score(self, caption: str, references: Sequence[str]) -> float:
        """CIDEr-D of one caption, in [0, 10]; a corpus of one image makes every n-gram common and every score 0."""
        require_references(references, "CIDEr")
        given = self._vector(caption)
        total = 0.0
        for reference in references:
            total += _similarity(given, self._vector(reference))
        return 10.0 * total / len(references)

    def _vector(self, text: str) -> _Vector:
        weights: dict[Ngram, float] = {}
        squares = [0.0] * LONGEST_NGRAM
        length = 0
        for ngram, count in _ngrams(text).items():
            often = max(1, self._frequency[ngram])
            rarity = self._log_images - math.log(often)
            weights[ngram] = count * rarity
            squares[len(ngram) - 1] += weights[ngram] ** 2
            if len(ngram) == 2:
                length += count
        return _Vector(weights, list(map(math.sqrt, squares)), length)


def _ngrams(text: str) -> Counter[Ngram]:
    words = caption_words(text)
    counts: Counter[Ngram] = Counter()
    for size in range(1, LONGEST_NGRAM + 1):
        for start in range(len(words) - size + 1):
            counts[tuple(words[start : start + size])] += 1
    return counts


def _similarity(given: _Vector, wanted: _Vector) -> float:
    """Mean over n-gram lengths of the clipped cosine, shrunk by a Gaussian of the difference in length."""
    products = [0.0] * LONGEST_NGRAM
    for ngram in given.weights.keys() & wanted.weights.keys():
        weight = wanted.weights[ngram]
        # the D variant clips at the reference's weight: repeating a rare word gains nothing
        clipped = min(given.weights[ngram], weight)
        products[len(ngram) - 1] += clipped * weight
    total = 0.0
    for product, norm, other in zip(products, given.norms, wanted.norms, strict=True):
        if norm > 0 and other > 0:
            total += product / (norm * other)
    gap = given.length - wanted.length
    shrunk = math.exp(-(gap * gap) / (2 * SIGMA * SIGMA))
    return total / LONGEST_NGRAM * shrunk


class Cider(ConfiguredMetric):
    """CIDEr-D of one answer as a part of 10, in [0, 1]; rarities come from all references of the task.

    What the best reference scores is the most that is to be had: several references differ, and a reference of fewer
    than four words lacks the longer n-grams.
    """

    def __call__(self, answer: str, example: Sequence[str]) -> float:
        require_references(example, "cider")
        return min(1.0, self._corpus.score(answer, example) / 10.0)

    @cached_property
    def _corpus(self) -> CiderD:
        return CiderD(self.options.references)
