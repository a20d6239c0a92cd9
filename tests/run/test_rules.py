"""Values that would end a run later are refused when the recipe is read, and `lever check` says what has no effect."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from run.spread import (
    SPREAD,
    other_value,
    outcome,
    spread_recipe,
    with_sections,
)

from leverplus import catalog
from leverplus.cli.main import main
from leverplus.data.settings import settings_of
from leverplus.data.types import ItemId, Reference, Score
from leverplus.errors import RecipeError
from leverplus.learn.maths.rewards import Evidence, Weights
from leverplus.learn.policies.build import build_policy
from leverplus.learn.settings import RewardConfig
from leverplus.run.recipe import build_recipe, load_recipe, recipe_names
from leverplus.run.rules import WORLD_READS, idle_given, idle_settings, missing_here

REFUSED = {
    "pool.size=3": "pool.size = 3: must be at least the largest of eval.shots = 4",
    "pool.size=4 score.search=beam score.shots=5": "pool.size = 4: must be at least the largest of score.shots = 5",
    "select.max_shots=2": "select.max_shots = 2: eval.shots asks for 4",
    "select.max_shots=4 score.dev_shots=[5]": "select.max_shots = 4: score.dev_shots asks for 5",
    "score.search=beam score.shots=4 select.max_shots=2 eval.shots=[1] score.dev_shots=[1]": "select.max_shots = 2: score",
    "score.budget=64": "score.budget = 64: one training query costs 65 calls",
    "score.budget=400": "score.budget = 400: judging every epoch on dev may take",
    "pool.kind=mmr pool.first_stage=8": "pool.first_stage = 8: must be at least pool.size",
    "select.hidden=10 select.heads=3": "select.heads = 3: must divide select.hidden = 10",
    "eval.arms=['nearest_text','fixed(2)+nearest_text(2)']": 'eval.arms names "fixed(2)+nearest_text(2)", which comes',
    "eval.shots=[]": "eval.shots = []: must name at least one",
    "score.dev_shots=[]": "score.dev_shots = []: must name at least one",
    "train.stages=['sft','sft']": "train.stages = ['sft', 'sft']: names one twice",
    "task.name=jsonl": 'embed.name = "world": reads the world alone; for task jsonl use sentence or',
    "task.name=jsonl embed.name=sentence": 'score.backend = "world": reads the world alone; for task jsonl use openai',
    "eval.shots=[1,16] select.max_shots=16": 'score.backend = "world": its model reads at most 8',
    "sft.monitor=rewardd": "sft.monitor",
    "reward.component_weights=[1,2]": "reward.component_weights",
    "reward.components=['soft_only','gt_prob'] reward.component_weights=[1]": "reward.component_weights",
    "reward.mode=choice_prob": "reward",
    "score.search=mixed score.random=0 score.retrieved=0": "score.search",
    "score.search=mixed score.samples=2": "score.search draws from the selector of the first stage",
    "score.search=mixed score.samples=2 score.temperatures=[] train.stages=['sft','rce']": "score.temperatures",
    "score.search=mixed reward.mode=hybrid": "score.prefixes",
    "score.rounds=2 train.imitate=1": "train.imitate",
    "score.rounds=24 train.stages=['listwise']": "score.rounds = 24: must be below listwise.epochs",
    "score.groups=x score.mine=2": "score.groups replaces search",
    "sft.freeze=['heads']": "sft.freeze",
    "sft.freeze=['projections','attention','head']": "sft.freeze",
    "train.stages=['grpo'] grpo.reference=sft": "grpo.reference",
    "train.stages=['sft','grpo'] grpo.kl_low=2.0 grpo.kl_high=1.0": "grpo.kl_low",
    "train.stages=['label_pretraining']": "train.stages: label_pretraining learns from labels alone",
    "train.stages=['sft','label_pretraining','grpo']": "train.stages: label_pretraining learns from labels alone",
    "task.name=okvqa embed.name=sentence score.backend=hf model.name=x": "select.query_fields",
    "task.name=okvqa embed.name=clip score.backend=openai model.name=x model.url=http://a/v1": "model.prompt",
    "task.metric=judge": "judge.model",
}


@pytest.mark.parametrize(("given", "said"), REFUSED.items())
def test_a_value_that_would_fail_later_is_refused_at_once(
    given: str, said: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("world", given.split())
    problems = caught.value.problems
    assert any(problem.startswith(said) for problem in problems), problems


def test_rounds_belong_to_the_first_stage_that_learns_from_answers() -> None:
    best = load_recipe("best", ["label_pretraining.epochs=2"])
    assert best.train.asking == "listwise"
    assert best.score.rounds > 2


@pytest.mark.parametrize("preset", catalog.POLICIES)
def test_the_parts_that_freeze_may_name_are_those_with_weights(preset: str) -> None:
    select = {"preset": preset, "hidden": 8, "heads": 1, "max_shots": 8}
    recipe = build_recipe("test", {"select": select}, "test")
    policy = build_policy(recipe.select, {"image": 4, "text": 4, "answer": 4}, items=5)
    assert set(policy.named_groups()) == set(recipe.select.parts())


def test_the_world_is_not_asked_for_more_demonstrations_than_its_model_reads() -> None:
    from leverplus_lab.world.model import MAX_DEMOS

    assert WORLD_READS == MAX_DEMOS
    load_recipe("world", ["eval.shots=[1,8]"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("idle") / "scores.db"


@pytest.mark.slow
@pytest.mark.parametrize("name", SPREAD)
def test_a_setting_without_effect_changes_nothing(
    name: str, tmp_path: Path, store: Path
) -> None:
    recipe = spread_recipe(name)
    idle = idle_settings(recipe)
    assert idle
    changed = {}
    for section, owner in recipe.sections.items():
        keys = [
            own.name for own in settings_of(owner) if f"{section}.{own.name}" in idle
        ]
        other = {key: other_value(owner, key) for key in keys}
        changed[section] = dataclasses.replace(owner, **other)
    other = with_sections(recipe, changed)
    assert other.hash != recipe.hash
    usual = outcome(recipe, tmp_path / "usual", store)
    assert outcome(other, tmp_path / "other", store) == usual


def test_each_reward_reads_the_weights_that_stand_beside_them() -> None:
    fields = {
        "hard_weight": "hard", "hard_by_shots": "hard", "soft_weight": "soft", "soft_by_shots": "soft",
        "rel_weight": "rel", "alpha": "alpha", "beta": "beta", "correctness": "correctness", "quality": "quality",
    }  # fmt: skip
    when = {own.name: own.metadata["when"] for own in settings_of(RewardConfig)}
    usual = Weights()
    for mode in catalog.REWARDS:
        reward = catalog.load(catalog.REWARDS, mode, "reward")
        for key, field in fields.items():
            value = {"correctness": "pm1", "quality": "logprob"}.get(key, 0.3)
            other = dataclasses.replace(usual, **{field: value})
            differs = any(
                reward(evidence, usual) != reward(evidence, other)
                for evidence in evidences()
            )
            assert differs == (mode in when[key]), (mode, key)


def evidences() -> list[Evidence]:
    """A right and a wrong answer, with everything measured that some reward asks for."""
    labels = (Reference("cat", 2, -0.5), Reference("dog", 0, -1.5))
    found = []
    for answer, accuracy in (("cat", 0.6), ("kat", 0.0)):
        measured = (answer, answer, accuracy, accuracy > 0, labels, 0.4, 0.4, 9, 0.1)
        score = Score(ItemId("q"), (ItemId("a"),), *measured)
        bare = dataclasses.replace(
            score, demos=(), references=(Reference("cat", 2, -0.9), labels[1])
        )
        likelier = (Reference("cat", 2, -0.1), labels[1])
        rival = dataclasses.replace(score, references=likelier)
        found.append(Evidence(score, bare, -1.2, (score, bare, rival), 0.5))
    return found


CASES = {
    "reward.alpha=0.2": "reward.alpha",
    "reward.beta=2.0": "reward.beta",
    "reward.rel_weight=0.3": "reward.rel_weight",
    "reward.components=['hard_only','rank'] reward.soft_weight=0.3": "",
    "model.url=http://a/v1": "model.url",
    "eval.oracle=false eval.exhaustive_calls=5": "eval.exhaustive_calls",
}


@pytest.mark.parametrize(("given", "idle"), CASES.items())
def test_a_setting_that_is_given_without_effect_is_named(given: str, idle: str) -> None:
    found = [entry["key"] for entry in idle_given(load_recipe("world", given.split()))]
    assert found == ([idle] if idle else [])


WITHOUT_KL = ("plan7", "plan7_1", "plan7_2", "gallery/dead_flag")
KL = {"grpo.reference", "grpo.kl", "grpo.kl_beta", "grpo.beta_rule"}
KEPT = {**dict.fromkeys(WITHOUT_KL, KL), "gallery/heavy_kl": {"grpo.beta_max"}}
"""The documents' plans give a KL weight that clipping alone leaves out; the gallery does so on purpose."""


@pytest.mark.parametrize("name", [*recipe_names(), *recipe_names("gallery")])
def test_a_shipped_recipe_gives_no_setting_without_effect(name: str) -> None:
    found = {entry["key"] for entry in idle_given(load_recipe(name))}
    assert found <= KEPT.get(name, set())
    assert ("grpo.kl_beta" in found) == (name in WITHOUT_KL)


def test_check_says_what_has_no_effect_and_names_known_mistakes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "world", "--set", "reward.alpha=0.2"]) == 0
    why = "reward.modes = ('gt_prob',) does not read it"
    said = capsys.readouterr().out
    assert f"no effect: reward.alpha = 0.2, because {why}" in said
    assert main(["check", "world", "--set", "reward.alpha=0.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["idle"] == [{"key": "reward.alpha", "value": 0.2, "why": why}]
    sick = ["--set", 'train.stages=["grpo"]', "--set", "grpo.kl=k3_inverted"]
    assert main(["check", "world", *sick]) == 0
    assert 'grpo.kl = "k3_inverted" reproduces a known' in capsys.readouterr().out


def test_a_setting_of_the_extended_recipe_that_lost_its_effect_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "base.toml").write_text('[reward]\nmode = "legacy"\nalpha = 0.2\n')
    heir = tmp_path / "heir.toml"
    heir.write_text('extends = "base.toml"\n[reward]\nmode = "gt_prob"\n')
    assert [own["key"] for own in idle_given(load_recipe(str(heir)))] == [
        "reward.alpha"
    ]


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
    named = [problem.partition(" ")[0] for problem in problems]
    assert named == ["task.file", "model.key_env"]
    monkeypatch.setenv("NO_SUCH_KEY", "secret")
    assert main(["check", str(path), "--set", f"task.file={path}"]) == 0
    assert "secret" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["own_labels", "own_pictures"])
def test_the_recipes_for_own_data_are_cheap_and_want_a_file(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.score.budget <= 2000
    missing = [problem.partition(":")[0] for problem in missing_here(recipe)]
    assert missing == ["task.file"]


def test_a_start_that_is_nowhere_is_a_problem_of_the_recipe(tmp_path: Path) -> None:
    def problems(start: str) -> list[str]:
        return missing_here(load_recipe("world", [f"train.start={start}"]))

    (found,) = problems("nosuch")
    assert found.startswith('train.start = "nosuch": there is no such file')
    assert problems(f"{tmp_path}/gone:sft")
    assert problems(str(tmp_path)) == problems(f"{tmp_path}:sft") == []


def test_recipes_lists_a_dozen_unless_all_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["recipes"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12
    assert main(["recipes", "--all", "--json"]) == 0
    every = set(json.loads(capsys.readouterr().out))
    assert {"plan7", "own_labels", "gallery/healthy"} <= every
