"""Recipes: what ships loads, what is wrong is said all at once, and the hash follows every setting."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from leverplus import catalog
from leverplus.errors import MissingFile, RecipeError, UnknownName
from leverplus.recipe.recipe import PLAIN, Recipe, build_recipe, find_recipe, load_recipe, recipe_names
from leverplus.recipe.schema import check_value

ALL_STAGES = build_recipe("all", {"train": {"stages": list(catalog.STAGES)}}, "test")


def problems_of(values: dict[str, Any]) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        build_recipe("test", values, "test.toml")
    return caught.value.problems


def problems_with(*overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe("world", overrides)
    return caught.value.problems


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_loads_and_says_what_it_is_for(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.purpose
    assert recipe.expected
    assert recipe.stages


def test_the_recipe_of_make_run_is_shipped() -> None:
    assert "world" in recipe_names()


def test_every_problem_is_reported_at_once_with_its_key_and_what_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(
        """
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
        [evall]
        items = 3
        """
    )
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(path))
    problems = caught.value.problems
    expected = {
        "pool.kind": "did you mean 'random'?",
        "pool.size": "at least 1",
        "score.budgett": "did you mean 'score.budget'?",
        "score.search": "must be a text",
        "select.trunk": "did you mean 'bi_encoder'?",
        "sft.lr": "above 0.0",
        "[grpo]": "not in train.stages",
        "evall": "there is no such section",
    }
    for key, said in expected.items():
        line = [problem for problem in problems if problem.startswith(key)]
        assert len(line) == 1, key
        assert said in line[0]
    assert len(problems) == len(expected)
    assert str(caught.value).startswith(f"{path}: 8 problems")
    for kind in catalog.SAMPLERS:
        assert f'"{kind}"' in str(caught.value), "the allowed values are listed"


def test_a_file_that_is_not_toml_is_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[pool\nsize = 3")
    with pytest.raises(RecipeError, match=r"this is not a TOML file.*line 1"):
        load_recipe(str(path))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="this is not a TOML file"):
        load_recipe(str(path))


def test_a_recipe_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingFile, match=r"no recipe file nowhere\.toml.*lever recipes"):
        load_recipe("nowhere.toml")
    with pytest.raises(UnknownName, match=r"no recipe called 'wrold'; did you mean 'world'\? `lever recipes` lists"):
        load_recipe("wrold")


def test_a_data_file_in_a_recipes_place_is_told_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("{}")
    with pytest.raises(UnknownName, match=r"mine\.jsonl is no recipe.*`lever fit .*mine\.jsonl --model MODEL`"):
        load_recipe(str(tmp_path / "mine.jsonl"))


def test_a_section_that_is_a_value_is_refused() -> None:
    assert problems_of({"pool": 3}) == ["pool: must be a section, written [pool]"]
    assert problems_of({"purpose": 3}) == ["purpose: must be a text"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"pool": {"size": 3}}, "pool.size = 3: must be at least the largest of eval.shots"),
        ({"pool": {"size": 4}, "score": {"shots": 5}}, "pool.size = 4: must be at least score.shots"),
        ({"select": {"max_shots": 2}}, "select.max_shots = 2: eval.shots asks for 4"),
        ({"select": {"max_shots": 4}, "score": {"dev_shots": [5]}}, "select.max_shots = 4: score.dev_shots asks for 5"),
        ({"score": {"budget": 64, "search": "dense"}}, "score.budget = 64: one training query costs 65 calls"),
        ({"pool": {"kind": "mmr", "first_stage": 8}}, "pool.first_stage = 8: must be at least pool.size"),
        ({"select": {"hidden": 10, "heads": 3}}, "select.heads = 3: must divide select.hidden = 10"),
        ({"eval": {"shots": []}}, "eval.shots = []: must name at least one"),
        ({"score": {"dev_shots": []}}, "score.dev_shots = []: must name at least one"),
        ({"train": {"stages": []}}, "train.stages = []: must name at least one"),
        ({"train": {"stages": ["sft", "sft"]}}, "train.stages = ['sft', 'sft']: names one twice"),
        ({"eval": {"shots": [1, 1]}}, "eval.shots = [1, 1]: names one twice"),
        ({"task": {"name": "jsonl"}}, 'embed.name = "world": reads the world alone; for task jsonl use sentence or'),
        ({"task": {"name": "jsonl"}}, 'score.backend = "world": reads the world alone; for task jsonl use openai or'),
        (
            {"train": {"stages": ["listwise"]}, "listwise": {"among": "pairs", "temperature": 0.2}},
            'listwise.temperature = 0.2: has no effect with listwise.among = "pairs"',
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: dict[str, Any], said: str) -> None:
    assert any(problem.startswith(said) for problem in problems_of(values))


def test_a_training_query_costs_what_the_budget_is_checked_against() -> None:
    score = build_recipe("test", {"score": {"search": "beam", "shots": 3, "beam": 5}}, "test").score
    assert score.cost(10) == 1 + 10 + 5 * 9 + 5 * 8
    assert dataclasses.replace(score, search="dense").cost(10) == 1 + 10


def test_overrides_replace_values_and_are_checked_like_them() -> None:
    recipe = load_recipe("world", ["score.budget=9000", "sft.epochs=2", "pool.kind=mix", "eval.shots=[1, 2]"])
    assert (recipe.score.budget, recipe.stages["sft"].epochs, recipe.pool.kind) == (9000, 2, "mix")
    assert recipe.eval.shots == (1, 2)
    assert problems_with("score.budget=many", "pool.sise=3", "budget=3", "nothing") == [
        "--set budget=3: write it as section.key=value, for example --set score.budget=8000",
        "--set nothing: write it as section.key=value, for example --set score.budget=8000",
        "pool.sise: there is no such key; did you mean 'pool.size'?",
        'score.budget = "many": must be a whole number',
    ]
    assert problems_with("purpose.x=3") == ["--set purpose.x=3: 'purpose' is not a section"]


def test_stages_that_are_overridden_away_take_their_sections_with_them() -> None:
    recipe = load_recipe("world", ['train.stages=["rce"]'])
    assert list(recipe.stages) == ["rce"]
    assert problems_with("train.stages=5") == ["train.stages = 5: must be a list, for example [1, 2]"]
    assert problems_with("train.stages=rce") == ['train.stages = "rce": must be a list, for example [1, 2]']


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_numbers_that_are_none_are_refused(value: str) -> None:
    assert problems_with(f"sft.lr={value}") == [f"sft.lr = {value}: must be a finite number"]
    assert problems_with(f"reward.alpha={value}") == [f"reward.alpha = {value}: must be a finite number"]


def sections_of(recipe: Recipe) -> dict[str, Any]:
    return {**{key: getattr(recipe, key) for key in (*PLAIN, "select")}, **recipe.stages}


def choices_of(metadata: Mapping[str, Any]) -> Sequence[Any] | None:
    choices = metadata["choices"]
    return choices() if callable(choices) else choices


def settings() -> Iterator[tuple[str, str]]:
    """Every setting that has more than one allowed value."""
    for key, section in sections_of(ALL_STAGES).items():
        for field in dataclasses.fields(section):
            choices = choices_of(field.metadata)
            if choices is None or len(choices) > 1:
                yield key, field.name


def another_value(section: Any, name: str) -> Any:
    """Some other allowed value of a setting."""
    value, hint = getattr(section, name), typing.get_type_hints(type(section))[name]
    metadata = next(field.metadata for field in dataclasses.fields(section) if field.name == name)
    choices = choices_of(metadata)
    if choices is not None and typing.get_origin(hint) is tuple:
        tried: list[Any] = [[choice] for choice in choices]
    elif choices is not None:
        tried = list(choices)
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
    raise AssertionError(f"no other allowed value of {name} was found")


@pytest.mark.parametrize(("key", "name"), list(settings()), ids=lambda value: value)
def test_the_hash_follows_every_setting(key: str, name: str) -> None:
    section = sections_of(ALL_STAGES)[key]
    changed = dataclasses.replace(section, **{name: another_value(section, name)})
    if key in ALL_STAGES.stages:
        recipe = dataclasses.replace(ALL_STAGES, stages={**ALL_STAGES.stages, key: changed})
    else:
        recipe = dataclasses.replace(ALL_STAGES, **{key: changed})
    assert recipe.hash != ALL_STAGES.hash


def test_the_hash_follows_the_order_of_the_stages() -> None:
    one, other = (build_recipe("test", {"train": {"stages": s}}, "test") for s in (["sft", "rce"], ["rce", "sft"]))
    assert list(one.stages) == ["sft", "rce"]
    assert one.hash != other.hash


def test_what_is_written_for_people_leaves_the_hash_alone() -> None:
    words = build_recipe("other name", {"purpose": "p", "expected": "e"}, "test")
    assert words.hash == build_recipe("name", {}, "test").hash


def test_leaving_a_value_out_is_the_same_as_writing_its_default() -> None:
    written = build_recipe("test", {"pool": {"size": 64}, "sft": {"epochs": 20}}, "test")
    assert written.hash == build_recipe("test", {}, "test").hash


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_with_every_value_written_out_is_the_same_recipe(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    values = {key: {k: v for k, v in part.items() if v is not None} for key, part in recipe.values().items()}
    (tmp_path / "resolved.toml").write_text(tomli_w.dumps(values))
    again = load_recipe(str(tmp_path / "resolved.toml"))
    assert again.hash == recipe.hash
    assert again.values() == recipe.values()


def test_settings_that_repeat_a_known_mistake_are_named() -> None:
    assert load_recipe("world").known_mistakes() == []
    values = {
        "train": {"stages": ["grpo"]},
        "grpo": {"kl": "k3_inverted", "topk_before_advantage": True},
        "select": {"refine_others": "drop"},
    }
    recipe = build_recipe("test", values, "test")
    assert sorted(recipe.known_mistakes()) == [
        'grpo.kl = "k3_inverted"',
        "grpo.topk_before_advantage = true",
        'select.refine_others = "drop"',
    ]


def test_no_default_repeats_a_known_mistake() -> None:
    assert ALL_STAGES.known_mistakes() == []


def test_every_setting_is_documented() -> None:
    for section in sections_of(ALL_STAGES).values():
        assert all(field.metadata["doc"] for field in dataclasses.fields(section))


def test_a_shipped_recipe_is_found_by_name_and_any_file_by_path(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("[pool]\nsize = 32\n")
    assert find_recipe("world").name == "world.toml"
    assert find_recipe(str(own)) == own
    assert load_recipe(str(own)).pool.size == 32


def test_rounds_that_no_epoch_follows_and_draws_without_a_second_stage_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"score\.rounds = 24: must be below listwise\.epochs"):
        load_recipe("best", ["score.rounds=24"])
    with pytest.raises(RecipeError, match="must name a second one"):
        load_recipe("world", ["score.search=mixed", "score.samples=2"])


@pytest.mark.parametrize(
    "stages", [["label_pretraining"], ["sft", "label_pretraining"], ["sft", "label_pretraining", "grpo"]]
)
def test_labels_come_before_a_stage_that_learns_from_answers(stages: list[str]) -> None:
    with pytest.raises(RecipeError, match="label_pretraining learns from labels alone") as caught:
        build_recipe("test", {"train": {"stages": stages}}, "test")
    assert len(caught.value.problems) == 1


def test_rounds_belong_to_the_first_stage_that_learns_from_answers() -> None:
    assert load_recipe("best").train.asking == "listwise"
    assert load_recipe("best", ["label_pretraining.epochs=2"]).score.rounds > 2
    assert load_recipe("best", ["label_pretraining.agreeing=0"]).stages["label_pretraining"]
    with pytest.raises(
        RecipeError, match=r"label_pretraining\.agreeing = 16: must be below label_pretraining\.candidates = 16"
    ):
        load_recipe("best", ["label_pretraining.agreeing=16"])


def test_a_range_upside_down_and_a_patience_that_cannot_act_are_problems() -> None:
    grpo = {"kl_low": 2.0, "kl_high": 1.0, "beta_min": 0.5, "beta_max": 0.1}
    values = {"train": {"stages": ["sft", "grpo"]}, "sft": {"keep": "last", "patience": 3}, "grpo": grpo}
    with pytest.raises(RecipeError) as caught:
        build_recipe("test", values, "test")
    assert [problem.partition(" ")[0] for problem in caught.value.problems] == [
        "sft.patience",
        "grpo.kl_low",
        "grpo.beta_min",
    ]


def test_the_hash_of_bare_defaults_is_that_of_the_first_version() -> None:
    """Kept results and run folders name it; a new setting needs `since` so that they are still recognised."""
    assert build_recipe("name", {"pool": {"kind": "random"}}, "test").hash == "fcebecda19e9"  # the kind of 0.1
