"""Sections: values are read as their type or refused with a sentence that says what is allowed."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from leverplus.recipe.pools import PoolSection
from leverplus.recipe.recipe import PLAIN, SCHEMA, load_recipe
from leverplus.recipe.schema import (
    first_settings,
    hashed_settings,
    known_mistakes_in,
    plain_settings,
    read_section,
    setting,
)
from leverplus.recipe.selection import PolicyConfig
from leverplus.recipe.training import SECTIONS


@dataclass(frozen=True)
class Section:
    count: int = setting(3, "a count", low=1, high=8)
    share: float = setting(0.5, "a share", above=0.0)
    on: bool = setting(False, "a switch", mistakes=(True,))
    kind: str = setting("plain", "a kind", choices=("plain", "fancy"))
    late: str = setting("a", "a kind from a table", choices=lambda: ("a", "b"))
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
        ("kind", "plane", 'part.kind = "plane": allowed: "plain", "fancy" (did you mean \'plain\'?)'),
        ("late", "z", 'part.late = "z": allowed: "a", "b"'),
        ("sizes", 3, "part.sizes = 3: must be a list, for example [1, 2]"),
        ("sizes", [1, 0], "part.sizes = [1, 0]: must be at least 1"),
        ("limit", -1, "part.limit = -1: must be at least 0"),
        ("knd", 3, "part.knd: there is no such key; did you mean 'part.kind'?"),
        ("qqqqqq", 3, "part.qqqqqq: there is no such key; known keys: count, share, on, kind, late, sizes, limit"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_a_sentence(key: str, given: Any, said: str) -> None:
    assert read(**{key: given}) == (None, [said])


def test_problems_add_up() -> None:
    assert len(read(count=0, share=-1, kind="x")[1]) == 3


def test_a_known_mistake_is_allowed_and_named() -> None:
    section, problems = read(on=True)
    assert problems == []
    assert known_mistakes_in(section, "part.") == ["part.on = true"]
    assert known_mistakes_in(Section(), "part.") == []


@dataclass(frozen=True)
class _GrownPool(PoolSection):
    order: str = setting("near", "a setting that somebody added, without a thought of hashes")


def test_an_added_setting_changes_no_hash_until_it_is_changed() -> None:
    assert hashed_settings(_GrownPool()) == hashed_settings(PoolSection())
    assert hashed_settings(_GrownPool(order="far")) == {**hashed_settings(PoolSection()), "order": "far"}
    assert plain_settings(_GrownPool()) == {**plain_settings(PoolSection()), "order": "near"}


def test_a_recipe_whose_schema_has_a_new_setting_is_known_by_its_old_hash() -> None:
    recipe = load_recipe("world")
    grown = replace(recipe, pool=_GrownPool(**plain_settings(recipe.pool)))
    assert grown.hash == recipe.hash
    assert replace(recipe, pool=replace(grown.pool, order="far")).hash != recipe.hash


def test_the_words_of_a_selector_by_which_a_state_is_known_stay_those_of_the_first_version() -> None:
    @dataclass(frozen=True, repr=False)
    class Grown(PolicyConfig):
        order: str = setting("near", "a setting that somebody added")

    assert repr(PolicyConfig()).startswith("PolicyConfig(preset=None, model='pointer', query_fields=('image', 'text'),")
    assert "order" not in repr(Grown())


def test_every_setting_of_the_first_version_is_still_there() -> None:
    for cls in (*PLAIN.values(), PolicyConfig, *SECTIONS.values()):
        names = {field.name for field in dataclasses.fields(cls)}
        assert set(first_settings(cls) or ["missing"]) <= names, cls.__name__


def test_the_default_of_a_later_setting_changes_only_with_the_schema() -> None:
    """A recipe that does not give such a setting has the same hash whatever the default is, so it must not move."""
    kept = json.loads((Path(__file__).parent / "later_defaults.json").read_text(encoding="utf-8"))
    sections = {**PLAIN, "select": PolicyConfig, **SECTIONS}
    for key, default in kept["defaults"].items():
        section, _, name = key.partition(".")
        (now,) = [field.default for field in dataclasses.fields(sections[section]) if field.name == name]
        assert json.loads(json.dumps(now)) == default or kept["schema"] < SCHEMA, f"raise SCHEMA for {key}"
