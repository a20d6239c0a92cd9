"""What docs/bench.md and recipes say of `best` is what was measured (docs/bench.json)."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from leverplus.errors import EvaluationError
from leverplus.lab.benchmark import BenchmarkPlan, ablation_plan, curve_plan, require_current
from leverplus.lab.drawing import gap_picture
from leverplus.lab.jobs import ARMS
from leverplus.lab.methods import METHODS, POOL_SIZES, QUERIES, TITLES
from leverplus.lab.records import Records
from leverplus.lab.summary import MethodSample, difference, method_sample
from leverplus.recipe.recipe import load_recipe

ROOT = Path(__file__).parents[2]
MEASURED = json.loads((ROOT / "docs" / "bench.json").read_text(encoding="utf-8"))
BUDGETS = (8_000, 32_000, 128_000)
"""Those that a recipe is shipped for."""


def measured(budget: int) -> dict:
    (row,) = [r for r in MEASURED["methods"] if (r["method"], r["arm"], r["budget"]) == ("best", "learned", budget)]
    return row


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_page_shows_what_was_measured(budget: int) -> None:
    row, page = measured(budget), (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith(f"| `{METHODS['best'].recipe_at(budget)}` |")]
    low, high = row["against_nearest"]["ci95"]
    (rival,) = [arm for arm in MEASURED["arms"] if arm["arm"] == row["against_nearest"]["arm"] and arm["pool"] == 64]
    leads = [100 * (row["accuracy"][shots] - rival["accuracy"][shots]) for shots in ("1", "2", "3", "4")]
    assert [cell.strip() for cell in line.strip("|").split("|")[1:]] == [
        f"{budget:,}",
        f"{100 * row['accuracy']['mean']:.1f}",
        f"{100 * row['against_nearest']['diff']:+.1f} ({100 * low:.1f} to {100 * high:.1f})",
        " / ".join(f"{lead:+.1f}" for lead in leads),
    ]


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_recipe_expects_what_was_measured(budget: int) -> None:
    row, recipe = measured(budget), load_recipe(METHODS["best"].recipe_at(budget))
    assert (len(row["seeds"]), len(row["worlds"]), row["n"]) == (5, 3, 3000)
    assert recipe.expected.startswith(f"{100 * row['gap_closed']['mean']['share']:.0f} % of the way")
    assert f": {100 * row['accuracy']['mean']:.1f} in the mean" in recipe.expected


def test_the_figures_follow_from_the_answers_item_by_item() -> None:
    records = Records.read(ROOT / "benchmarks" / "bench").found.values()
    for row in (row for row in MEASURED["methods"] if row["arm"] == "learned"):
        own = [r for r in records if (r["method"], r["budget"], r["queries"]) == (row["method"], row["budget"], 0)]
        assert len(own) == len(row["worlds"]) * len(row["seeds"])
        means = [fmean(fmean(values) for values in record["accuracy"]["learned"].values()) for record in own]
        assert fmean(means) == pytest.approx(row["accuracy"]["mean"], abs=1e-9)


def test_the_answers_are_those_of_todays_recipes() -> None:
    records = Records.read(ROOT / "benchmarks" / "bench")
    for plan in (BenchmarkPlan(), ablation_plan(budgets=(32_000,), seeds=1)):
        require_current(plan.jobs(), records)
    key = "best/32000/world100/seed0"
    stale = Records(records.path, {key: {**records.found[key], "recipe": "another"}})
    with pytest.raises(EvaluationError, match=f"holds {key} of another recipe"):
        require_current(BenchmarkPlan().jobs(), stale)


def test_the_curves_are_whole_and_of_todays_recipes() -> None:
    records = Records.read(ROOT / "benchmarks" / "curves")
    jobs = curve_plan(budgets=(32_000,), seeds=1).jobs()
    require_current(jobs, records)
    assert not [key for job in jobs for key in job.marks() if key not in records.found]
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for size in (16, *POOL_SIZES):
        own = [r for r in records.found.values() if (r["method"], r["pool"], r["queries"]) == ("best", size, 0)]
        assert len(own) == 3
        means = [100 * fmean(fmean(r["accuracy"]["learned"][shots]) for r in own) for shots in "1234"]
        assert f"| {size:,} | " + " | ".join(f"{mean:.1f}" for mean in means) + f" | {fmean(means):.1f} (" in results
        beside = [r for r in records.found.values() if (r["method"], r["pool"]) == (ARMS, size)]
        for arm in ("mmr", "nearest_both", "random"):
            mean = 100 * fmean(fmean(r["accuracy"][arm][shots]) for r in beside for shots in "1234")
            (row,) = [line for line in results.splitlines() if line.startswith(f"| {size:,} | {means[0]:.1f} |")]
            assert f" {mean:.1f} " in row, arm
    for most in QUERIES:
        own = [r for r in records.found.values() if r["queries"] == most]
        assert len(own) == 3
        means = [100 * fmean(fmean(r["accuracy"]["learned"][shots]) for r in own) for shots in "1234"]
        calls = round(fmean(r["model_calls"] for r in own))
        row = " | ".join([f"| {most:,}", f"{calls:,}", *(f"{mean:.1f}" for mean in means), f"{fmean(means):.1f} ("])
        assert row in results


def test_the_page_compares_few_calls_with_many_as_measured() -> None:
    records = Records.read(ROOT / "benchmarks" / "bench").found.values()
    arms = {record["world"]: record for record in records if record["method"] == ARMS}
    page = " ".join((ROOT / "docs" / "bench.md").read_text(encoding="utf-8").split())

    def runs(method: str, budget: int) -> MethodSample:
        return method_sample([r for r in records if (r["method"], r["budget"]) == (method, budget)], arms)

    few = runs("best", 8_000)
    for method in set(TITLES) - {"best", "labels"}:
        others = runs(method, 128_000).mean("learned")
        assert difference(few.mean("learned"), others, few.images)["ci95"][0] > 0.0, method
    for method in ("listwise", "mended_grpo"):  # docs/results.md: also with four times as many
        others = runs(method, 512_000).mean("learned")
        assert difference(few.mean("learned"), others, few.images)["ci95"][0] > 0.0, method
    for method, words in (
        ("sft_rce_grpo", "above SFT + RCE + GRPO as"),
        ("mended_grpo", "above the same stages with their mistakes mended"),
    ):
        found = difference(few.mean("learned"), runs(method, 128_000).mean("learned"), few.images)
        low, high = found["ci95"]
        assert low > 0.0
        assert f"{100 * found['diff']:.1f} " in page.partition(words)[0][-30:]
        assert f"({100 * low:.1f} to {100 * high:.1f}) {words}" in page


def test_the_picture_is_drawn_from_the_figures_with_a_level_for_what_has_no_budget() -> None:
    picture = gap_picture(MEASURED)
    assert (ROOT / "docs" / "pictures" / "bench.svg").read_text(encoding="utf-8") == picture
    assert "labels alone" in picture
    assert "own count" not in picture
    curves = {row["method"] for row in MEASURED["methods"] if row["arm"] == "learned" and row["method"] in TITLES}
    assert picture.count("<polyline") + picture.count("<path") >= len(curves - {"labels"})


def test_few_calls_beat_every_arm_without_training_and_harm_stays_small() -> None:
    for budget in BUDGETS:
        row = measured(budget)
        assert row["against_nearest"]["ci95"][0] > 0.0
        assert row["model_calls"] <= budget
        assert all(harm["harmed"] <= harm["helped"] / 3 for harm in row["harm"].values())
