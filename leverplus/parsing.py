"""JSON and TOML from strangers: bounded in size and depth; whatever is wrong is the parser's own error with a reason.

Python's parsers raise other errors than their own for nesting (RecursionError), for numbers of thousands of digits and
for bytes of another encoding (ValueError), and let half characters pass that no file can hold. Here all of that is a
`json.JSONDecodeError` or a `tomllib.TOMLDecodeError`, so that a caller who handles a broken file handles every one.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from functools import lru_cache
from typing import Any

DEEPEST = 64
"""Lists and objects inside each other; no file that this package reads or writes has more than ten."""

LARGEST = 4 << 30
"""Bytes of one text; the official VQAv2 annotations have half a gigabyte."""

KEPT = 20_000
"""Characters of a TOML text that is not read twice: recipes have up to 5,000."""

_MANY_DIGITS = re.compile(r"\d{4301}")  # Python refuses to convert more than 4,300
_HALF_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(content: str | bytes) -> Any:
    """The value of a JSON text, or of a file's bytes in UTF-8 with or without a byte order mark."""
    text, value = _bounded(content)
    if (half := _HALF_ESCAPE.search(text)) is not None:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise json.JSONDecodeError("it holds half of a character (a lone surrogate)", text, half.start()) from None
    return value


def parse_own_json(content: str | bytes) -> Any:
    """The same of a file that this package wrote: half characters pass, because a model may have written one.

    Our writer escapes them, so the file is whole; whoever shows such a text replaces the half.
    """
    return _bounded(content)[1]


def _bounded(content: str | bytes) -> tuple[str, Any]:
    """A JSON text and its value, bounded in size and depth."""
    text = content if isinstance(content, str) else _decoded(content)
    if len(text) > LARGEST:
        raise json.JSONDecodeError(f"it has {len(text):,} characters, more than {LARGEST:,}", "", 0)
    if not text.strip():
        raise json.JSONDecodeError("it is empty", text, 0)
    try:
        value = json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError(_too_deep(), text, 0) from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        found = _MANY_DIGITS.search(text)
        raise json.JSONDecodeError(_too_long(), text, found.start() if found else 0) from error
    if is_deeper(value, DEEPEST):
        raise json.JSONDecodeError(_too_deep(), text, 0)
    return text, value


def parse_toml(content: str | bytes) -> dict[str, Any]:
    """The tables of a TOML text, or of a file's bytes in UTF-8."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        values = _copied(_read_before(text)) if len(text) <= KEPT else tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError(_too_deep()) from None
    except tomllib.TOMLDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise tomllib.TOMLDecodeError(str(error)) from error
    except ValueError as error:  # what is left: numbers of thousands of digits
        raise tomllib.TOMLDecodeError(_too_long()) from error
    if is_deeper(values, DEEPEST):
        raise tomllib.TOMLDecodeError(_too_deep())
    return values


@lru_cache(maxsize=256)
def _read_before(text: str) -> dict[str, Any]:
    """A run reads its recipe and those that this extends after every epoch; reading them anew takes milliseconds."""
    return tomllib.loads(text)


def _copied(value: Any) -> Any:
    """The same tables and lists anew, for a caller who may change them; what else TOML holds cannot be changed."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _too_long() -> str:
    return f"a number cannot be read, because it has more than {sys.get_int_max_str_digits():,} digits"


def is_deeper(value: Any, most: int) -> bool:
    """Whether lists and objects stand inside each other more than `most` deep; level by level, without recursion."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(most):
        inner: list[Any] = []
        for node in level:
            children = node.values() if isinstance(node, dict) else node
            inner.extend(child for child in children if isinstance(child, (dict, list)))
        level = inner
    return bool(level)


def _too_deep() -> str:
    return f"lists or objects are nested more than {DEEPEST} deep"


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", errors="replace")
        reason = f"byte 0x{content[error.start]:02x} is not UTF-8; convert the file"
        raise json.JSONDecodeError(reason, before, len(before)) from error
