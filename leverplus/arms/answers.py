"""What an answer is made of, by the kind of answers that the data have; values that stand for others are masked.

Labels and numbers are one part each. Texts are made of words, pairs and triples; SQL and program text too, with quoted
values masked, and with numbers and names masked that the question gives. JSON is made of paths with their values,
a bracketed parse of its labels and how they stand inside one another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from leverplus.arms.words import Hashes, find_words, hash_terms, words_of
from leverplus.data.kinds import AGREE, Kind, kind_of_answers
from leverplus.data.metrics.sql import sql_tokens
from leverplus.data.metrics.values import NO_JSON, read_json_text
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item

VALUE = "<value>"
NUMBER = "<number>"
"""What stands for a masked text and a masked number in a shape."""
LONGEST = 20_000
"""Characters of an answer that are looked at."""


class Form(StrEnum):
    """How answers are taken apart."""

    LABEL = "label"
    WORDS = "words"
    SQL = "sql"
    JSON = "json"
    PARSE = "parse"
    CODE = "code"


_FORMS = {
    Kind.LABEL: Form.LABEL,
    Kind.NUMBER: Form.LABEL,
    Kind.PHRASE: Form.WORDS,
    Kind.SENTENCE: Form.WORDS,
    Kind.JSON: Form.JSON,
    Kind.SQL: Form.SQL,
    Kind.CODE: Form.CODE,
}
_PARSE = re.compile(r"\s*[\[(]\w+:\w+")
_PARSE_TOKEN = re.compile(r"[\[(][^\s\[\]()]+|[\])]|[^\s\[\]()]+|[\[(]")
_CODE_TOKEN = re.compile(
    r"""
    (?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    |(?P<number>\d+(?:\.\d+)?(?![\w.]))
    |(?P<word>--?[A-Za-z][\w-]*|[\w./~*$@%\\?^{}!+:,-]*\w[\w./~*$@%\\?^{}!+:,-]*)
    |(?P<mark>&&|\|\||>>|<<|[<>=!]=|->|=>|[^\w\s])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Anatomy:
    """An answer taken apart: its shape, equal where only values differ, and its parts, hashed."""

    shape: str
    parts: Hashes


def form_of(items: Sequence[Item], rules: AnswerRules) -> Form:
    """How the answers of these items are taken apart; the data and their metric tell.

    >>> rules = AnswerRules("exact")
    >>> form_of([Item(str(n), "q", (f"SELECT a FROM t WHERE b = {n}",), "") for n in range(9)], rules)
    <Form.SQL: 'sql'>
    """
    labels = rules.metric == "label_accuracy"
    form = _FORMS[kind_of_answers(items, are_labels=labels).kind]
    if labels:
        return Form.LABEL
    if rules.metric in ("sql", "sql_execution"):
        return Form.SQL
    if rules.metric in ("json", "json_fields"):
        return Form.JSON
    if form is Form.CODE:
        answers = [item.answer for item in items if item.answers]
        parses = sum(_PARSE.match(answer) is not None for answer in answers)
        if parses >= AGREE * len(answers):
            return Form.PARSE
    return form


@lru_cache(maxsize=1 << 16)
def take_apart(form: Form, rules: AnswerRules, answer: str, question: str) -> Anatomy:
    """The shape and the parts of an answer to a question.

    >>> rules = AnswerRules("sql")
    >>> one = take_apart(Form.SQL, rules, "SELECT a FROM t WHERE b = 'x'", "")
    >>> two = take_apart(Form.SQL, rules, 'select a from t where b = "y";', "")
    >>> one.shape == two.shape
    True
    """
    if form is Form.LABEL:
        key = rules.key(answer)
        return Anatomy(key, hash_terms([f"label {key}"]))
    answer = answer[:LONGEST]
    if form is Form.JSON:
        value = read_json_text(answer)
        if value is not NO_JSON:
            return _json_anatomy(value, question)
    if form is Form.PARSE:
        return _parse_anatomy(answer)
    if form is Form.WORDS:
        tokens = list(words_of(answer))
    elif form is Form.SQL:
        tokens = sql_shape(answer, question)
    else:
        tokens = code_shape(answer, question)
    return Anatomy(" ".join(tokens), hash_terms(runs_of(tokens)))


def runs_of(tokens: Sequence[str]) -> list[str]:
    """The tokens, the pairs and the triples of neighbours."""
    runs = list(tokens)
    for size in (2, 3):
        for start in range(len(tokens) - size + 1):
            runs.append(" ".join(tokens[start : start + size]))
    return runs


def stands_in(text: str, question: str) -> bool:
    """Whether all words of a text stand one after the other in a question."""
    words = words_of(text)
    return bool(words) and find_words(words, words_of(question)) >= 0


def sql_shape(answer: str, question: str) -> list[str]:
    """The tokens of a statement: keywords in lower case, quoted values masked, numbers where the question has them."""
    tokens = []
    for token in sql_tokens(answer):
        if token[0] == "'":
            tokens.append(VALUE)
        elif token[0].isdigit() and stands_in(token, question):
            tokens.append(NUMBER)
        else:
            tokens.append(token)
    return tokens


def code_shape(answer: str, question: str) -> list[str]:
    """The tokens of a command or a program: quoted texts masked, and names and numbers that the question gives."""
    tokens = []
    for match in _CODE_TOKEN.finditer(answer):
        kind = match.lastgroup
        token = match.group()
        if kind == "quoted":
            tokens.append(VALUE)
        elif kind == "number" and stands_in(token, question):
            tokens.append(NUMBER)
        elif kind == "word" and is_name(token) and stands_in(token, question):
            tokens.append(VALUE)
        else:
            tokens.append(token)
    return tokens


def is_name(token: str) -> bool:
    """Whether a token looks like the name of something: a path, a file, letters with digits or in upper case."""
    if token.startswith("-"):
        return False
    plain = token.isascii() and token.isalpha()
    return not plain or token != token.lower()


def _json_anatomy(value: Any, question: str) -> Anatomy:
    """Paths of a JSON value; with each leaf that the question does not give, unless it is long."""
    parts: list[str] = []
    shape: list[str] = []
    for path, leaf in json_leaves(value):
        parts.append(path)
        parents = path.split("/")
        for depth in range(2, len(parents)):
            parts.append("/".join(parents[:depth]))
        text = leaf if isinstance(leaf, str) else json.dumps(leaf, default=str)
        if stands_in(text, question) or len(text) > 40:
            shape.append(path)
        else:
            parts.append(f"{path}={text}")
            shape.append(f"{path}={text}")
    shape.sort()
    return Anatomy(" ".join(shape), hash_terms(parts))


def json_leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of everything that holds nothing else; places in lists do not count."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from json_leaves(inner, f"{path}/{key}")
    elif isinstance(value, list) and value:
        for inner in value:
            yield from json_leaves(inner, f"{path}[]")
    else:
        yield path, value


def _parse_anatomy(answer: str) -> Anatomy:
    """The labels of a bracketed parse, each with the label around it, and runs of neighbouring labels."""
    open_labels = ["top"]
    tokens: list[str] = []
    parts: list[str] = []
    for token in _PARSE_TOKEN.findall(answer):
        if token[0] in "[(" and len(token) > 1:
            label = token[1:]
            tokens.append(label)
            parts.append(f"{open_labels[-1]} > {label}")
            open_labels.append(label)
        elif token in "])":
            tokens.append("]")
            if len(open_labels) > 1:
                open_labels.pop()
    parts += runs_of(tokens)
    return Anatomy(" ".join(tokens), hash_terms(parts))
