"""JSON and TOML of strangers: a value, or the parser's own error with a reason; never another exception."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from leverplus.data.parsing import (
    DEEPEST,
    is_deeper,
    parse_json,
    parse_own_json,
    parse_toml,
)
from leverplus.data.rundir import read_json, write_json


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_what_is_right_is_read() -> None:
    assert parse_json('{"a": [1, 2.5, null, "\\ud83d\\ude00"]}') == {
        "a": [1, 2.5, None, "\U0001f600"]
    }
    assert parse_json(b"\xef\xbb\xbf[1]\r\n") == [1]
    assert (
        parse_toml('[a]\nb = [1, "x"]')
        == parse_toml(b'[a]\r\nb = [1, "x"]')
        == {"a": {"b": [1, "x"]}}
    )


def test_who_changes_what_was_read_changes_it_for_nobody_else() -> None:
    text = '[a]\nb = [1, {c = "x"}]'
    first = parse_toml(text)
    first["a"]["b"][1]["c"] = "y"
    first["a"]["b"].append(2)
    assert parse_toml(text) == {"a": {"b": [1, {"c": "x"}]}}


def test_the_allowed_depth_is_counted_exactly() -> None:
    assert parse_json(nested(DEEPEST)) is not None
    value: Any = 1
    for depth in range(6):
        assert [most for most in range(8) if is_deeper(value, most)] == list(
            range(depth)
        )
        value = [value, 2] if depth % 2 else {"a": value, "b": 3}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (nested(DEEPEST + 1), "nested more than 64 deep"),
        (nested(100_000), "nested more than 64 deep"),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, "nested more than 64 deep"),
        (
            '{"a": ' + "7" * 5000 + "}",
            r"cannot be read, because it has more than 4,300 digits: .*column 7",
        ),
        ('["a", "\\ud800"]', r"half of a character .*column 8"),
        ('{"\\uDFFF": 1}', "half of a character"),
        ("", "it is empty"),
        (b"  \n", "it is empty"),
        (b'{"a":\n "caf\xe9"}', r"byte 0xe9 is not UTF-8; convert the file: line 2"),
        (b"\xff\xfe{\x00", "byte 0xff is not UTF-8"),
        ('{"a": 1', "Expecting"),
    ],
)
def test_broken_json_is_the_parsers_own_error(text: str | bytes, reason: str) -> None:
    with pytest.raises(json.JSONDecodeError, match=reason):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"a = {nested(DEEPEST + 1)}", "nested more than 64 deep"),
        (f"a = {nested(50_000)}", "nested more than 64 deep"),
        (
            f"a = {'7' * 5000}",
            r"cannot be read, because it has more than 4,300 digits$",
        ),
        (b"a = 'caf\xe9'", "utf-8"),
        ("a = ", "Invalid value"),
    ],
)
def test_broken_toml_is_the_parsers_own_error(text: str | bytes, reason: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError, match=reason):
        parse_toml(text)


def test_what_we_wrote_ourselves_may_hold_half_a_character(tmp_path) -> None:
    """A model wrote it; the writer escapes it, so the reader of run files must take it back."""
    write_json(tmp_path / "eval.json", {"answer": "cat \ud83d"})
    assert read_json(tmp_path / "eval.json") == {"answer": "cat \ud83d"}
    with pytest.raises(json.JSONDecodeError, match="half of a character"):
        parse_json((tmp_path / "eval.json").read_bytes())


def test_our_own_files_are_bounded_in_depth_too() -> None:
    with pytest.raises(json.JSONDecodeError, match="nested more than"):
        parse_own_json(nested(100))
