"""Cuts an answer out of a model's words; training and evaluation use the same function.

A model that goes on writing after its answer repeats the words of the prompt's template: what follows is cut off.
"""

from __future__ import annotations

import re
from itertools import islice
from json import JSONDecoder

_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_NEXT_FIELD = re.compile(r"Question|Answer|Short|\n")
_OPENING = re.compile(r"[\[{]")
_DECODER = JSONDecoder()


MOST_OPENINGS = 200
"""Brackets at which a JSON value is looked for: each costs a look at the rest of the text."""


def plain_answer(raw: str) -> str:
    """The text without the spaces around it."""
    return raw.strip()


def line_answer(raw: str) -> str:
    """The first line that is not empty.

    >>> line_answer("\\n ls -l \\nThis lists files.")
    'ls -l'
    """
    return raw.strip().split("\n", maxsplit=1)[0].strip()


def fenced_answer(raw: str) -> str:
    """What stands in the first code block between lines of three backticks; without one the whole text.

    >>> fenced_answer("Here it is:\\n```sql\\nSELECT 1\\n```\\nDone.")
    'SELECT 1'
    """
    block = _FENCE.search(raw)
    if block:
        raw = block.group(1)
    return raw.strip()


def json_answer(raw: str) -> str:
    """The longest JSON object or list in the text; a text without one as it is.

    >>> json_answer('Sure: {"name": "John", "age": 20}. Anything else?')
    '{"name": "John", "age": 20}'
    """
    text = raw.strip()
    if _json_end(text, 0) == len(text):
        return text  # also a JSON text, number or truth value
    longest = ""
    read = 0
    for opening in islice(_OPENING.finditer(text), MOST_OPENINGS):
        start = opening.start()
        if start < read:
            continue  # it stands inside a value
        end = _json_end(text, start)
        if end - start > len(longest):
            longest = text[start:end]
            read = end
    return longest or text


def _json_end(text: str, start: int) -> int:
    """Where the JSON value that begins here ends; 0 where none does."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return 0


def vqa_answer(raw: str) -> str:
    """A short answer: up to the next `Question`, `Answer`, `Short` or line, then up to the first comma and space."""
    field = _NEXT_FIELD.split(raw.strip(), maxsplit=1)[0]
    return field.split(", ", maxsplit=1)[0].strip()
