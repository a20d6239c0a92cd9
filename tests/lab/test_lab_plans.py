"""The recipes of the plans: all pass their check, cost what they promise, and fit one table; its numbers by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from leverplus.cli.main import main
from leverplus.data.types import ItemId, Pool
from leverplus.evaluate.conditions import conditions_of
from leverplus.evaluate.predictions import Prediction, Results
from leverplus.evaluate.record import EvaluationRecord, record_of
from leverplus.evaluate.runs import EvaluatedRun
from leverplus.evaluate.stats import compare_seeds
from leverplus.run.recipe import load_recipe, recipe_names
from leverplus.scores.keys import Context
from leverplus_lab.plans import (
    BASELINE,
    PLANS,
    cells,
    compare_by_seed,
    conclusion,
    first_of_each,
    mean_gap,
    plan_sentence,
    plans_markdown,
    reference_of,
    summarise_plans,
)

LATER_PLANS = (
    "plan5",
    "plan5_8",
    "plan6",
    "plan7",
    "plan7_1",
    "plan7_2",
    "plan8",
    "plan9_phase1",
    "plan9_phase2",
)


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_passes_its_check(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = (
        tmp_path / "mine.jsonl"
    )  # recipes for one's own data say so until they are given a file
    own.write_text('{"text": "the food was cold", "label": "complaint"}\n')
    given = ["--set", f"task.file={own}"] if name.startswith("own_") else []
    assert main(["check", name, *given]) == 0
    assert f"{name}: no problems" in capsys.readouterr().out


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_says_its_idea_and_fits_its_budget_with_all_its_queries(
    name: str,
) -> None:
    recipe = load_recipe(name)
    assert len(recipe.purpose) > 60
    assert recipe.expected
    score = recipe.score
    judged = (
        score.dev_queries
        * len(score.dev_shots)
        * sum(stage.epochs + 1 for stage in recipe.stages.values())
    )
    assert score.queries * score.cost(recipe.pool.size) + judged <= score.budget


@pytest.mark.slow
def test_all_plans_are_measured_alike_so_that_they_can_be_compared() -> None:
    recipes = [load_recipe(name) for name in PLANS]
    for section in ("task", "embed", "pool", "score", "eval", "select"):
        assert len({repr(getattr(recipe, section)) for recipe in recipes}) == 1, section
    assert len({repr(recipe.stages["sft"]) for recipe in recipes}) == 1


def test_the_plans_make_the_mistakes_of_the_earlier_code_on_purpose() -> None:
    assert load_recipe("baseline").known_mistakes() == ["rce.centred = false"], (
        "the only one that all plans share"
    )
    for name in LATER_PLANS:
        sick = " ".join(load_recipe(name).known_mistakes())
        for mistake in (
            "topk_before_advantage",
            'behaviour = "sft"',
            "k3_inverted",
            "dropout_in_ratio",
        ):
            assert mistake in sick, (name, mistake)


def difference(name: str, other: str) -> set[str]:
    """The settings in which two recipes differ."""
    one, two = (load_recipe(n).values() for n in (name, other))
    return {f"{s}.{key}" for s in one for key in one[s] if one[s][key] != two[s][key]}


def test_neighbouring_plans_differ_in_what_their_idea_says_and_nothing_else() -> None:
    assert difference("plan6", "plan5") == {"grpo.lr"}
    assert (
        difference("plan7_1", "plan7_2")
        == difference("plan7", "plan7_1")
        == {"grpo.kl_beta"}
    )
    assert difference("plan8", "plan5") == {
        "reward.mode",
        "reward.soft_weight",
        "reward.rel_weight",
    }
    assert difference("exp2_2", "exp2_1") == {"grpo.advantage"}
    assert difference("exp3_4", "exp3_1") == {
        "reward.hard_weight",
        "reward.soft_weight",
    }
    assert difference("plan9_phase2", "plan9_phase1") == {
        "grpo.epochs",
        "grpo.easy_epochs",
    }


@pytest.mark.slow
def test_recipes_that_are_the_same_experiment_are_run_once() -> None:
    owners = first_of_each({name: load_recipe(name) for name in PLANS})
    assert {name: owner for name, owner in owners.items() if name != owner} == {
        "exp2_1": "exp1_2",
        "exp3_1": "exp1_2",
    }


ROOT = Path(__file__).parents[2]
MEASURED = json.loads((ROOT / "docs" / "plans.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", MEASURED["recipes"], ids=lambda row: row["recipe"])
def test_every_plan_says_what_was_measured(row: dict[str, Any]) -> None:
    assert load_recipe(row["recipe"]).expected == plan_sentence(row, MEASURED)


def test_all_plans_were_measured_with_intervals_and_the_documentation_shows_that_table() -> (
    None
):
    rows = {row["recipe"]: row for row in MEASURED["recipes"]}
    assert list(rows) == list(PLANS)
    assert (
        MEASURED["failed"],
        MEASURED["quick"],
        MEASURED["seeds"] >= 2,
        MEASURED["n"],
    ) == ({}, False, True, 400)
    for name, row in rows.items():
        assert (row["difference"] is None) == (name == BASELINE)
        low, high = row["difference"]["ci95"] if row["difference"] else (-1.0, 1.0)
        assert low <= (row["difference"] or {"diff": 0.0})["diff"] <= high
    assert (
        f"<!-- measured -->\n{plans_markdown(MEASURED)}<!-- /measured -->"
        in (ROOT / "docs" / "plans.md").read_text()
    )


CONTEXT = Context.of(
    {"model": "m", "template": "plain", "decoding": "greedy"},
    task="t",
    task_version="1",
    metric="vqa_accuracy",
    cut="plain",
)
ITEMS = [ItemId(f"q{number:03d}") for number in range(200)]


def evaluated(name: str, seed: int, right: NDArray[np.bool_]) -> EvaluatedRun:
    """A run with one shot, right on the items that are told."""
    results = Results(ITEMS, [str(item) for item in ITEMS])
    draw = [
        Prediction(item, (ItemId("d"),), "x", float(r))
        for item, r in zip(ITEMS, right, strict=True)
    ]
    results.add("learned", 1, draw)
    accuracy = float(right.mean())
    report = {
        "n": len(ITEMS),
        "conditions": conditions_of(
            CONTEXT, "test", ITEMS, [Pool(item, (), "b") for item in ITEMS]
        ),
        "arms": {
            "learned": {"shots": {"1": accuracy}, "mean": accuracy},
            "zero_shot": {"shots": {"0": 0.31}, "mean": 0.31},
            "nearest_both": {"shots": {"1": 0.612}, "mean": 0.612},
        },
        "model_calls": 100 + seed,
    }
    return EvaluatedRun(
        f"{name}-seed{seed}", name, name, seed, record_of(report), results
    )


@pytest.fixture
def table() -> dict[str, Any]:
    """Right on 100 items (baseline), 140 (a), 70 (b), 101 (c) and again 140, with three seeds that shift them all."""
    counts = {BASELINE: 100, "a": 140, "b": 70, "c": 101}
    places = np.arange(200)
    done = {
        name: [evaluated(name, seed, places < count + 5 * seed) for seed in range(3)]
        for name, count in counts.items()
    }
    owners = {**{name: name for name in counts}, "again": "a"}
    return {
        **summarise_plans(done, owners),
        "failed": {"d": "it could not run"},
        "quick": False,
    }


def test_recipes_are_compared_by_item_and_seed_and_corrected_over_all_of_them(
    table: dict[str, Any],
) -> None:
    rows = {row["recipe"]: row for row in table["recipes"]}
    assert [rows[name]["difference"]["diff"] for name in "abc"] == pytest.approx(
        [0.2, -0.15, 0.005]
    )
    assert [rows[name]["difference"]["within_noise"] for name in "abc"] == [
        False,
        False,
        True,
    ]
    p = [rows[name]["difference"]["p_value"] for name in "abc"]
    adjusted = [rows[name]["difference"]["p_adjusted"] for name in "abc"]
    assert adjusted == pytest.approx([3 * p[0], 2 * p[1], p[2]])
    assert rows[BASELINE]["difference"] is None
    assert rows["again"]["difference"] == rows["a"]["difference"]
    assert rows[BASELINE]["accuracy"]["mean"] == pytest.approx(0.525)
    assert rows["a"]["model_calls"] == 102
    assert (table["n"], table["seeds"]) == (200, 3)


def test_what_a_seed_does_to_both_recipes_cancels() -> None:
    rng = np.random.default_rng(0)
    baseline = (rng.random((3, 300)) < np.array([[0.8], [0.5], [0.2]])).astype(
        float
    )  # lucky, usual, unlucky seeds
    better = baseline.copy()
    for own in better:
        own[rng.choice(np.flatnonzero(own == 0.0), 12, replace=False)] = (
            1.0  # 4 points for every seed
        )
    ids = list(range(300))
    found = compare_by_seed(better, baseline, clusters=ids)
    apart = compare_seeds(better, baseline)
    assert found["diff"] == pytest.approx(apart.diff)
    assert found["p_value"] < 0.001
    assert apart.p_value > 0.1
    assert 0.0 < found["ci95"][0] < found["diff"] < found["ci95"][1] < 0.1


@pytest.mark.slow
def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered, ids = 0, list(range(120))
    for _ in range(80):
        chance = rng.beta(2.0, 2.0, 120)
        effect = 0.03 + rng.normal(
            0.0, 0.02, (3, 1)
        )  # the recipes differ by 0.03 in truth, seeds vary
        baseline = (rng.random((3, 120)) < chance).astype(float)
        own = (rng.random((3, 120)) < np.clip(chance + effect, 0.0, 1.0)).astype(float)
        low, high = compare_by_seed(own, baseline, clusters=ids)["ci95"]
        covered += low <= 0.03 <= high
    assert covered >= 71  # of 80; 95 % are 76


def test_a_handful_of_changed_items_is_judged_by_the_exact_test() -> None:
    baseline = np.zeros((3, 200))
    own = baseline.copy()
    own[[0, 1, 2], [10, 20, 30]] = 1.0  # three items out of three gained: 2 * (1/2)^3
    found = compare_by_seed(own, baseline, clusters=list(range(200)))
    assert found["p_value"] == pytest.approx(0.25)
    assert found["diff"] == pytest.approx(0.005)


def test_recipes_that_choose_alike_differ_by_nothing_with_an_interval_around_it() -> (
    None
):
    same = np.tile(np.arange(200) < 90, (3, 1)).astype(float)
    found = compare_by_seed(same, same, clusters=list(range(200)))
    assert (found["diff"], found["p_value"], found["seed_sd"]) == (0.0, 1.0, 0.0)
    assert found["ci95"][0] < 0.0 < found["ci95"][1] < 0.05


def test_the_table_says_above_below_or_within_noise(table: dict[str, Any]) -> None:
    verdicts = {row["recipe"]: cells(row)[6] for row in table["recipes"]}
    assert verdicts == {
        BASELINE: "the baseline",
        "a": "above",
        "b": "below",
        "c": "within noise",
        "again": "above (same as a)",
    }
    assert conclusion(table).startswith(
        "2 of 3 recipes differ from baseline beyond noise"
    )
    text = plans_markdown(table)
    assert "| a | 72.5 | 72.5 | +20.00 |" in text
    assert text.count("\n|") == 2 + 5
    assert text.endswith("d failed: it could not run\n")
    assert "without training: zero_shot 31.0, nearest_both 61.2.\n" in text


def test_a_recipe_says_what_was_measured_with_n_seeds_and_interval(
    table: dict[str, Any],
) -> None:
    said = {row["recipe"]: plan_sentence(row, table) for row in table["recipes"]}
    assert (
        said[BASELINE]
        == "52.5 % on the world in the mean over shots 1-4 (200 test items, 3 seeds)"
    )
    assert said["a"].startswith(
        "72.5 % on the world in the mean over shots 1-4, +20.00 points from baseline (95 % "
    )
    assert said["a"].endswith("; 200 test items, 3 seeds): above")


def test_recipes_that_answer_alike_are_said_to(table: dict[str, Any]) -> None:
    row = {
        "recipe": "e",
        "same_as": None,
        "accuracy": {"1": 0.5, "mean": 0.5},
        "reported": None,
    }
    row["difference"] = {
        "diff": 0.0,
        "seed_sd": 0.0,
        "ci95": [-0.01, 0.01],
        "p_adjusted": 1.0,
        "within_noise": True,
    }
    assert cells(row)[6] == "the same answers"


def test_one_seed_is_told_as_one() -> None:
    found = json.loads((ROOT / "docs" / "plans.json").read_text(encoding="utf-8"))
    assert ", 3 seeds a recipe;" in plans_markdown(found)
    assert ", 1 seed a recipe;" in plans_markdown({**found, "seeds": 1})
    assert plan_sentence(found["recipes"][0], {**found, "seeds": 1}).endswith(
        "test items, 1 seed)"
    )


def test_a_gap_nobody_measured_stays_unknown() -> None:
    def measured(**closed: float) -> EvaluationRecord:
        arms = {"learned": {"shots": {"1": 0.5}}}
        return record_of({"n": 2, "arms": arms, "gap_closed": {"learned": closed}})

    assert mean_gap([measured(mean=0.4), measured(mean=0.6)]) == pytest.approx(0.5)
    assert mean_gap([measured(mean=0.4), measured()]) is None


FORMS = json.loads((ROOT / "docs" / "plans_documents.json").read_text(encoding="utf-8"))


def test_the_page_shows_both_forms_as_they_were_measured() -> None:
    page = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")
    assert f"<!-- forms -->\n{plans_markdown(FORMS)}<!-- /forms -->" in page


def test_every_plan_was_measured_in_both_forms_with_an_interval() -> None:
    rows = {row["recipe"]: row for row in FORMS["recipes"]}
    assert set(rows) == {
        form for name in PLANS for form in (name, f"documents/{name}_documents")
    }
    assert (FORMS["failed"], FORMS["quick"], FORMS["seeds"], FORMS["n"]) == (
        {},
        False,
        1,
        400,
    )
    for name, row in rows.items():
        theirs = (
            name.startswith("documents/") and name != "documents/baseline_documents"
        )
        assert row["from"] == ("documents/baseline_documents" if theirs else BASELINE)
        assert (row["difference"] is None) == (name == BASELINE)
        low, high = row["difference"]["ci95"] if row["difference"] else (-1.0, 1.0)
        assert low <= (row["difference"] or {"diff": 0.0})["diff"] <= high


COUNTED = {8: "eight"}


def test_the_pages_tell_of_both_forms_what_the_table_says() -> None:
    """Ranges, counts and intervals in the sentences are those of the rows."""
    own = [
        row for row in FORMS["recipes"] if row["from"] == "documents/baseline_documents"
    ]
    noise = [
        100 * row["difference"]["diff"]
        for row in own
        if row["difference"]["within_noise"]
    ]
    below = [row for row in own if not row["difference"]["within_noise"]]
    mended = [
        row["difference"]
        for row in FORMS["recipes"]
        if not row["recipe"].startswith("documents/")
    ]
    worse = [found for found in mended if found and not found["within_noise"]]
    points = [100 * found["diff"] for found in mended if found]
    low, high = (100 * bound for bound in below[0]["difference"]["ci95"])
    said = (
        f"{len(noise)} of {len(own)} plans lie between {min(noise):.2f} and {max(noise):+.2f} points",
        f"{100 * below[0]['difference']['diff']:.2f} (95 % interval {low:.1f} to {high:.1f})",
        f"between {min(points):.2f} and {max(points):+.2f}, {COUNTED[len(worse)]} of them below",
    )
    results = " ".join(
        (ROOT / "docs" / "results.md").read_text(encoding="utf-8").split()
    )
    for sentence in said:
        assert sentence in results, sentence
    page = " ".join((ROOT / "docs" / "plans.md").read_text(encoding="utf-8").split())
    assert said[0] in page
    assert (
        f"In the mended form {COUNTED[len(worse)]} plans are below their baseline"
        in page
    )
    assert [row["recipe"] for row in below] == ["documents/run003_documents"]
    assert all(found["diff"] < 0.0 for found in worse)


WARMED_ALIKE = (
    "plan5",
    "plan6",
    "exp1_2",
    "exp2_2",
    "exp_conditional",
    "run000_advised",
)


@pytest.mark.parametrize("name", WARMED_ALIKE)
def test_these_plans_of_the_documents_share_the_warm_up_of_their_baseline(
    name: str,
) -> None:
    own, baseline = (
        load_recipe(f"documents/{n}_documents").values() for n in (name, BASELINE)
    )
    assert {section for section in own if own[section] != baseline.get(section)} == {
        "train",
        "grpo",
    }
    assert f"`{name}`" in (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")


def test_a_plan_in_the_form_of_the_documents_is_compared_with_their_own_baseline() -> (
    None
):
    """100 items right in the mended baseline, 90 in that of the documents, 80 in a plan of theirs: 10 of 200 below."""
    counts = {
        BASELINE: 100,
        "documents/baseline_documents": 90,
        "documents/plan5_documents": 80,
    }
    places = np.arange(200)
    done = {
        name: [evaluated(name, 0, places < count)] for name, count in counts.items()
    }
    rows = {
        row["recipe"]: row
        for row in summarise_plans(done, {name: name for name in counts})["recipes"]
    }
    own = rows["documents/plan5_documents"]
    assert own["from"] == "documents/baseline_documents"
    assert own["difference"]["diff"] == pytest.approx(-10 / 200)
    assert cells(own)[-2].endswith("(from documents/baseline_documents)")
    assert rows["documents/baseline_documents"]["from"] == BASELINE
    assert rows["documents/baseline_documents"]["difference"]["diff"] == pytest.approx(
        -10 / 200
    )
    assert reference_of("documents/plan5_documents", {BASELINE}) == BASELINE, (
        "where theirs was not run"
    )
