"""What kind of answers a data set has: labels, words, sentences, numbers, JSON, SQL or code, and how long they are.

Rules, not a model: each answer of a sample is looked at for marks of its kind, and nine in ten must agree.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from leverplus.data.metrics.text import UNSPACED
from leverplus.data.metrics.values import NO_JSON, read_json_text
from leverplus.data.types import Item

SAMPLE = 2000
"""Answers that are looked at one by one; lengths and repetitions are taken over all."""

AGREE = 0.9
"""The share of answers that must be of a kind."""

RECUR = 5
"""Labels recur: so many records each, on average."""

MOST_LABELS = 200
"""More different answers than this are no set of labels that a prompt could weigh."""

LABEL_CHARACTERS = 80
"""A label is at most so long."""

PHRASE_WORDS = 6
"""An answer of more words than this is a sentence."""

_NUMBER = re.compile(
    r"[-+−]?[$€£]?\s?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?([eE][-+]?\d+)?\s?%?"
)
_SQL = re.compile(
    r"\s*(--[^\n]*\n\s*)*\(*\s*(select|insert\s+into|update\s+\S+\s+set|delete\s+from|with\s+\w+\s+as|"
    r"create\s+(table|view)|alter\s+table|drop\s+table)\b",
    re.IGNORECASE,
)
_CODE = (
    re.compile(r"^\s*(def|class|import|from\s+\S+\s+import|return|for|while|if|elif|try|with|function|const|let|var|"
               r"public|private|static|#include|package|func|fn|use|print|echo|sudo)\b.*[:;({=\"'<]", re.MULTILINE),
    re.compile(r"\|\s*\w+|\$\(|\$\{?\w+|&&|\s--?\w[\w-]*(\s|=|$)|2>&1|>/dev/null"),
    re.compile(r"\w+\([^()]*\)\s*[;{.]|[;{}]\s*$|=>|::|==|!=|\+=|</\w+>", re.MULTILINE),
    re.compile(r"^\s*\[\w+:\w+"),
)  # fmt: skip
"""Marks of program text: keywords with their signs, a shell's pipes and options, calls and braces, a parse."""


class Kind(StrEnum):
    """What the answers of a data set are."""

    LABEL = "label"
    PHRASE = "phrase"
    SENTENCE = "sentence"
    NUMBER = "number"
    JSON = "json"
    SQL = "sql"
    CODE = "code"


NAMES = {
    Kind.LABEL: "labels",
    Kind.PHRASE: "words or short phrases",
    Kind.SENTENCE: "sentences or longer texts",
    Kind.NUMBER: "numbers",
    Kind.JSON: "JSON",
    Kind.SQL: "SQL",
    Kind.CODE: "code or another formal language",
}


@dataclass(frozen=True)
class AnswerKind:
    """The kind of a data set's answers: how many different ones, the median of their words, the longest's characters."""

    kind: Kind
    distinct: int = 0
    words: float = 0.0
    longest: int = 0

    @property
    def labels(self) -> bool:
        return self.kind is Kind.LABEL

    def line(self) -> str:
        """One line for a reader.

        >>> kind_of_answers([Item(str(n), "q", (str(n),), "") for n in range(50)]).line()
        'answers are numbers: 50 different ones, at most 2 characters'
        """
        return f"answers are {NAMES[self.kind]}: {self.distinct:,} different ones, at most {self.longest:,} characters"


def kind_of_answers(items: Sequence[Item], *, are_labels: bool = False) -> AnswerKind:
    """What the answers of some items are. `are_labels`: the data call them labels, so fewer repetitions suffice.

    >>> kind_of_answers([Item(str(n), "q", ("yes" if n % 2 else "no",), "") for n in range(40)]).kind
    <Kind.LABEL: 'label'>
    """
    answers = [item.answer for item in items if item.answers]
    if not answers:
        return AnswerKind(Kind.PHRASE)
    distinct = set(answers)
    longest = max(map(len, distinct))
    sample = answers[:: max(1, len(answers) // SAMPLE)]
    words = sorted(map(_words, sample))
    median = float(words[len(words) // 2])
    marked = Counter(map(_formal_kind, sample))
    kind = Kind.SENTENCE if median > PHRASE_WORDS else Kind.PHRASE
    for formal in (Kind.NUMBER, Kind.JSON, Kind.SQL, Kind.CODE):
        if marked[formal] >= AGREE * len(sample):
            kind = formal
    most = min(MOST_LABELS, len(answers) // (2 if are_labels else RECUR))
    if (
        kind not in (Kind.JSON, Kind.SQL, Kind.CODE)
        and 2 <= len(distinct) <= most
        and longest <= LABEL_CHARACTERS
        and all(len(set(item.answers)) <= 1 for item in items)
        and not any("\n" in answer for answer in distinct)
    ):
        kind = Kind.LABEL
    elif kind in (Kind.SENTENCE, Kind.PHRASE) and marked[Kind.CODE] >= len(sample) / 2:
        kind = Kind.CODE  # a shell command may have none of the marks
    return AnswerKind(kind, len(distinct), median, longest)


def _formal_kind(answer: str) -> Kind | None:
    """The first formal kind whose marks an answer has."""
    text = answer.strip()
    if is_one_number(text):
        return Kind.NUMBER
    if text[:1] in ("{", "[") and read_json_text(text) is not NO_JSON:
        return Kind.JSON
    if _SQL.match(text):
        return Kind.SQL
    if any(mark.search(text) for mark in _CODE):
        return Kind.CODE
    return None


def is_one_number(text: str) -> bool:
    """Whether a text is one number, perhaps with a sign of money or percent.

    >>> [is_one_number(text) for text in ("1,200.5", "-3 %", "3 apples", "")]
    [True, True, False, False]
    """
    return any(char.isdigit() for char in text) and _NUMBER.fullmatch(text) is not None


def _words(text: str) -> int:
    """Words of a text; in scripts that write none apart, two characters count as a word."""
    unspaced = 0 if text.isascii() else len(UNSPACED.findall(text))
    return max(len(text.split()), unspaced // 2)
