"""The methods of the benchmark: every one is a recipe that keeps its budget; an ablation changes one thing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leverplus.errors import UnknownName
from leverplus.lab.benchmark import BenchmarkPlan, ablation_plan, curve_plan, quick_plan
from leverplus.lab.jobs import ARMS
from leverplus.lab.methods import (
    ABLATIONS,
    BUDGETS,
    DEV_SHARE,
    METHODS,
    ORDER,
    TITLES,
    TrainingMethod,
    ablation,
    owner_of,
    place_in_order,
    quick_settings,
)
from leverplus.recipe.recipe import load_recipe

QUESTIONS = 8000
POOL = 64


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_method_spends_its_budget_on_training_and_little_of_it_on_dev(name: str, budget: int) -> None:
    recipe = METHODS[name].at(budget)
    score = recipe.score
    epochs = sum(stage.epochs + 1 for stage in recipe.stages.values())
    reserve = score.dev_queries * len(score.dev_shots) * epochs
    assert score.budget == budget
    assert reserve <= DEV_SHARE * budget
    queries = (budget - reserve) // score.cost(POOL)
    assert queries >= 50, "the budget pays for too few questions to learn from"
    assert score.queries == 0, "questions follow the budget"
    assert min(queries, QUESTIONS) * score.cost(POOL) > 0.8 * (budget - reserve), "there are not enough questions"


def test_all_methods_are_measured_on_the_same_task_pools_and_items() -> None:
    recipes = [method.at(128_000, ("eval.items=1000", "task.world_seed=3")) for method in METHODS.values()]
    for section in ("task", "embed", "pool"):
        assert len({repr(getattr(recipe, section)) for recipe in recipes}) == 1, section
    assert {recipe.eval.items for recipe in recipes} == {1000}
    assert {recipe.eval.shots for recipe in recipes} == {(1, 2, 3, 4)}


def test_the_plans_training_has_its_mistakes_and_the_mended_one_has_none() -> None:
    sick, mended = METHODS["sft_rce_grpo"].at(128_000), METHODS["mended_grpo"].at(128_000)
    assert len(sick.known_mistakes()) >= 4
    assert mended.known_mistakes() == []
    assert tuple(sick.stages) == tuple(mended.stages) == ("sft", "rce", "grpo")
    assert sick.score == mended.score
    assert sick.reward == mended.reward


def test_dev_settings_shrink_only_where_they_would_take_too_much() -> None:
    planned = load_recipe("world").score
    assert METHODS["listwise"].at(512_000).score.dev_queries == planned.dev_queries
    small = METHODS["listwise"].at(8_000).score
    assert small.dev_shots == (2,)
    assert small.dev_queries < planned.dev_queries


def test_an_ablation_is_best_with_one_thing_changed() -> None:
    best = METHODS["best"].at(128_000)
    hashes = [ablation(name).at(128_000).hash for name in ABLATIONS]
    assert best.hash not in hashes
    assert len(set(hashes)) == len(hashes)
    for name in ABLATIONS:
        changed = ablation(name).at(128_000)
        before, after = best.values(), changed.values()
        sections = [key for key in before | after if key != "train" and before.get(key) != after.get(key)]
        assert 1 <= len(sections) <= 2, f"{name} changes {sections}"
    with pytest.raises(UnknownName, match="no ablation called 'less'; known: "):
        ablation("less")


def test_every_method_of_the_table_has_a_training_and_a_place_in_the_order() -> None:
    assert {owner_of(name) for name in TITLES} == set(METHODS)
    assert set(ORDER) == {(name, budget) for name in METHODS for budget in BUDGETS}
    assert place_in_order("best", 128_000) == 0
    assert place_in_order("no_rounds", 128_000) == len(ORDER)
    with pytest.raises(UnknownName, match="no method called 'magic'; known: sft, "):
        owner_of("magic")


def test_the_whole_benchmark_is_five_seeds_in_three_worlds_at_four_budgets() -> None:
    jobs = BenchmarkPlan().jobs()
    assert len(jobs) == 3 + 4 * 4 * 15
    assert {job.world for job in jobs} == {100, 101, 102}
    marks = [mark for job in jobs for mark in job.marks()]
    assert len(set(marks)) == len(marks) == 3 + 6 * 4 * 15 + 15
    assert len({job.folder for job in jobs}) == len(jobs)
    assert "sft/128000/world101/seed4" in marks
    assert {mark for mark in marks if mark.startswith("labels/")} == {
        f"labels/8000/world{world}/seed{seed}" for world in (100, 101, 102) for seed in range(5)
    }


def test_ablations_and_curves_are_the_same_jobs_with_more_to_do() -> None:
    plain = {job.folder for job in BenchmarkPlan(methods=("best",), budgets=(128_000,)).jobs()}
    for plan in (ablation_plan(), curve_plan()):
        jobs = plan.jobs()
        assert plain <= {job.folder for job in jobs}
        assert len({job.folder for job in jobs}) == len(jobs), "two jobs would work in one folder"
    curves = curve_plan(seeds=1, worlds=(0,)).jobs()
    assert [job.queries for job in curves if job.name != ARMS] == [0, 125, 250, 500, 1000, 2000, 4000]
    assert "arms/0/world0/seed0/pool4096" in curves[0].marks()
    assert "best/128000/world0/seed0/pool16" in curves[1].marks()
    assert curves[2].marks() == ["best/128000/world0/seed0/queries125"]


@pytest.mark.parametrize("what", ["methods", "ablations", "curves"])
def test_quick_sizes_make_recipes_that_can_run(what: str) -> None:
    makers: dict[str, Callable[..., BenchmarkPlan]] = {
        "methods": BenchmarkPlan,
        "ablations": ablation_plan,
        "curves": curve_plan,
    }
    for job in makers[what](**quick_plan(what)).jobs():
        recipe = job.recipe()
        assert recipe.eval.items == 12
        assert recipe.task.world_seed == 0
        assert recipe.score.budget <= 1_200 or job.name == ARMS


def test_quick_settings_know_every_stage() -> None:
    settings = quick_settings(TrainingMethod("plan5"))
    assert {"sft.epochs=2", "rce.epochs=2", "grpo.epochs=2"} <= set(settings)
    assert "score.rounds=1" not in settings
