"""Recipes: what ships loads, what is wrong is said all at once, and the hash follows every setting."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from leverplus import catalog
from leverplus.data.settings import check_value, settings_of
from leverplus.errors import MissingFile, RecipeError, UnknownName
from leverplus.run.recipe import (
    PLAIN,
    SECTIONS,
    build_recipe,
    find_recipe,
    load_recipe,
    recipe_names,
)

ALL_STAGES = build_recipe("all", {"train": {"stages": list(catalog.STAGES)}}, "test")
BASE = '[pool]\nsize = 32\nkind = "mix"\n\n[train]\nstages = ["sft", "grpo"]\n\n[sft]\nlr = 0.5\n\n[grpo]\nepochs = 3\n'


def problems_of(values: dict[str, Any]) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        build_recipe("test", values, "test.toml")
    return caught.value.problems


def problems_with(*overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe("world", overrides)
    return caught.value.problems


def written(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", recipe_names())
def test_a_shipped_recipe_says_what_it_is_for_and_reads_back_what_it_resolves_to(
    name: str, tmp_path: Path
) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.purpose
    assert recipe.expected
    assert recipe.stages
    values: dict[str, Any] = {}
    for key, part in recipe.values().items():
        values[key] = {own: value for own, value in part.items() if value is not None}
    again = load_recipe(written(tmp_path, "resolved", tomli_w.dumps(values)))
    assert again.hash == recipe.hash
    assert again.values() == recipe.values()


def test_every_problem_is_reported_at_once_with_its_key_and_what_is_allowed(
    tmp_path: Path,
) -> None:
    text = """
        [pool]
        kind = "randm"
        size = 0
        [score]
        budgett = 100
        search = 3
        [select]
        trunk = "bi_encodr"
        [train]
        stages = ["sft"]
        [sft]
        lr = -1.0
        [grpo]
        epochs = 3
        [eval]
        shots = [1, 1]
        [evall]
        items = 3
        """
    path = written(tmp_path, "wrong", text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    problems = caught.value.problems
    expected = {
        "pool.kind": "did you mean 'random'?",
        "pool.size": "at least 1",
        "score.budgett": "did you mean 'score.budget'?",
        "score.search": "must be a text",
        "select.trunk": "did you mean 'bi_encoder'?",
        "sft.lr": "above 0.0",
        "[grpo]": "not in train.stages",
        "eval.shots": "names one twice",
        "evall": "there is no such section; did you mean 'eval'?",
    }
    for key, said in expected.items():
        line = [problem for problem in problems if problem.startswith(f"{key}")]
        assert any(said in one for one in line), key
    assert len(problems) == len(expected)
    assert str(caught.value).startswith(f"{path}: 9 problems")
    for kind in catalog.SAMPLERS:
        assert f'"{kind}"' in str(caught.value), "the allowed values are listed"


def test_what_is_no_recipe_is_named_with_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"this is not a TOML file.*line 1"):
        load_recipe(written(tmp_path, "broken", "[pool\nsize = 3"))
    with pytest.raises(MissingFile, match=r"no recipe file nowhere\.toml.*recipes"):
        load_recipe("nowhere.toml")
    with pytest.raises(
        UnknownName,
        match=r"no recipe called 'wrold'; did you mean 'world'\? `lever recipes` lists",
    ):
        load_recipe("wrold")
    data = tmp_path / "mine.jsonl"
    data.write_text("{}")
    with pytest.raises(
        UnknownName, match=r"is no recipe.*`lever fit .*mine\.jsonl --model MODEL`"
    ):
        load_recipe(str(data))
    assert problems_of({"pool": 3}) == ["pool: must be a section, written [pool]"]
    assert problems_of({"purpose": 3}) == ["purpose: must be a text"]


def test_overrides_replace_values_and_are_checked_like_them() -> None:
    recipe = load_recipe(
        "world",
        ["score.budget=9000", "sft.epochs=2", "pool.kind=mix", "eval.shots=[1, 2]"],
    )
    changed = recipe.score.budget, recipe.stages["sft"].epochs, recipe.pool.kind
    assert changed == (9000, 2, "mix")
    assert recipe.eval.shots == (1, 2)
    assert problems_with("score.budget=many", "pool.sise=3", "budget=3", "nothing") == [
        "--set budget=3: write it as section.key=value, for example --set score.budget=8000",
        "--set nothing: write it as section.key=value, for example --set score.budget=8000",
        "pool.sise: there is no such key; did you mean 'pool.size'?",
        'score.budget = "many": must be a whole number',
    ]
    assert problems_with("purpose.x=3") == [
        "--set purpose.x=3: 'purpose' is not a section"
    ]
    assert problems_with("sft.lr=nan") == ["sft.lr = nan: must be a finite number"]


def test_stages_that_are_overridden_away_take_their_sections_with_them() -> None:
    assert list(load_recipe("world", ['train.stages=["rce"]']).stages) == ["rce"]
    assert problems_with("train.stages=rce") == [
        'train.stages = "rce": must be a list, for example [1, 2]'
    ]


def another_value(section: Any, name: str) -> Any:
    """Some other allowed value of a setting; None where only one is allowed."""
    value, hint = getattr(section, name), typing.get_type_hints(type(section))[name]
    metadata = next(own.metadata for own in settings_of(section) if own.name == name)
    choices = metadata["choices"]
    if choices is not None:
        tried = [[choice] if isinstance(value, tuple) else choice for choice in choices]
    elif isinstance(value, bool):
        tried = [not value]
    elif isinstance(value, tuple):
        tried = [[*value, 1], [*value, "head"]]
    elif isinstance(value, str):
        tried = [f"{value}@1"]
    else:
        tried = [value + 1, value - 1, value * 0.5, value + 0.01]
    for candidate in tried:
        try:
            checked = check_value(candidate, hint, metadata)
        except ValueError:
            continue
        if checked != value:
            return checked
    return None


def changes() -> Iterator[tuple[str, str, Any]]:
    for key, section in ALL_STAGES.sections.items():
        for field in settings_of(section):
            value = another_value(section, field.name)
            if value is not None:
                yield key, field.name, value


def test_the_hash_follows_every_setting_and_every_setting_is_documented() -> None:
    hashes = {ALL_STAGES.hash}
    count = 0
    for key, name, value in changes():
        section = ALL_STAGES.sections[key]
        changed = dataclasses.replace(section, **{name: value})
        stages = dict(ALL_STAGES.stages)
        plain = {}
        if key in stages:
            stages[key] = changed
        else:
            plain[key] = changed
        hashes.add(dataclasses.replace(ALL_STAGES, stages=stages, **plain).hash)
        count += 1
    assert count > 150
    assert len(hashes) == count + 1
    for section in SECTIONS.values():
        assert all(field.metadata["doc"] for field in settings_of(section))


def test_the_hash_follows_the_order_of_stages_and_nothing_that_is_for_people() -> None:
    def made(values: dict[str, Any], name: str = "test") -> str:
        return build_recipe(name, values, "test").hash

    forth, back = (
        made({"train": {"stages": stages}})
        for stages in (["sft", "rce"], ["rce", "sft"])
    )
    assert forth != back
    assert made({"purpose": "p", "expected": "e"}, "other name") == made({})
    assert made({"pool": {"size": 64}, "sft": {"epochs": 20}}) == made({})


def test_a_training_query_costs_what_the_budget_is_checked_against() -> None:
    score = {"search": "beam", "shots": 3, "beam": 5}
    section = build_recipe("test", {"score": score}, "test").score
    assert section.cost(10) == 1 + 10 + 5 * 9 + 5 * 8
    assert dataclasses.replace(section, search="dense").cost(10) == 1 + 10


def test_settings_that_repeat_a_known_mistake_are_named_and_no_default_does() -> None:
    values = {
        "train": {"stages": ["grpo"]},
        "grpo": {"kl": "k3_inverted", "topk_before_advantage": True},
        "select": {"refine_others": "drop"},
    }
    assert sorted(build_recipe("test", values, "test").known_mistakes()) == [
        'grpo.kl = "k3_inverted"',
        "grpo.topk_before_advantage = true",
        'select.refine_others = "drop"',
    ]
    assert ALL_STAGES.known_mistakes() == []


def test_a_shipped_recipe_is_found_by_name_and_any_file_by_path(tmp_path: Path) -> None:
    own = written(tmp_path, "own", "[pool]\nsize = 32\n")
    assert find_recipe("world").name == "world.toml"
    assert find_recipe(own) == Path(own)
    assert load_recipe(own).pool.size == 32


def test_of_an_extended_recipe_what_is_given_wins_and_the_rest_is_taken_over(
    tmp_path: Path,
) -> None:
    base = written(tmp_path, "base", BASE)
    own = written(
        tmp_path,
        "own",
        'extends = "base.toml"\npurpose = "p"\n\n[pool]\nsize = 16\n\n[grpo]\nlr = 0.25\n',
    )
    recipe = load_recipe(own)
    assert (recipe.pool.size, recipe.pool.kind) == (16, "mix")
    grpo = recipe.stages["grpo"]
    assert (grpo.epochs, grpo.lr, recipe.stages["sft"].lr) == (3, 0.25, 0.5)
    assert (recipe.name, recipe.purpose) == ("own", "p")
    assert recipe.hash != load_recipe(base).hash
    world = load_recipe(
        written(tmp_path, "far", 'extends = "world"\n[sft]\nepochs = 2\n')
    )
    assert world.select == load_recipe("world").select
    assert world.stages["sft"].epochs == 2


def test_stages_that_are_left_out_leave_their_sections_behind_but_own_sections_are_reported(
    tmp_path: Path,
) -> None:
    written(tmp_path, "base", BASE)
    left = 'extends = "base.toml"\n\n[train]\nstages = ["sft"]\n'
    assert list(load_recipe(written(tmp_path, "own", left)).stages) == ["sft"]
    with pytest.raises(RecipeError, match=r"\[grpo\]: this stage is not in train"):
        load_recipe(written(tmp_path, "own", f"{left}\n[grpo]\nlr = 0.1\n"))


def test_a_circle_a_missing_base_and_a_number_are_refused(tmp_path: Path) -> None:
    one = written(tmp_path, "one", 'extends = "two.toml"\n')
    written(tmp_path, "two", 'extends = "one.toml"\n')
    with pytest.raises(RecipeError, match="extend each other in a circle"):
        load_recipe(one)
    with pytest.raises(RecipeError, match="extends: must be the name or file"):
        load_recipe(written(tmp_path, "three", "extends = 3\n"))
    with pytest.raises(MissingFile, match=r"nowhere\.toml"):
        load_recipe(written(tmp_path, "four", 'extends = "nowhere.toml"\n'))
    with pytest.raises(UnknownName, match="no recipe called 'wrold'"):
        load_recipe(written(tmp_path, "five", 'extends = "wrold"\n'))


def test_every_part_of_a_section_belongs_to_a_recipe() -> None:
    assert set(ALL_STAGES.sections) == {*PLAIN, *catalog.STAGES} == set(SECTIONS)
