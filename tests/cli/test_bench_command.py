"""`lever bench --quick`: measured once, gone on from one file, and the same figures as a whole evaluation gives."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from leverplus.cli.main import main
from leverplus.errors import DataError
from leverplus.experiment.evaluate import evaluate_run
from leverplus.experiment.opening import load_run
from leverplus.lab.benchmark import BenchmarkPlan, quick_plan
from leverplus.lab.jobs import Workplace, do_job
from leverplus.lab.records import FILE, Records
from leverplus.rundir import read_json
from leverplus.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.slow
RUN = "listwise-1200-world0-seed0"


def arguments(folder: Path, *more: str) -> list[str]:
    return ["bench", "--quick", "--methods", "listwise", "--seeds", "1", "--out", str(folder), *more]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "out"
    assert main(arguments(folder)) == 0
    return folder


def test_a_quick_benchmark_writes_one_file_of_results_and_its_table_three_times(quick: Path) -> None:
    records = Records.read(quick)
    assert sorted(records.found) == ["arms/0/world0/seed0", "listwise/1200/world0/seed0"]
    assert records.failed == {}
    assert {path.name for path in quick.iterdir()} == {FILE, "bench.json", "bench.md", "bench.svg", "runs"}
    found = read_json(quick / "bench.json")
    (row,) = found["methods"]
    assert (row["method"], row["budget"], row["seeds"], row["n"]) == ("listwise", 1_200, [0], 12)
    assert 0 < row["model_calls"] <= 1_200
    assert row["seconds"] > 0
    assert (quick / "bench.md").read_text().startswith("Quick sizes")


def test_a_selector_measured_alone_has_the_figures_of_a_whole_evaluation(quick: Path) -> None:
    records = Records.read(quick).found
    alone, arms = records["listwise/1200/world0/seed0"], records["arms/0/world0/seed0"]
    run = load_run(quick / "runs" / RUN, quick / "runs" / "stores" / "world0.db")
    whole = evaluate_run(run, load_checkpoint(run.folder / "checkpoints" / "listwise")[0])
    assert whole["conditions"]["hash"] == alone["conditions"] == arms["conditions"]
    assert run.scorer.meter.fresh > 0, "only the diagnostics are new"
    for n in ("1", "2"):
        assert np.mean(alone["accuracy"]["learned"][n]) == pytest.approx(whole["arms"]["learned"]["shots"][n])
        for arm in ("random", "nearest_both", "two_stage", "mmr", "oracle"):
            assert np.mean(arms["accuracy"][arm][n]) == pytest.approx(whole["arms"][arm]["shots"][n])
    share = whole["gap_closed"]["nearest_both"]["mean"]
    nearest = next(row for row in read_json(quick / "bench.json")["arms"] if row["arm"] == "nearest_both")
    assert nearest["gap_closed"]["mean"]["share"] == pytest.approx(share)
    assert alone["eval_calls"] == 24, "two numbers of shots on twelve items"


def test_another_machine_goes_on_from_the_results_alone(
    quick: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(quick / FILE, tmp_path / FILE)
    assert main(arguments(tmp_path, "--json", "--jobs", "2", "--minutes", "5")) == 0
    assert json.loads(capsys.readouterr().out) == read_json(quick / "bench.json")
    assert not (tmp_path / "runs").exists(), "nothing was trained again"


def test_fewer_questions_and_other_pools_are_measured_in_the_same_way(quick: Path) -> None:
    (job,) = [
        job
        for job in BenchmarkPlan(**{**quick_plan("methods"), "methods": ("listwise",), "seeds": 1}).jobs()
        if job.method
    ]
    few = replace(job, queries=6, pools=(8,))
    found = do_job(few, Workplace(quick / "runs"))
    assert list(found) == few.marks()
    usual, small = found.values()
    whole = Records.read(quick).found["listwise/1200/world0/seed0"]
    assert usual["groups"] == 6 < whole["groups"]
    assert usual["model_calls"] < whole["model_calls"]
    assert usual["conditions"] == whole["conditions"] != small["conditions"]
    assert (usual["pool"], small["pool"]) == (12, 8)
    assert not list((quick / "runs" / few.folder / "checkpoints").glob("*-epoch*")), "only what is needed is kept"
    again = do_job(few, Workplace(quick / "runs"))
    assert {key: record["accuracy"] for key, record in again.items()} == {k: r["accuracy"] for k, r in found.items()}
    assert again[few.marks()[0]]["training_seconds"] == usual["training_seconds"], "they are kept with the run"


def test_without_time_nothing_is_started_and_the_rest_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path, "--json", "--minutes", "0")) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["left_out"]) == 2
    assert found["methods"] == found["arms"] == []


def test_damaged_results_are_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not gzip")
    with pytest.raises(DataError, match="is damaged"):
        Records.read(tmp_path)


def test_options_that_do_not_go_together_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "plans", "--jobs", "2"]) == 2
    assert "no --jobs" in capsys.readouterr().err
    assert main(["bench", "--recipes", "plan5"]) == 2
    assert "--methods" in capsys.readouterr().err
    assert main(["bench", "--methods", "magic"]) == 1
    assert "no method called 'magic'" in capsys.readouterr().err
