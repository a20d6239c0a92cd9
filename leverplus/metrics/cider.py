"""CIDEr-D for captions: agreement in rare n-grams between a caption and its references.

Source: Vedantam, Zitnick, Parikh, "CIDEr: Consensus-based Image Description Evaluation" (2015), in the D variant of the
COCO caption evaluator. The tokenizer is a light one of our own, not the Penn Treebank tokenizer of that evaluator, so
values differ slightly from its values on captions where the two cut words differently.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leverplus.errors import EvaluationError, NotMeasured

# both as in the official evaluator
LONGEST_NGRAM = 4
SIGMA = 6.0  # words of difference in length that shrink a score by exp(-1/2)

Ngram = tuple[str, ...]

_WORD = re.compile(r"\w+(?:['’]\w+)*")


def caption_words(text: str) -> list[str]:
    """Lower-case words: runs of letters and digits, inner apostrophes kept, all other marks dropped."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class _Vector:
    """TF-IDF weights per n-gram length with their norms; `length` counts words as the evaluator does (bigrams)."""

    weights: tuple[dict[Ngram, float], ...]
    norms: tuple[float, ...]
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
            self._frequency.update(seen)  # once per image, however many of its references use the n-gram
            images += 1
        if images == 0:
            raise EvaluationError(
                "CIDEr needs reference captions to know which words are rare, and the corpus is empty"
            )
        self._log_images = math.log(images)

    def score(self, caption: str, references: Sequence[str]) -> float:
        """CIDEr-D of one caption, in [0, 10]; a corpus of one image makes every n-gram common and every score 0."""
        if not references:
            raise NotMeasured("CIDEr needs at least one reference caption, and this image has none")
        given = self._vector(caption)
        total = sum(_similarity(given, self._vector(reference)) for reference in references)
        return 10.0 * total / len(references)

    def _vector(self, text: str) -> _Vector:
        weights: tuple[dict[Ngram, float], ...] = tuple({} for _ in range(LONGEST_NGRAM))
        length = 0
        for ngram, count in _ngrams(text).items():
            rarity = self._log_images - math.log(max(1, self._frequency[ngram]))
            weights[len(ngram) - 1][ngram] = count * rarity
            if len(ngram) == 2:
                length += count
        norms = tuple(math.sqrt(sum(value * value for value in table.values())) for table in weights)
        return _Vector(weights, norms, length)


@dataclass(frozen=True)
class CiderScores:
    """CIDEr-D of a set of captions: the mean and the value of each image, all in [0, 10]."""

    mean: float
    items: Mapping[str, float]


def cider(captions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> CiderScores:
    """CIDEr-D of captions by image id; rarities come from the references of exactly these images, as is official."""
    if captions.keys() != references.keys():
        odd = sorted(captions.keys() ^ references.keys())
        raise EvaluationError(f"captions and references must be of the same images; {len(odd)} differ, first: {odd[0]}")
    scorer = CiderD(references.values())
    items = {image: scorer.score(caption, references[image]) for image, caption in captions.items()}
    return CiderScores(sum(items.values()) / len(items), items)


def _ngrams(text: str) -> Counter[Ngram]:
    words = caption_words(text)
    found: Counter[Ngram] = Counter()
    for size in range(1, LONGEST_NGRAM + 1):
        for start in range(len(words) - size + 1):
            found[tuple(words[start : start + size])] += 1
    return found


def _similarity(given: _Vector, wanted: _Vector) -> float:
    """Mean over n-gram lengths of the clipped cosine, shrunk by a Gaussian of the difference in length."""
    total = 0.0
    for given_table, wanted_table, given_norm, wanted_norm in zip(
        given.weights, wanted.weights, given.norms, wanted.norms, strict=True
    ):
        if given_norm > 0 and wanted_norm > 0:
            shared = given_table.keys() & wanted_table.keys()
            # the D variant clips at the reference's weight: repeating a rare word gains nothing
            product = sum(min(given_table[ngram], wanted_table[ngram]) * wanted_table[ngram] for ngram in shared)
            total += product / (given_norm * wanted_norm)
    gap = given.length - wanted.length
    return total / LONGEST_NGRAM * math.exp(-(gap * gap) / (2 * SIGMA * SIGMA))
