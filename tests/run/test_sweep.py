"""A sweep chooses on dev, looks at test for the chosen one only, goes on where it stopped, and looks once."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_world import TINY

from leverplus.data.rundir import read_json, write_json
from leverplus.errors import EvaluationError, RecipeError, UnknownName
from leverplus.run.sweep import (
    Workshop,
    configurations,
    read_grid,
    search_grid,
)
from leverplus.scores.store import ScoreStore

GRID = {"sft.lr": ["1e-3", "1e-4"]}
SETS = [
    *TINY,
    "score.budget=200",
    "sft.epochs=1",
    "eval.diagnostics=false",
    "eval.oracle=false",
]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A finished sweep of two learning rates, two seeds each; tests read it or work on a copy."""
    place = tmp_path_factory.mktemp("sweep")
    workshop = Workshop(place / "runs", place / "scores.db")
    search_grid("world", SETS, GRID, 2, workshop)
    return workshop


@pytest.fixture
def copied(swept: Workshop, tmp_path: Path) -> Workshop:
    return replace(swept, folder=Path(shutil.copytree(swept.folder, tmp_path / "runs")))


@pytest.mark.slow
def test_the_configuration_with_the_best_mean_on_dev_is_chosen_and_all_are_counted(
    swept: Workshop,
) -> None:
    record = read_json(swept.folder / "sweep.json")
    means = {row["hash"]: sum(row["dev"].values()) / 2 for row in record["tried"]}
    for row in record["tried"]:
        first, second = row["dev"].values()
        assert row["spread"] == pytest.approx(abs(first - second) / 2**0.5)
    assert len(means) == record["configurations"] == 2
    assert all(set(row["dev"]) == {"0", "1"} for row in record["tried"])
    assert record["chosen"]["mean"] == pytest.approx(max(means.values()))
    assert means[record["chosen"]["hash"]] == max(means.values())
    assert record["grid"] == GRID
    assert {row["set"]["sft.lr"] for row in record["tried"]} == {"1e-3", "1e-4"}


@pytest.mark.slow
def test_the_dev_reward_is_that_of_the_best_epoch_in_the_log(swept: Workshop) -> None:
    for row in read_json(swept.folder / "sweep.json")["tried"]:
        for seed, reward in row["dev"].items():
            log = (
                (swept.folder / f"{row['hash']}-seed{seed}" / "log.jsonl")
                .read_text()
                .splitlines()
            )
            assert reward >= max(json.loads(line)["val/reward"] for line in log) - 1e-9


@pytest.mark.slow
def test_test_is_looked_at_for_the_chosen_one_only_with_all_its_seeds(
    swept: Workshop,
) -> None:
    record = read_json(swept.folder / "sweep.json")
    looked = {path.parent.name for path in swept.folder.glob("*/eval.json")}
    assert looked == {f"{record['chosen']['hash']}-seed{seed}" for seed in (0, 1)}
    assert record["test"]["seeds"] == [0, 1]
    reports = [read_json(swept.folder / name / "eval.json") for name in sorted(looked)]
    mean = sum(report["arms"]["learned"]["mean"] for report in reports) / 2
    assert record["test"]["accuracy"]["mean"] == pytest.approx(mean)
    assert {row["baseline"] for row in record["test"]["comparisons"]} == {
        "nearest_both"
    }


@pytest.mark.slow
def test_repeating_a_finished_sweep_says_the_same_and_asks_nothing(
    swept: Workshop,
) -> None:
    before, asked = (
        read_json(swept.folder / "sweep.json"),
        ScoreStore(swept.store).count(),
    )
    assert search_grid("world", SETS, GRID, 2, swept) == before
    assert ScoreStore(swept.store).count() == asked


@pytest.mark.slow
def test_a_sweep_that_was_stopped_goes_on_to_the_same_end(copied: Workshop) -> None:
    whole = read_json(copied.folder / "sweep.json")
    first = {key: whole["tried"][0][key] for key in ("set", "hash", "dev")}
    lost = whole["tried"][1]["hash"]
    write_json(copied.folder / "sweep.json", {"recipe": "world", "tried": [first]})
    shutil.rmtree(copied.folder / f"{lost}-seed1")
    assert search_grid("world", SETS, GRID, 2, copied) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "seeds"), [({"sft.lr": ["1e-3", "1e-4", "1e-5"]}, 2), (GRID, 3)]
)
def test_a_larger_grid_or_more_seeds_are_refused_after_test_was_seen(
    copied: Workshop, grid: dict[str, list[str]], seeds: int
) -> None:
    with pytest.raises(
        EvaluationError, match=r"has looked at test for sft\.lr=.* out of 2 .*--out DIR"
    ):
        search_grid("world", SETS, grid, seeds, copied)
    assert len(list(copied.folder.glob("*-seed*"))) == 4, "nothing was trained"


@pytest.mark.slow
def test_a_configuration_left_out_of_a_smaller_grid_still_counts_as_tried(
    copied: Workshop,
) -> None:
    record = read_json(copied.folder / "sweep.json")
    del record["test"]
    write_json(copied.folder / "sweep.json", record)
    kept = record["chosen"]["set"]["sft.lr"]
    again = search_grid("world", SETS, {"sft.lr": [kept]}, 2, copied)
    assert again["configurations"] == 2
    assert again["chosen"] == record["chosen"]


@pytest.mark.slow
def test_a_folder_of_another_recipe_is_refused(copied: Workshop) -> None:
    with pytest.raises(EvaluationError, match="is a sweep of recipe world, not best"):
        search_grid("best", [], {"listwise.lr": ["1e-3"]}, 1, copied)


def test_commas_inside_lists_and_quotes_do_not_separate_values() -> None:
    values = read_grid(['eval.shots=[1,2],[1, 2, 3], "a,b" ,c'])["eval.shots"]
    assert values == ["[1,2]", "[1, 2, 3]", '"a,b"', "c"]


def test_every_problem_of_a_grid_is_reported_at_once() -> None:
    with pytest.raises(RecipeError) as caught:
        read_grid(["lr=1,2", "sft.lr", "sft.lr=1e-3", "sft.lr=1e-4"])
    assert len(caught.value.problems) == 3
    assert "sft.lr is given twice" in caught.value.problems[2]


def test_configurations_are_all_combinations_and_each_is_another_experiment() -> None:
    found = configurations(
        "world", [], {"sft.lr": ["1e-3", "1e-4"], "sft.epochs": ["1", "2", "3"]}
    )
    assert len(found) == 6
    _, last = list(found.values())[-1]
    assert (last.stages["sft"].lr, last.stages["sft"].epochs) == (1e-4, 3)
    with pytest.raises(
        RecipeError, match=r"sft\.lr=0\.001 and sft\.lr=1e-3 are the same experiment"
    ):
        configurations("world", [], {"sft.lr": ["1e-3", "0.001"]})
    with pytest.raises(RecipeError, match=r"sft\.lrr"):
        configurations("world", [], {"sft.lrr": ["1e-3"]})
    with pytest.raises(UnknownName):
        configurations("nowhere", [], {"sft.lr": ["1e-3"]})
