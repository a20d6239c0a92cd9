"""JSON and TOML from strangers: bounded in depth; whatever is wrong is the parser's own error with a reason.

Python's parsers raise other errors than their own for nesting (RecursionError), for numbers of thousands of digits and
for bytes of another encoding (ValueError), and let half characters pass that no file can hold. Here all of that is a
`json.JSONDecodeError` or a `tomllib.TOMLDecodeError`, so that a caller who handles a broken file handles every one.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from typing import Any

DEEPEST = 64
"""Lists and objects inside each other; no file that this package reads or writes has more than ten."""

TOO_DEEP = f"lists or objects are nested more than {DEEPEST} deep"
TOO_LONG = f"a number cannot be read, because it has more than {sys.get_int_max_str_digits():,} digits"

_MANY_DIGITS = re.compile(r"\d{4301}")  # Python refuses to convert more than 4,300
_HALF_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(content: str | bytes) -> Any:
    """The value of a JSON text, or of a file's bytes in UTF-8 with or without a byte order mark."""
    text = _decoded(content)
    value = parse_own_json(text)
    if half := _HALF_ESCAPE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise json.JSONDecodeError(
                "it holds half of a character (a lone surrogate)", text, half.start()
            ) from None
    return value


def parse_own_json(content: str | bytes) -> Any:
    """The same of a file that this package wrote: half characters pass, because a model may have written one.

    Our writer escapes them, so the file is whole; whoever shows such a text replaces the half.
    """
    text = _decoded(content)
    if not text.strip():
        raise json.JSONDecodeError("it is empty", text, 0)
    try:
        value = json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError(TOO_DEEP, text, 0) from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        digits = _MANY_DIGITS.search(text)
        place = digits.start() if digits else 0
        raise json.JSONDecodeError(TOO_LONG, text, place) from error
    if is_deeper(value, DEEPEST):
        raise json.JSONDecodeError(TOO_DEEP, text, 0)
    return value


def parse_toml(content: str | bytes) -> dict[str, Any]:
    """The tables of a TOML text, or of a file's bytes in UTF-8."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        values = tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError(TOO_DEEP) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise tomllib.TOMLDecodeError(str(error)) from error
    except ValueError as error:
        raise tomllib.TOMLDecodeError(TOO_LONG) from error
    if is_deeper(values, DEEPEST):
        raise tomllib.TOMLDecodeError(TOO_DEEP)
    return values


def is_deeper(value: Any, most: int) -> bool:
    """Whether lists and objects stand inside each other more than `most` deep; level by level, without recursion."""
    level = [value]
    for _ in range(most):
        inner: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                inner.extend(node.values())
            elif isinstance(node, list):
                inner.extend(node)
        level = inner
    return any(isinstance(node, (dict, list)) for node in level)


def _decoded(content: str | bytes) -> str:
    if isinstance(content, str):
        return content
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", errors="replace")
        reason = f"byte 0x{content[error.start]:02x} is not UTF-8; convert the file"
        raise json.JSONDecodeError(reason, before, len(before)) from error
