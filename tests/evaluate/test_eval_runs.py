"""Runs side by side: paired, seeds combined, corrected, and nothing inside the noise is claimed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from handmade import coin_flips, results_from

from leverplus.data.types import ItemId
from leverplus.errors import EvaluationError, LeverError
from leverplus.evaluate.predictions import read_predictions, write_predictions
from leverplus.evaluate.runs import EvaluatedRun, compare_runs, read_evaluated

if TYPE_CHECKING:  # several folders of tests have a conftest, and only one can be imported by that name
    from conftest import MakeRun

N = 300


def read(*folders: Path) -> list[EvaluatedRun]:
    return [read_evaluated(folder) for folder in folders]


def table(rng: np.random.Generator, chance: float) -> dict[str, dict[int, np.ndarray]]:
    flips = {n: coin_flips(rng, N, chance) for n in (1, 2)}
    return {
        "zero_shot": {0: coin_flips(np.random.default_rng(1), N, 0.4)},
        "learned": flips,
    }


def test_two_recipes_are_compared_item_by_item_at_every_shot_and_in_the_mean(
    make_run: MakeRun,
) -> None:
    rng = np.random.default_rng(0)
    base, better = table(rng, 0.5), table(rng, 0.5)
    better["learned"] = {
        n: np.maximum(v, coin_flips(rng, N, 0.3)) for n, v in base["learned"].items()
    }
    runs = read(
        make_run("base", results_from(base), recipe_hash="a"),
        make_run("better", results_from(better), recipe_hash="b"),
    )
    report = compare_runs(runs)
    assert (report.baseline, report.n) == ("base", N)
    assert [row.shots for row in report.comparisons] == ["1", "2", "mean"]
    for row in report.comparisons:
        assert row.arm == "better"
        assert row.harmed == 0
        assert not row.within_noise
    one = report.comparisons[0]
    assert np.isclose(one.diff, (better["learned"][1] - base["learned"][1]).mean())
    assert one.helped == int((better["learned"][1] > base["learned"][1]).sum())
    assert report.picks[0].identical == 1.0
    assert "trained once: base, better" in report.notes[0]


def test_the_mean_row_averages_shots_before_items_are_compared(
    make_run: MakeRun,
) -> None:
    first = {"learned": {1: [1.0, 0.0, 1.0, 0.0], 2: [1.0, 1.0, 0.0, 0.0]}}
    second = {"learned": {1: [0.0, 0.0, 1.0, 0.0], 2: [0.0, 1.0, 0.0, 1.0]}}
    runs = read(
        make_run("one", results_from(second), recipe_hash="a"),
        make_run("two", results_from(first), recipe_hash="b"),
    )
    mean = compare_runs(runs).comparisons[-1]
    assert (mean.shots, mean.diff, mean.helped, mean.harmed) == (
        "mean",
        0.125,
        1,
        1,
    )


def test_one_number_of_shots_is_one_row_and_its_p_is_not_corrected(
    make_run: MakeRun,
) -> None:
    rng = np.random.default_rng(0)
    first, second = (
        {"learned": {1: coin_flips(rng, N, chance)}} for chance in (0.5, 0.6)
    )
    folders = (
        make_run("a", results_from(first)),
        make_run("b", results_from(second), recipe_hash="other"),
    )
    found = compare_runs(read(*folders))
    (row,) = found.comparisons
    assert row.shots == "1"
    assert row.p_adjusted == row.p_value < 1.0
    assert row.mde80_adjusted == row.mde80
    assert all(
        method.accuracy["mean"] == method.accuracy["1"] for method in found.methods
    )


def test_means_over_other_shots_are_said_not_to_compare(make_run: MakeRun) -> None:
    one = {"learned": {1: [1.0, 0.0, 1.0, 0.0], 2: [1.0, 1.0, 0.0, 1.0]}}
    runs = read(
        make_run("long", results_from(one), recipe_hash="a"),
        make_run("short", results_from({"learned": {1: [0.0] * 4}}), recipe_hash="b"),
    )
    report = compare_runs(runs)
    assert [row.shots for row in report.comparisons] == ["1"]
    assert "they do not compare (long: 1, 2; short: 1)" in report.notes[-1]


@pytest.mark.slow
def test_seeds_of_one_recipe_are_combined_and_their_spread_widens_the_interval(
    make_run: MakeRun,
) -> None:
    rng = np.random.default_rng(3)
    folders = []
    for recipe, chances in (
        ("plain", (0.40, 0.48, 0.56)),
        ("other", (0.44, 0.52, 0.60)),
    ):
        for seed, chance in enumerate(chances):
            results = results_from(table(rng, chance))
            folders.append(
                make_run(
                    f"{recipe}{seed}",
                    results,
                    recipe=recipe,
                    recipe_hash=recipe,
                    seed=seed,
                )
            )
    report = compare_runs(read(*folders))
    assert [method.name for method in report.methods] == ["plain", "other"]
    row = report.comparisons[0]
    assert row.seeds == (3, 3)
    assert row.within_noise
    single = compare_runs(read(folders[0], folders[3])).comparisons[0]
    assert row.ci95[1] - row.ci95[0] > 1.2 * (single.ci95[1] - single.ci95[0])
    assert report.notes == []


@pytest.mark.slow
def test_an_arm_of_the_runs_can_be_the_baseline(make_run: MakeRun) -> None:
    rng = np.random.default_rng(5)
    folders = [
        make_run(f"r{seed}", results_from(table(rng, 0.7)), seed=seed)
        for seed in range(3)
    ]
    report = compare_runs(read(*folders), "zero_shot")
    assert {row.baseline for row in report.comparisons} == {"zero_shot"}
    assert report.comparisons[0].seeds == (3, 1)
    assert not report.comparisons[0].within_noise


@pytest.mark.slow
def test_equal_methods_are_called_within_noise_at_least_as_often_as_promised(
    make_run: MakeRun,
) -> None:
    rng = np.random.default_rng(11)
    claims = 0
    for trial in range(40):
        runs = read(
            make_run(f"a{trial}", results_from(table(rng, 0.5)), recipe_hash="a"),
            make_run(f"b{trial}", results_from(table(rng, 0.5)), recipe_hash="b"),
        )
        claims += any(not row.within_noise for row in compare_runs(runs).comparisons)
    assert claims <= 6  # 5 % of 40 are 2; more than 6 has a chance below 0.4 %


def test_the_same_run_twice_is_refused(make_run: MakeRun) -> None:
    results = results_from(table(np.random.default_rng(0), 0.5))
    with pytest.raises(EvaluationError, match="same recipe with the same seed"):
        compare_runs(read(make_run("a", results), make_run("b", results)))


def test_one_run_alone_needs_an_arm_to_compare_with(make_run: MakeRun) -> None:
    runs = read(make_run("a", results_from(table(np.random.default_rng(0), 0.5))))
    with pytest.raises(EvaluationError, match="nothing to compare with"):
        compare_runs(runs)
    with pytest.raises(EvaluationError, match="known: a, zero_shot"):
        compare_runs(runs, "nearest")


def test_different_prompts_or_pools_are_not_compared(make_run: MakeRun) -> None:
    results = results_from(table(np.random.default_rng(0), 0.5))
    folders = (
        make_run("a", results, recipe_hash="a"),
        make_run("b", results, recipe_hash="b", template="chat"),
    )
    with pytest.raises(EvaluationError, match="template plain and template chat"):
        compare_runs(read(*folders))
    with pytest.raises(EvaluationError, match="how candidate pools are built"):
        compare_runs(
            read(folders[0], make_run("c", results, recipe_hash="c", builder="other"))
        )


def test_a_result_chosen_on_test_is_said_to_be_so(make_run: MakeRun) -> None:
    rng = np.random.default_rng(0)
    runs = read(
        make_run("a", results_from(table(rng, 0.5)), recipe_hash="a"),
        make_run(
            "b", results_from(table(rng, 0.5)), recipe_hash="b", chosen_on_test=True
        ),
    )
    assert any("b was chosen on test" in note for note in compare_runs(runs).notes)


def test_predictions_for_items_that_do_not_exist_are_refused(make_run: MakeRun) -> None:
    folder = make_run("a", results_from(table(np.random.default_rng(0), 0.5)))
    results = read_predictions(folder / "predictions.parquet")
    path = folder / "predictions.parquet"
    results.items = [ItemId("ghost"), *results.items[1:]]
    for by_shots in results.draws.values():
        for draws in by_shots.values():
            draws[0][0] = type(draws[0][0])(ItemId("ghost"), (), "x", 1.0)
    write_predictions(results, path)
    with pytest.raises(EvaluationError, match="hold different items"):
        read_evaluated(folder)


def test_a_result_without_conditions_or_files_says_what_to_type(
    make_run: MakeRun, tmp_path: Path
) -> None:
    folder = make_run("a", results_from(table(np.random.default_rng(0), 0.5)))
    (folder / "eval.json").write_text(
        json.dumps({"n": 3, "arms": {"a": {"shots": {}}}})
    )
    with pytest.raises(LeverError, match="lever eval"):
        read_evaluated(folder)
    with pytest.raises(LeverError, match=r"run\.json is not there"):
        read_evaluated(tmp_path / "nowhere")
