"""A recipe may name another that it extends: what it gives wins, what it leaves out is taken over."""

from __future__ import annotations

from pathlib import Path

import pytest

from leverplus.errors import MissingFile, RecipeError, UnknownName
from leverplus.recipe.recipe import load_recipe

BASE = '[pool]\nsize = 32\nkind = "mix"\n\n[train]\nstages = ["sft", "grpo"]\n\n[sft]\nlr = 0.5\n\n[grpo]\nepochs = 3\n'


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)


def test_what_is_given_wins_and_the_rest_is_taken_over(tmp_path: Path) -> None:
    write(tmp_path, base=BASE, own='extends = "base.toml"\npurpose = "p"\n\n[pool]\nsize = 16\n\n[grpo]\nlr = 0.25\n')
    recipe = load_recipe(str(tmp_path / "own.toml"))
    assert (recipe.pool.size, recipe.pool.kind) == (16, "mix")
    assert (recipe.stages["grpo"].epochs, recipe.stages["grpo"].lr, recipe.stages["sft"].lr) == (3, 0.25, 0.5)
    assert (recipe.name, recipe.purpose) == ("own", "p")
    assert recipe.hash != load_recipe(str(tmp_path / "base.toml")).hash


def test_a_shipped_recipe_can_be_extended_by_name_and_so_on_over_several(tmp_path: Path) -> None:
    write(tmp_path, base='extends = "world"\n\n[pool]\nsize = 32\n', own='extends = "base.toml"\n\n[sft]\nepochs = 2\n')
    recipe, world = load_recipe(str(tmp_path / "own.toml")), load_recipe("world")
    assert recipe.select == world.select
    assert (recipe.pool.size, recipe.stages["sft"].epochs) == (32, 2)


def test_stages_that_are_left_out_leave_their_sections_behind_but_own_sections_are_reported(tmp_path: Path) -> None:
    write(tmp_path, base=BASE, own='extends = "base.toml"\n\n[train]\nstages = ["sft"]\n')
    assert list(load_recipe(str(tmp_path / "own.toml")).stages) == ["sft"]
    write(tmp_path, own='extends = "base.toml"\n\n[train]\nstages = ["sft"]\n\n[grpo]\nlr = 0.1\n')
    with pytest.raises(RecipeError, match=r"\[grpo\]: this stage is not in train.stages"):
        load_recipe(str(tmp_path / "own.toml"))


def test_a_circle_a_missing_base_and_a_number_are_refused(tmp_path: Path) -> None:
    write(tmp_path, one='extends = "two.toml"\n', two='extends = "one.toml"\n', three="extends = 3\n")
    with pytest.raises(RecipeError, match="extend each other in a circle"):
        load_recipe(str(tmp_path / "one.toml"))
    with pytest.raises(RecipeError, match="extends: must be the name or file of a recipe"):
        load_recipe(str(tmp_path / "three.toml"))
    write(tmp_path, four='extends = "nowhere.toml"\n', five='extends = "wrold"\n')
    with pytest.raises(MissingFile, match=r"nowhere\.toml"):
        load_recipe(str(tmp_path / "four.toml"))
    with pytest.raises(UnknownName, match="no recipe called 'wrold'"):
        load_recipe(str(tmp_path / "five.toml"))
