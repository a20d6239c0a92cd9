"""Every mistake that a recipe can make on purpose is marked as a known mistake and told in the handbook."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from leverplus.recipe.mistakes import MistakesSection
from leverplus.recipe.recipe import build_recipe, load_recipe

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def test_every_value_but_the_first_is_sick_and_in_the_handbook() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for field in dataclasses.fields(MistakesSection):
        (sick,) = field.metadata["mistakes"]
        assert sick != field.default
        recipe = build_recipe("test", {"mistakes": {field.name: sick}}, "test")
        assert len(recipe.known_mistakes()) == 1
        assert f"| `mistakes.{field.name}` | `{str(sick).lower()}` |" in text


def test_no_shipped_recipe_outside_the_gallery_makes_one() -> None:
    assert not load_recipe("world").mistakes.any
    assert load_recipe("gallery/lost_tensors").mistakes.any
