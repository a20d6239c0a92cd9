"""Metrics of one answer against its references, each in [0, 1]: exact match, label, token F1, edit similarity."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache

from leverplus.errors import NotMeasured
from leverplus.metrics.vqa import normalise_answer

_TOKEN = re.compile(r"[a-z0-9]+")
_OUTER_MARKS = re.compile(r"^[\W_]+|[\W_]+$")


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1.0 when the normalised answer equals any normalised reference, else 0.0.

    Texts that normalise to nothing, such as the article "A" or "...", are compared as they stand.
    """
    _require(references, "exact match")
    given = _normalised_or_label(answer)
    return float(any(given == _normalised_or_label(reference) for reference in references))


def label_accuracy(answer: str, references: Sequence[str]) -> float:
    """1.0 when the answer is the item's label: the most common reference, ties broken by first mention.

    Case, spacing and marks around the label do not count ("Positive." is `positive`); nothing inside it is changed.
    """
    _require(references, "label accuracy")
    counts = Counter(plain_label(reference) for reference in references)
    label, _ = counts.most_common(1)[0]
    return float(plain_label(answer) == label)


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Harmonic mean of token precision and recall (tokens `[a-z0-9]+`, counted), best over the references.

    A side without tokens shares nothing: 0.0.
    """
    _require(references, "token F1")
    given = _token_counts(answer)
    return max(_f1(given, _token_counts(reference)) for reference in references)


def edit_similarity(answer: str, references: Sequence[str]) -> float:
    """`difflib` ratio of the lower-cased strings, 2 * matched characters / all characters, best over the references."""
    _require(references, "edit similarity")
    given = answer.strip().lower()
    return max(_ratio(given, reference.strip().lower()) for reference in references)


def _require(references: Sequence[str], name: str) -> None:
    if not references:
        raise NotMeasured(f"{name} needs at least one reference answer, and this item has none")


def _normalised_or_label(text: str) -> str:
    return normalise_answer(text) or plain_label(text)


def plain_label(text: str) -> str:
    """The text without case, extra spaces and outer marks; a text of marks only keeps them."""
    folded = " ".join(text.casefold().split())
    return _OUTER_MARKS.sub("", folded) or folded


@lru_cache(maxsize=1 << 16)
def _token_counts(text: str) -> Counter[str]:
    return Counter(_TOKEN.findall(text.lower()))


def _f1(given: Counter[str], wanted: Counter[str]) -> float:
    shared = (given & wanted).total()
    if not shared:
        return 0.0
    return 2.0 * shared / (given.total() + wanted.total())


@lru_cache(maxsize=1 << 16)
def _ratio(given: str, wanted: str) -> float:
    # autojunk would ignore common letters in answers of 200 characters and more
    return SequenceMatcher(None, given, wanted, autojunk=False).ratio()
