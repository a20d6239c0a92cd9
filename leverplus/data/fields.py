"""Values of records as texts, several named inputs as one text, and chats as examples.

In a chat the last assistant turn is the answer, everything before it is the question. The turns before the answer are
kept as they are, as JSON under the named input `messages` (tools under `tools`), and shown with their roles. A chat that
is one user turn alone is a plain question.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from leverplus.errors import DataError

QUESTION = "question"
"""The name of the input that is shown last where an example has several."""

MESSAGES = "messages"
TOOLS = "tools"
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def as_text(value: Any) -> str | None:
    """A value as the text of an answer or an input; None where it is missing (null, NaN, NaT).

    Texts stay as they are. A number, a truth value, a list or an object is written as JSON, keys in their order;
    whatever JSON has no form for (a date, a decimal number) is written as Python prints it.

    >>> as_text(True), as_text(2.5), as_text({"a": [1, None]}), as_text(float("nan"))
    ('true', '2.5', '{"a": [1, null]}', None)
    """
    value = plain_value(value)
    if value is None or isinstance(value, str):
        return value
    return _dumped(value)


def plain_value(value: Any) -> Any:
    """A value of pandas, numpy or pyarrow as JSON knows it; missing values become None."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(plain_value, value))
    if hasattr(value, "tolist"):  # numpy: a number or an array
        return plain_value(value.tolist())
    # missing in pandas, which is not imported for it
    if str(value) in ("NaT", "<NA>"):
        return None
    return str(value)


def clean_fields(fields: Any) -> dict[str, str]:
    """Named inputs as texts, those without a value left out; DataError with a sentence where they are none.

    >>> clean_fields({"context": "Lisbon is in Portugal.", "year": 2020, "note": None})
    {'context': 'Lisbon is in Portugal.', 'year': '2020'}
    """
    if not isinstance(fields, Mapping):
        raise DataError(
            f"fields must be an object of named inputs, not {type(fields).__name__}"
        )
    kept: dict[str, str] = {}
    for name, value in fields.items():
        text = as_text(value)
        if text is not None and text.strip():
            kept[str(name)] = text
    if not kept:
        raise DataError("fields is empty; give at least one named input with a text")
    if MESSAGES in kept:
        _turns_of(kept[MESSAGES])
    return kept


def render_fields(fields: Mapping[str, str]) -> str:
    """Several inputs as one text, one line each, the question last; a single one is shown without its name.

    The turns of a chat (`messages`) are shown with their roles, its tools first.

    >>> print(render_fields({"question": "Where is it?", "tone_of_voice": "short"}))
    Tone of voice: short
    Question: Where is it?
    """
    if MESSAGES in fields:
        lines = []
        if TOOLS in fields:
            lines.append(f"Tools: {fields[TOOLS]}")
        for turn in json.loads(fields[MESSAGES]):
            lines.append(f"{str(turn['role']).capitalize()}: {_turn_text(turn)}")
        return "\n".join(lines)
    if len(fields) == 1:
        return next(iter(fields.values()))
    names = sorted(fields, key=lambda name: name == QUESTION)  # the others in order
    return "\n".join(f"{_title(name)}: {fields[name]}" for name in names)


def _title(name: str) -> str:
    """The name of an input as a prompt shows it: tone_of_voice as "Tone of voice"."""
    words = " ".join(name.replace("_", " ").split())
    return words[:1].upper() + words[1:]


@dataclass(frozen=True)
class Chat:
    """A chat up to its answer: the question's text, its named inputs (none for one plain turn), picture, answer."""

    question: str
    fields: Mapping[str, str]
    answer: str
    image: Any = None


def chat_example(messages: Any, tools: Any = None) -> Chat:
    """A chat as a question with an answer; DataError with a sentence where it has none.

    >>> chat_example([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]).answer
    'Hello!'
    """
    turns = _turns_of(messages)
    while turns and turns[-1]["role"] != "assistant":
        turns.pop()
    if not turns:
        raise DataError(
            "messages holds no assistant turn, so there is no answer to show"
        )
    last = turns.pop()
    answer = _calls_text(last) or _turn_text(last)
    if not answer.strip():
        raise DataError(
            "the last assistant turn is empty, so there is no answer to show"
        )
    roles = {turn["role"] for turn in turns}
    if roles.isdisjoint(("user", "tool", "function")):
        raise DataError("messages holds no user turn before the last assistant turn")
    images: list[Any] = []
    kept = []
    for turn in turns:
        images += _images(turn.get("content"))
        own = {key: value for key, value in turn.items() if value is not None}
        if not isinstance(own.get("content", ""), str):
            own["content"] = _turn_text(turn)  # without its picture
        kept.append(own)
    if len(images) > 1:
        raise DataError(
            f"messages shows {len(images)} pictures; an example has one: leave the others out"
        )
    image = next(iter(images), None)
    if len(turns) == 1 and not tools:
        return Chat(_turn_text(turns[0]), {}, answer, image)
    fields = {MESSAGES: _dumped(kept)}
    if tools:
        fields = {TOOLS: _dumped(_objects(tools, TOOLS)), **fields}
    return Chat(render_fields(fields), fields, answer, image)


def asked_in(turn: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The words of a user's turn in a chat, and its pictures as its parts name them.

    >>> asked_in({"role": "user", "content": [{"type": "text", "text": "What is it?"}]})
    ('What is it?', [])
    """
    return _turn_text(turn), _images(turn.get("content"))


def _turns_of(messages: Any) -> list[dict[str, Any]]:
    """The turns of a chat, each with its role."""
    turns = _objects(messages, MESSAGES)
    for number, turn in enumerate(turns, start=1):
        if turn.get("role") not in ROLES:
            raise DataError(
                f"turn {number} of messages needs a role, one of {', '.join(ROLES)}, and a content"
            )
    return turns


def _objects(value: Any, what: str) -> list[dict[str, Any]]:
    """A list of objects, which may be a text of JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(
                f"{what} is a text that is not JSON; write a list of objects"
            ) from error
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise DataError(f"{what} must be a list of objects, not {type(value).__name__}")
    return list(value)


def _turn_text(turn: Mapping[str, Any]) -> str:
    """What a turn says: its text, else its tool calls as a JSON list of names and arguments."""
    content = turn.get("content")
    if isinstance(content, list):
        texts = []
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                texts.append(part["text"])
        return "\n".join(texts)
    if isinstance(content, str) and content:
        return content
    return _calls_text(turn)


def _calls_text(turn: Mapping[str, Any]) -> str:
    """The tool calls of a turn as a JSON list of names and arguments; "" where it has none."""
    calls = []
    for call in _objects(turn.get("tool_calls") or [], "tool_calls"):
        function = call.get("function")
        if not isinstance(function, dict):
            function = call
        arguments = function.get("arguments")
        if isinstance(arguments, str):  # servers write them as a text of JSON
            with suppress(json.JSONDecodeError, RecursionError):
                arguments = json.loads(arguments)
        calls.append({"name": function.get("name"), "arguments": arguments or {}})
    if not calls:
        return ""
    return _dumped(calls)


def _images(content: Any) -> list[Any]:
    """The pictures of a turn, as the parts of its content name them."""
    images: list[Any] = []
    if not isinstance(content, list):
        return images
    for part in content:
        if isinstance(part, dict):
            shown = part.get("image_url", part.get("image"))
            if isinstance(shown, dict) and "url" in shown:
                shown = shown["url"]
            if shown is not None:
                images.append(shown)
    return images


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
