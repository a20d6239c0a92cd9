"""Finds its way in the raw text of a chat request and puts turns in, without rewriting anything else.

The rest of the text stays as it was, byte for byte: tools, unknown fields, the order of keys, the digits of numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BLANKS = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


class NoChat(ValueError):
    """A text that is not a chat request as this proxy understands it."""


@dataclass(frozen=True)
class ChatText:
    """A chat request: its text, its messages, and where in the text each begins."""

    text: str
    messages: Sequence[Mapping[str, Any]]
    starts: Sequence[int]

    @property
    def is_conversation(self) -> bool:
        """Whether somebody has answered already, or a tool has: the caller's own shots, or a talk under way."""
        return any(message.get("role") in ("assistant", "tool", "function") for message in self.messages)

    @property
    def last_user(self) -> int:
        for number in range(len(self.messages) - 1, -1, -1):
            if self.messages[number].get("role") == "user":
                return number
        raise NoChat("there is no user turn")

    def with_turns(self, turns: Sequence[Mapping[str, Any]]) -> str:
        """The text with turns put in front of the last user turn."""
        start = self.starts[self.last_user]
        return self.text[:start] + "".join(json.dumps(turn) + "," for turn in turns) + self.text[start:]


def read_chat(content: bytes) -> ChatText:
    """The messages of a request and their places; NoChat where it is none."""
    try:
        text = content.decode()
        return _scan(text)
    except NoChat:
        raise
    except (ValueError, IndexError, RecursionError) as error:  # no UTF-8, no JSON, cut short, nested too deeply
        raise NoChat(type(error).__name__) from None


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    assert found is not None  # it matches the empty text too
    return found.end()


def _scan(text: str) -> ChatText:
    """Walk over the keys of the outermost object; Python's own decoder steps over the values."""
    at = _after(text, 0, "{")
    messages: list[Any] | None = None
    starts: list[int] = []
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        if not isinstance(key, str):
            raise NoChat("a key is not a text")
        at = _after(text, at, ":")
        if key == "messages":
            if messages is not None:
                raise NoChat("it has messages twice")
            messages, starts, at = _elements(text, at)
        else:
            at = _DECODER.raw_decode(text, at)[1]
        at = _next(text, at, "}")
    if _skip(text, at + 1) != len(text):
        raise NoChat("something follows the object")
    if not messages or not all(isinstance(message, Mapping) for message in messages):
        raise NoChat("it has no messages")
    return ChatText(text, messages, starts)


def _elements(text: str, at: int) -> tuple[list[Any], list[int], int]:
    """The elements of a list, where each begins, and where the list ends."""
    values: list[Any] = []
    starts: list[int] = []
    at = _after(text, at, "[")
    while text[at] != "]":
        value, end = _DECODER.raw_decode(text, at)
        values.append(value)
        starts.append(at)
        at = _next(text, end, "]")
    return values, starts, at + 1


def _after(text: str, at: int, sign: str) -> int:
    """Where what follows a sign begins; the sign must be next."""
    at = _skip(text, at)
    if text[at] != sign:
        raise NoChat(f"there is no {sign}")
    return _skip(text, at + 1)


def _next(text: str, at: int, end: str) -> int:
    """Where the next member begins, or where the end stands."""
    at = _skip(text, at)
    if text[at] == end:
        return at
    if text[at] != ",":
        raise NoChat("there is no comma")
    at = _skip(text, at + 1)
    if text[at] == end:
        raise NoChat("a comma stands before the end")
    return at
