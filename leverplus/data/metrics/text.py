"""Metrics of one answer as a text against its references: to the letter, normalised, by words, or by a judge."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache

from leverplus.data.metrics.base import (
    ConfiguredMetric,
    Example,
    best_match,
    require_references,
)
from leverplus.data.metrics.vqa import normalise_answer
from leverplus.errors import ScoringError

_TOKEN = re.compile(r"[a-z0-9]+")
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3007\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
"""Characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han; each is a token."""
_OUTER_MARKS = " \t\r\n.,;:!?\"'`()[]{}*_"
"""Marks around a label that do not belong to it; signs such as + - < > # do."""
_OUTER_CATEGORIES = ("Pi", "Pf", "Ps", "Pe", "Po")
"""Kinds of characters that are such marks in other scripts: quotes, brackets, points."""


def exact(answer: str, references: Sequence[str]) -> float:
    """1.0 when the answer is a reference to the letter, outer white space apart.

    >>> exact(" ls > f", ["ls > f"]), exact("ls >> f", ["ls > f"]), exact("Red", ["red"])
    (1.0, 0.0, 0.0)
    """
    return best_match(same_text, answer, references, "exact")


def same_text(first: str, second: str) -> bool:
    """Whether two texts are the same but for outer white space, line ends and composed accents."""
    return first == second or plain_text(first) == plain_text(second)


def plain_text(text: str) -> str:
    """The text without outer white space, with line ends as \\n and accents composed."""
    text = text.strip()
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", text)


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1.0 when the normalised answer equals any normalised reference, else 0.0.

    Texts that normalise to nothing, such as the article "A" or "...", are compared as they stand.
    """
    return best_match(_same_answer, answer, references, "exact match")


def label_accuracy(answer: str, references: Sequence[str]) -> float:
    """1.0 when the answer is the item's label: the most common reference, ties broken by first mention.

    Case, spacing and marks around the label do not count ("Positive." is `positive`); nothing inside it is changed.
    """
    require_references(references, "label accuracy")
    counts = Counter(map(plain_label, references))
    label, _ = counts.most_common(1)[0]
    return float(plain_label(answer) == label)


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Harmonic mean of token precision and recall, best over the references; tokens are those of `text_tokens`."""
    return best_match(_f1, answer, references, "token F1")


def edit_similarity(answer: str, references: Sequence[str]) -> float:
    """`difflib` ratio of the lower-cased strings, 2 * matched characters / all characters, best over the references."""
    return best_match(_ratio, answer, references, "edit similarity")


def _same_answer(first: str, second: str) -> bool:
    return _normalised_or_label(first) == _normalised_or_label(second)


def _normalised_or_label(text: str) -> str:
    normal = normalise_answer(text)
    if not normal or not text.isascii():
        return plain_label(normal or text)
    return normal


def plain_label(text: str) -> str:
    """The text without case, extra spaces and outer marks; a text of marks only keeps them."""
    folded = " ".join(plain_text(text).casefold().split())
    marks = _OUTER_MARKS
    for char in folded:
        if not char.isascii() and unicodedata.category(char) in _OUTER_CATEGORIES:
            marks += char
    return folded.strip(marks) or folded


@lru_cache(maxsize=1 << 16)
def _token_counts(text: str) -> Counter[str]:
    return Counter(text_tokens(text))


def text_tokens(text: str) -> list[str]:
    """The words of a text in any script, in lower case; a text of marks alone is one token a mark.

    >>> text_tokens("A red-hot 2nd"), text_tokens("Привет, мир!"), text_tokens("北京 2024"), text_tokens("->")
    (['a', 'red', 'hot', '2nd'], ['привет', 'мир'], ['北', '京', '2024'], ['-', '>'])
    """
    words = _unicode_words(text)
    if text.isascii():
        words = _TOKEN.findall(text.lower())
    return words or list("".join(text.split()))


def _unicode_words(text: str) -> list[str]:
    """Runs of letters, digits and the accents on them; every character of its own in scripts without spaces."""
    parts: list[str] = []
    for char in unicodedata.normalize("NFC", text.lower()):
        kind = unicodedata.category(char)[0]
        if kind in "LN" and UNSPACED.match(char):
            parts.append(f" {char} ")
        elif kind in "LNM":
            parts.append(char)
        else:
            parts.append(" ")
    return "".join(parts).split()


def _f1(answer: str, reference: str) -> float:
    given = _token_counts(answer)
    wanted = _token_counts(reference)
    shared = (given & wanted).total()
    if not shared:
        return 0.0
    return 2.0 * shared / (given.total() + wanted.total())


@lru_cache(maxsize=1 << 16)
def _ratio(answer: str, reference: str) -> float:
    given = answer.strip().lower()
    wanted = reference.strip().lower()
    # autojunk would ignore common letters in answers of 200 characters and more
    return SequenceMatcher(None, given, wanted, autojunk=False).ratio()


class JudgedByModel(ConfiguredMetric):
    """1.0 when the answer is a reference to the letter, or the judge (`judge.model`) says that it is right.

    >>> from leverplus.data.metrics.base import MetricOptions
    >>> judged = JudgedByModel(MetricOptions(judge=lambda answer, example: "cat" in answer))
    >>> judged("a cat", Example(["the cat"])), judged("a dog", Example(["the cat"]))
    (1.0, 0.0)
    """

    def __call__(self, answer: str, example: Example) -> float:  # type: ignore[override]
        if exact(answer, example):
            return 1.0
        if self.options.judge is None:
            raise ScoringError(
                'task.metric = "judge" needs the model that judges: set judge.model (--set judge.model=URL#NAME)'
            )
        return float(self.options.judge(answer, example))
