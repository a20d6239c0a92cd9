"""Shipped recipes keep their hashes, so that kept results are known again, however their files are cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leverplus.recipe.recipe import documents_names, gallery_names, load_recipe, recipe_names

KEPT: dict[str, str] = json.loads((Path(__file__).parent / "kept_hashes.json").read_text(encoding="utf-8"))
"""Taken before plans became what differs from a common recipe. A recipe that is measured anew gets a new line here."""


@pytest.mark.parametrize("name", [*recipe_names(), *documents_names(), *gallery_names()])
def test_a_shipped_recipe_has_the_hash_that_its_results_were_kept_under(name: str) -> None:
    assert load_recipe(name).hash == KEPT.get(name), "write its hash into kept_hashes.json if it is new"


def test_no_recipe_is_lost() -> None:
    assert set(KEPT) <= {*recipe_names(), *documents_names(), *gallery_names()}
