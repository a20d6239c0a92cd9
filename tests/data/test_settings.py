"""Sections: values are read as their type or refused with a sentence that says what is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from leverplus.data.settings import (
    hashed_settings,
    known_mistakes_in,
    plain_settings,
    read_section,
    setting,
)


@dataclass(frozen=True)
class Section:
    count: int = setting(3, "a count", low=1, high=8)
    share: float = setting(0.5, "a share", above=0.0)
    on: bool = setting(False, "a switch", mistakes=(True,))
    kind: str = setting("plain", "a kind", choices=("plain", "fancy"))
    late: str = setting("a", "a kind from a table", choices={"a": 1, "b": 2})
    sizes: tuple[int, ...] = setting((1, 2), "sizes", low=1)
    limit: int | None = setting(None, "a limit or none", low=0)


def read(**values: Any) -> tuple[Section | None, list[str]]:
    problems: list[str] = []
    return read_section(Section, values, "part.", problems), problems


def test_nothing_given_is_all_defaults() -> None:
    assert read() == (Section(), [])


@pytest.mark.parametrize(
    ("key", "given", "kept"),
    [
        ("share", 2, 2.0),
        ("count", 8, 8),
        ("sizes", [4, 5], (4, 5)),
        ("limit", "none", None),
        ("limit", 0, 0),
        ("late", "b", "b"),
    ],
)
def test_a_value_is_kept_as_its_declared_type(key: str, given: Any, kept: Any) -> None:
    section, problems = read(**{key: given})
    assert problems == []
    value = getattr(section, key)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        ("count", 9, "part.count = 9: must be at least 1 and at most 8"),
        ("count", 2.5, "part.count = 2.5: must be a whole number"),
        ("count", True, "part.count = true: must be a whole number"),
        ("share", 0.0, "part.share = 0.0: must be above 0.0"),
        ("share", "x", 'part.share = "x": must be a number'),
        ("on", 1, "part.on = 1: must be true or false"),
        (
            "kind",
            "plane",
            'part.kind = "plane": allowed: "plain", "fancy" (did you mean \'plain\'?)',
        ),
        ("late", "z", 'part.late = "z": allowed: "a", "b"'),
        ("sizes", 3, "part.sizes = 3: must be a list, for example [1, 2]"),
        ("sizes", [1, 0], "part.sizes = [1, 0]: must be at least 1"),
        ("limit", -1, "part.limit = -1: must be at least 0"),
        ("knd", 3, "part.knd: there is no such key; did you mean 'part.kind'?"),
        (
            "qqqqqq",
            3,
            "part.qqqqqq: there is no such key; known keys: count, share, on, kind, late, sizes, limit",
        ),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_a_sentence(
    key: str, given: Any, said: str
) -> None:
    assert read(**{key: given}) == (None, [said])


def test_problems_add_up() -> None:
    assert len(read(count=0, share=-1, kind="x")[1]) == 3


def test_a_known_mistake_is_allowed_and_named() -> None:
    section, problems = read(on=True)
    assert problems == []
    assert known_mistakes_in(section, "part.") == ["part.on = true"]
    assert known_mistakes_in(Section(), "part.") == []


def test_a_setting_that_is_added_changes_no_hash_until_it_is_given() -> None:
    assert hashed_settings(Section()) == {}
    assert hashed_settings(Section(kind="fancy")) == {"kind": "fancy"}
    assert plain_settings(Section())["sizes"] == [1, 2]
