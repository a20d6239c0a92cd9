"""Answers that are values: numbers as people and models write them (1,200.5, -3 %, $40, 4e3, "42 km"), and JSON."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from leverplus.data.metrics.base import ConfiguredMetric, Example, best_match
from leverplus.data.metrics.text import same_text

LONGEST_NUMBER = 400
"""A text of more characters is no number."""

LONGEST_JSON = 2_000_000
"""A text of more characters is not read as JSON."""

NO_JSON = object()
"""What `read_json_text` gives for a text that is no JSON; None would be the value of `null`."""

_NUMBER = re.compile(
    r"(?<![\w.,])[-+]?[$€£¥₹₽₩]?\s?(?:\d[\d.,]*\d|\d|[.,]\d+)(?:[eE][-+]?\d{1,4}(?!\w))?"
)
_SIGNS = str.maketrans("−–﹣－＋٫٬", "----+.,", "’'")
_COMPARED = re.compile(r"[<>≤≥±^/\\]")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")


class Number(ConfiguredMetric):
    """1.0 when the answer is the number of a reference, or differs from it by at most `task.tolerance`.

    A reference that is no number is compared as text.

    >>> from leverplus.data.metrics.base import MetricOptions
    >>> number = Number(MetricOptions(tolerance=0.01))
    >>> number("about 3.14", ["3.1416"]), number("-5", ["5"]), number("1,000", ["1000.0"])
    (1.0, 0.0, 1.0)
    """

    def __call__(self, answer: str, example: Sequence[str]) -> float:
        return best_match(self._equal, answer, example, "number")

    def agree(self, first: str, second: str, example: Example) -> bool:  # noqa: ARG002
        """Numbers agree where one would be right if the other were the reference."""
        return self._equal(first, second)

    def _equal(self, answer: str, reference: str) -> bool:
        if same_text(answer, reference):
            return True
        given = parse_number(answer)
        wanted = parse_number(reference)
        if given is None or wanted is None:
            return False
        difference = abs(float(given) - float(wanted))
        is_near = math.isfinite(difference) and difference <= self.options.tolerance
        return given == wanted or (self.options.tolerance > 0 and is_near)


@lru_cache(maxsize=1 << 14)
def parse_number(text: str) -> Decimal | None:
    """The one number that a text holds; None where it holds none, or several.

    A sign of money in front and a unit behind do not count. A point and a comma in one number: the last one is the
    decimal mark. A comma alone groups thousands where it stands before three digits.

    >>> [str(parse_number(text)) for text in ("1,200.5", "-$3", "3,5", "42 km", "4e3", "3-5", "none")]
    ['1200.5', '-3', '3.5', '42', '4E+3', 'None', 'None']
    """
    if len(text) > LONGEST_NUMBER:
        return None
    plain = unicodedata.normalize("NFKC", text.translate(_SIGNS)).strip()
    written = _NUMBER.findall(plain)
    if len(written) != 1 or _COMPARED.search(plain):
        return None  # also "> 5" and "1/2", which are not what they hold
    number = written[0]
    if any(map(str.isdecimal, plain.replace(number, "", 1))):
        return None
    sign = ""
    if number.startswith("-"):
        sign = "-"
    digits = re.sub(r"[^\d.,eE+-]", "", number).lstrip("+-")
    mantissa, mark, exponent = digits.lower().partition("e")
    if "," in mantissa and "." in mantissa:
        decimal_mark = max(mantissa.rfind(","), mantissa.rfind("."))
        whole = re.sub(r"[.,]", "", mantissa[:decimal_mark])
        mantissa = f"{whole}.{mantissa[decimal_mark + 1 :]}"
    elif _GROUPED.fullmatch(mantissa):
        mantissa = mantissa.replace(",", "")
    try:
        return Decimal(sign + mantissa.replace(",", ".") + mark + exponent)
    except InvalidOperation:
        return None


def number_key(text: str) -> str:
    """A text that is the same for equal numbers; a text that is no number as it is."""
    value = parse_number(text)
    if value is None:
        return text.strip()
    return _decimal_key(value)


def _decimal_key(value: Decimal) -> str:
    """A number in one spelling: no zeros at its ends, and without rounding."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return str(value)  # an infinity
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    if not short:
        return "0"
    exponent += len(text) - len(short)
    if sign:
        short = f"-{short}"
    if exponent:
        short = f"{short}e{exponent}"
    return short


def json_equal(answer: str, references: Sequence[str]) -> float:
    """1.0 when the answer is the same JSON value as a reference: spaces and the order of keys do not count.

    A reference that is no JSON is compared as text.

    >>> json_equal('{"b": [1, true], "a": 1.0}', ['{"a": 1, "b": [1, true]}'])
    1.0
    >>> json_equal('{"a": true}', ['{"a": 1}'])
    0.0
    """
    return best_match(_same_json, answer, references, "json")


def _same_json(first: str, second: str) -> bool:
    return json_key(first) == json_key(second)


def json_fields(answer: str, references: Sequence[str]) -> float:
    """F1 over the leaves of a JSON value, each a path with its value; best over the references.

    The order counts in lists of objects or of lists, not in lists of plain values. A reference that is no JSON is
    compared as text.

    >>> json_fields('{"name": "Ann", "age": 30}', ['{"name": "Ann", "age": 31}'])
    0.5
    """
    return best_match(_leaf_f1, answer, references, "json_fields")


def _leaf_f1(answer: str, reference: str) -> float:
    if same_text(answer, reference):
        return 1.0
    given = _leaf_counts(answer)
    wanted = _leaf_counts(reference)
    if given is None or wanted is None:
        return 0.0
    return 2.0 * (given & wanted).total() / (given.total() + wanted.total())


@lru_cache(maxsize=1 << 14)
def json_key(text: str) -> str:
    """One spelling of a JSON value; a text that is no JSON without the spaces around it."""
    value = read_json_text(text)
    if value is NO_JSON:
        return "text:" + text.strip()
    return _spelled(value)


def read_json_text(text: str) -> Any:
    """The value of a JSON text, numbers as decimals; NO_JSON where it is none."""
    if len(text) > LONGEST_JSON:
        return NO_JSON
    try:
        value = json.loads(
            text,
            parse_float=Decimal,
            parse_int=Decimal,
            parse_constant=_refuse_constant,
        )
        _spelled(value)  # deep nesting may be read and yet not be walked through
    except (ValueError, ArithmeticError, RecursionError):
        return NO_JSON
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _spelled(value: Any) -> str:
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}:{_spelled(value[key])}" for key in sorted(value)]
        return "{" + ",".join(parts) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_spelled, value)) + "]"
    if isinstance(value, Decimal):
        return _decimal_key(value)
    return json.dumps(value)


@lru_cache(maxsize=1 << 14)
def _leaf_counts(text: str) -> Counter[str] | None:
    """How often each leaf occurs; None for a text that is no JSON."""
    value = read_json_text(text)
    if value is NO_JSON:
        return None
    return Counter(_leaves(value, ""))


def _leaves(value: Any, path: str) -> Iterator[str]:
    """Path and value of everything that holds nothing else; an empty object or list is such a leaf."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}/{json.dumps(key)}")
    elif isinstance(value, list) and value:
        ordered = any(isinstance(inner, (dict, list)) for inner in value)
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{place if ordered else ''}]")
    else:
        yield f"{path}={_spelled(value)}"
