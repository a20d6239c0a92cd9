"""Values that would end a run later are refused when the recipe is read, and `lever check` says what has no effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leverplus.cli.main import main
from leverplus.errors import RecipeError
from leverplus.policies.build import build_policy
from leverplus.recipe.recipe import build_recipe, load_recipe
from leverplus.recipe.selection import preset_names

LATER = {
    "sft.monitor=rewardd": "sft.monitor",
    "reward.component_weights=[1,2]": "reward.component_weights",
    "reward.components=['soft_only','gt_prob'] reward.component_weights=[1]": "reward.component_weights",
    "reward.mode=choice_prob": "reward",
    "score.budget=400": "score.budget",
    "score.tiers=[]": "score.tiers",
    "score.search=mixed score.random=0 score.retrieved=0": "score.search",
    "score.search=mixed score.samples=2 score.temperatures=[] train.stages=['sft','rce']": "score.temperatures",
    "score.search=mixed reward.mode=hybrid": "score.prefixes",
    "score.search=beam score.shots=4 select.max_shots=2 eval.shots=[1,2] score.dev_shots=[1]": "select.max_shots",
    "score.rounds=2 train.imitate=1": "train.imitate",
    "score.rounds=2 score.depth=8 pool.size=6": "score.depth",
    "sft.freeze=['heads']": "sft.freeze",
    "sft.freeze=['stop']": "sft.freeze",
    "sft.freeze=['projections','attention','head']": "sft.freeze",
    "train.stages=['grpo'] grpo.reference=sft": "grpo.reference",
    "task.name=okvqa embed.name=sentence score.backend=hf model.name=x": "select.query_fields",
    "task.name=okvqa embed.name=clip embed.mean=true score.backend=hf model.name=x": "select.query_fields",
    "task.name=coco_small embed.name=clip score.backend=openai model.name=x model.url=http://a/v1": "model.prompt",
}


@pytest.mark.parametrize(("given", "key"), LATER.items())
def test_a_value_that_would_fail_later_is_refused_at_once(given: str, key: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("world", given.split())
    assert any(problem.startswith(key) for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize("preset", preset_names())
def test_the_parts_that_freeze_may_name_are_those_with_weights(preset: str) -> None:
    recipe = build_recipe("test", {"select": {"preset": preset, "hidden": 8, "heads": 1, "max_shots": 8}}, "test")
    policy = build_policy(recipe.select, {"image": 4, "text": 4, "answer": 4}, items=5)
    assert set(policy.named_groups()) == set(recipe.select.parts())


def test_check_prints_what_has_no_effect_and_lists_it_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "world", "--set", "reward.alpha=0.2"]) == 0
    said = capsys.readouterr().out
    assert 'no effect: reward.alpha = 0.2, because reward.mode = "gt_prob" does not read it' in said
    assert main(["check", "world", "--set", "reward.alpha=0.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["idle"] == [{"key": "reward.alpha", "value": 0.2, "why": 'reward.mode = "gt_prob" does not read it'}]
    assert main(["check", "world", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["idle"] == []


def test_a_setting_of_the_extended_recipe_that_lost_its_effect_is_named(tmp_path: Path) -> None:
    from leverplus.recipe.idle import idle_given

    (tmp_path / "base.toml").write_text('[reward]\nmode = "legacy"\nalpha = 0.2\n[sft]\nlabels = "weighted"\n')
    (tmp_path / "heir.toml").write_text('extends = "base.toml"\n[reward]\nmode = "gt_prob"\n[train]\nimitate = 3\n')
    assert [entry["key"] for entry in idle_given(load_recipe(str(tmp_path / "heir.toml")))] == ["reward.alpha"]


def test_check_names_files_and_variables_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    path = tmp_path / "mine.toml"
    path.write_text(
        """
        [task]
        name = "labels"
        file = "nowhere.jsonl"
        [embed]
        name = "sentence"
        [model]
        name = "m"
        url = "http://127.0.0.1:1/v1"
        key_env = "NO_SUCH_KEY"
        [score]
        backend = "openai"
        [select]
        query_fields = ["text"]
        demo_fields = ["text", "answer"]
        [pool]
        kind = "nearest_text"
        """
    )
    assert main(["check", str(path), "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem.partition(" ")[0] for problem in problems] == ["task.file", "model.key_env"]
    monkeypatch.setenv("NO_SUCH_KEY", "secret")
    assert main(["check", str(path), "--set", f"task.file={path}"]) == 0
    said = capsys.readouterr().out
    assert "secret" not in said
    assert "own_labels" in said, "it gives no stages, so the recommended recipe is named"


def test_a_recipe_by_bare_defaults_is_told_which_one_is_recommended() -> None:
    from leverplus.recipe.advice import recommendation

    bare = build_recipe("bare", {"task": {"name": "world"}}, "test")
    assert "best_8k" in recommendation(bare)[0]
    assert recommendation(load_recipe("world")) == []


def test_an_unknown_section_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(RecipeError, match=r"pools: there is no such section; did you mean \[pool\]\?"):
        build_recipe("test", {"pools": {"size": 8}}, "test")


@pytest.mark.parametrize("name", ["own_labels", "own_pictures"])
def test_the_recipes_for_own_data_are_cheap_and_want_a_file(name: str) -> None:
    from leverplus.recipe.advice import missing_here

    recipe = load_recipe(name)
    assert recipe.score.budget <= 2000
    assert [problem.partition(":")[0] for problem in missing_here(recipe)] == ["task.file"]


def test_a_start_that_is_nowhere_is_a_problem_of_the_recipe(tmp_path: Path) -> None:
    from leverplus.recipe.advice import missing_here

    def problems(start: str) -> list[str]:
        return missing_here(build_recipe("test", {"task": {"name": "world"}, "train": {"start": start}}, "test"))

    (found,) = problems("nosuch")
    assert found.startswith('train.start = "nosuch": there is no such checkpoint; give a checkpoint folder')
    assert problems(f"{tmp_path}/gone:sft")
    assert problems(str(tmp_path)) == problems(f"{tmp_path}:sft") == []


def test_recipes_lists_a_dozen_unless_all_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 13
    assert main(["recipes", "--all", "--json"]) == 0
    assert {"plan7", "own_labels", "gallery/healthy"} <= set(json.loads(capsys.readouterr().out))


def test_the_world_is_not_asked_for_more_demonstrations_than_its_model_reads() -> None:
    from leverplus.recipe.rules import WORLD_READS
    from leverplus.world.model import MAX_DEMOS

    assert WORLD_READS == MAX_DEMOS
    load_recipe("world", ["eval.shots=[1,8]"])
    with pytest.raises(RecipeError, match="its model reads at most 8 demonstrations"):
        load_recipe("world", ["eval.shots=[1,16]", "select.max_shots=16"])
