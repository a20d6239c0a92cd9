"""Cuts the answer out of a model's raw text; training and evaluation use the same function.

A model that goes on writing after its answer repeats the words of the prompt's template: what follows is cut off.
"""

from __future__ import annotations

import re

_NEXT_FIELD = re.compile(r"Question|Answer|Short|\n")
_NEXT_CAPTION = re.compile(r"Output|Caption|\n")
_QUOTES = re.compile(r"[\"“”]")


def plain_answer(raw: str) -> str:
    """The text without the spaces around it."""
    return raw.strip()


def vqa_answer(raw: str) -> str:
    """A short answer: up to the next `Question`, `Answer`, `Short` or line, then up to the first comma and space."""
    field = _NEXT_FIELD.split(raw.strip(), maxsplit=1)[0]
    return field.split(", ", maxsplit=1)[0].strip()


def caption_answer(raw: str) -> str:
    """A caption: up to the next `Output`, `Caption` or line, without double quotes."""
    caption = _NEXT_CAPTION.split(raw.strip(), maxsplit=1)[0]
    return _QUOTES.sub("", caption).strip()
