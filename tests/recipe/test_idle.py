"""Settings without effect are all named: the table of rules is compared with what real runs read and yield."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from recipe.spread import (
    BY_THE_DOCTOR,
    RESOLVED,
    SPREAD,
    all_keys,
    other_value,
    outcome,
    owners,
    recorded,
    spread_recipe,
    with_owners,
)

from leverplus import catalog
from leverplus.maths.rewards import Evidence, Weights
from leverplus.recipe.idle import REWARD_READS, WEIGHTS, idle_given, idle_settings
from leverplus.recipe.recipe import gallery_names, load_recipe, recipe_names
from leverplus.types import ItemId, Reference, Score


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("idle") / "scores.db"


@pytest.mark.slow
@pytest.mark.parametrize("name", SPREAD)
def test_what_is_not_declared_idle_is_read_and_what_is_changes_nothing(name: str, tmp_path: Path, store: Path) -> None:
    recipe, read = spread_recipe(name), set[str]()
    idle = idle_settings(recipe)
    usual = outcome(recorded(recipe, read), tmp_path / "usual", store)
    # the loop asks for `keep` only after an epoch that was not better than all before it
    kept = {f"{stage}.keep" for stage in recipe.stages}
    unread = all_keys(recipe) - read - kept - {*RESOLVED, *BY_THE_DOCTOR}
    assert sorted(unread - set(idle)) == [], "neither read nor declared idle"
    changed = {}
    for section, owner in owners(recipe).items():
        keys = [field.name for field in dataclasses.fields(owner) if f"{section}.{field.name}" in idle]
        changed[section] = dataclasses.replace(owner, **{key: other_value(owner, key) for key in keys})
    other = with_owners(recipe, changed)
    assert other.hash != recipe.hash
    assert outcome(other, tmp_path / "other", store) == usual, "a setting that is declared idle changed something"


def test_each_reward_reads_the_weights_that_the_table_says() -> None:
    fields = {
        "hard_weight": "hard", "hard_by_shots": "hard", "soft_weight": "soft", "soft_by_shots": "soft",
        "rel_weight": "rel", "alpha": "alpha", "beta": "beta", "correctness": "correctness", "quality": "quality",
    }  # fmt: skip
    assert set(REWARD_READS) == set(catalog.REWARDS)
    assert set(fields) == set(WEIGHTS)
    usual = Weights()
    for mode in catalog.REWARDS:
        reward = catalog.load(catalog.REWARDS, mode, "reward")
        for key, field in fields.items():
            value = {"correctness": "pm1", "quality": "logprob"}.get(key, 0.3)
            other = dataclasses.replace(usual, **{field: value})
            differs = any(reward(evidence, usual) != reward(evidence, other) for evidence in evidences())
            assert differs == (key in REWARD_READS[mode]), (mode, key)


def evidences() -> list[Evidence]:
    """A right and a wrong answer, with everything measured that some reward asks for."""
    labels = (Reference("cat", 2, -0.5), Reference("dog", 0, -1.5))
    found = []
    for answer, accuracy in (("cat", 0.6), ("kat", 0.0)):
        measured = (answer, answer, accuracy, accuracy > 0, labels, 0.4, 0.4, 9, 0.1)
        score = Score(ItemId("q"), (ItemId("a"),), *measured)
        bare = dataclasses.replace(score, demos=(), references=(Reference("cat", 2, -0.9), labels[1]))
        found.append(Evidence(score, bare, -1.2, (score, bare), 0.5))
    return found


CASES = {
    "reward.alpha=0.2": "reward.alpha",
    "reward.beta=2.0": "reward.beta",
    "reward.rel_weight=0.3": "reward.rel_weight",
    "reward.adaptive=true": "reward.adaptive",
    "score.beam=3": "score.beam",
    "score.best=3": "score.best",
    "sft.final_lr=0.1 sft.schedule=constant": "sft.final_lr",
    "sft.temperature=0.2 sft.labels=all": "sft.temperature",
    "select.preset=id_gpt2 select.temperature=0.5": "select.temperature",
    "select.preset=id_gpt2 select.mmr=max": "select.mmr",
    "select.mmr_strength=0.5": "select.mmr_strength",
    "pool.text_weight=0.9": "pool.text_weight",
    "model.instruction=hello": "model.instruction",
    "eval.oracle=false eval.exhaustive_calls=5": "eval.exhaustive_calls",
}
GRPO_CASES = {
    "grpo.std_floor=0.2 grpo.advantage=rank": "grpo.std_floor",
    "grpo.kl_high=2.0": "grpo.kl_high",
    "grpo.importance_cap=3.0": "grpo.importance_cap",
    "grpo.clip_only=true grpo.kl_beta=0.1": "grpo.kl_beta",
    "score.search=mixed score.beam=3": "score.beam",
    "train.imitate=1 sft.labels=top": "sft.labels",
}


@pytest.mark.parametrize(("given", "idle"), [*CASES.items(), *GRPO_CASES.items()])
def test_a_setting_that_is_given_without_effect_is_named(given: str, idle: str) -> None:
    stages = ["train.stages=['sft','grpo']"] if given in GRPO_CASES else []
    found = {entry["key"]: entry["why"] for entry in idle_given(load_recipe("world", [*stages, *given.split()]))}
    assert found[idle]
    assert idle not in {entry["key"] for entry in idle_given(load_recipe("world", stages))}, "nobody gave it"


KEPT = {
    "baseline_sft": {"reward.mode"},
    "plan7": {"grpo.reference", "grpo.kl", "grpo.kl_beta", "grpo.beta_rule"},
    "plan7_1": {"grpo.reference", "grpo.kl", "grpo.kl_beta", "grpo.beta_rule"},
    "plan7_2": {"grpo.reference", "grpo.kl", "grpo.kl_beta", "grpo.beta_rule"},
    "trec_few": {"score.shots", "score.random", "score.retrieved", "listwise.temperature"},
    "gallery/dead_flag": {"grpo.kl_beta"},
    "gallery/healthy_listwise": {"train.imitate"},
    "gallery/heavy_kl": {"grpo.beta_max"},
}
"""Idle settings that stay, because without them the recipe's hash would change and finished runs would not be known
again; dead_flag has its own on purpose."""


@pytest.mark.parametrize("name", [*recipe_names(), *gallery_names()])
def test_a_shipped_recipe_gives_no_setting_without_effect(name: str) -> None:
    assert {entry["key"] for entry in idle_given(load_recipe(name))} <= KEPT.get(name, set())


def test_the_reward_is_never_called_idle_where_a_server_answers() -> None:
    """A server without log-probabilities is refused with the advice to set reward.mode: the advice must not be idle."""
    local = load_recipe("own_labels", ['train.stages=["sft"]', "score.rounds=0"])
    assert "reward.mode" in idle_settings(local)
    model = dataclasses.replace(local.model, name="gpt", url="http://127.0.0.1:1/v1")
    served = dataclasses.replace(local, score=dataclasses.replace(local.score, backend="openai"), model=model)
    assert "reward.mode" not in idle_settings(served)
