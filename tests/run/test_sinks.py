"""Sinks of the training log: each is given what log.jsonl holds, and none can end a training."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_world import TinyRun, copy_store, run_tiny

from leverplus.cli.main import main
from leverplus.data import rundir
from leverplus.learn.runlog import RunLog
from leverplus.run import sinks
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import Run, open_run
from leverplus.run.sinks import LogSinks, numbers_of

LINES: list[tuple[dict[str, Any], dict[str, float], dict[str, float]]] = [
    (
        {"stage": "sft", "epoch": 1, "step": 4, "lvlm_calls": 30},
        {"loss/total": 2.5, "lr": 0.1},
        {"reward@1": 0.25},
    ),
    (
        {"stage": "sft", "epoch": 2, "step": 8, "lvlm_calls": 60},
        {"loss/total": 1.5, "lr": float("nan")},
        {"reward@1": 0.5},
    ),
]


@pytest.fixture
def said() -> list[str]:
    return []


def make_run(tmp_path: Path, said: list[str], *names: str) -> Run:
    recipe = load_recipe("world", [f"train.log_to={list(names)}"])
    run = open_run(
        recipe,
        find_recipe("world"),
        tmp_path / "run",
        seed=3,
        store_path=tmp_path / "s.db",
        say=said.append,
    )
    (run.folder / rundir.LOG).unlink(missing_ok=True)
    return run


def write_all(run: Run) -> LogSinks:
    """What a training does: the log first, then the sinks."""
    given = LogSinks(run)
    log = RunLog(run.folder / rundir.LOG, given.write)
    for context, train, val in LINES:
        log.write(context, train, val)
    given.close()
    return given


class Kept:
    """A tracker that keeps what it is given, and fails where it is told to."""

    def __init__(self, fails: str = "") -> None:
        self.given: list[tuple[dict[str, float], int]] = []
        self.fails, self.closed = fails, False
        if fails == "open":
            raise OSError("no such server\nand more")

    def log(self, numbers: Any, step: int) -> None:
        if self.fails == "write":
            raise RuntimeError("disk full")
        self.given.append((dict(numbers), step))

    def finish(self) -> None:
        if self.fails == "close":
            raise RuntimeError("cannot say goodbye")
        self.closed = True


def opening(monkeypatch: pytest.MonkeyPatch, **fails: str) -> dict[str, Kept]:
    """Trackers that keep what they are given, in place of real ones; those that fail by when they do."""
    made: dict[str, Kept] = {}

    def open_tracker(name: str, _: Run) -> Kept:
        made[name] = Kept(fails.get(name, ""))
        return made[name]

    monkeypatch.setattr(sinks, "open_tracker", open_tracker)
    return made


def test_a_line_becomes_numbers_under_its_stage_and_what_is_not_finite_is_left_out(
    tmp_path: Path, said: list[str]
) -> None:
    run = make_run(tmp_path, said)
    write_all(run)
    lines = RunLog(run.folder / rundir.LOG).lines()
    assert numbers_of(lines[0]) == {
        "sft/train/loss/total": 2.5,
        "sft/train/lr": 0.1,
        "sft/val/reward_1": 0.25,
        "sft/lvlm_calls": 30.0,
    }
    assert "sft/train/lr" not in numbers_of(lines[1])


def test_a_sink_is_given_every_line_also_those_of_before_an_interruption(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = opening(monkeypatch)
    run = make_run(tmp_path, said, "wandb")
    RunLog(run.folder / rundir.LOG).write({"stage": "rce", "epoch": 1}, {"lr": 1.0}, {})
    write_all(run)
    given = made["wandb"].given
    assert [min(numbers).partition("/")[0] for numbers, _ in given] == [
        "rce",
        "sft",
        "sft",
    ]
    assert [step for _, step in given] == [1, 2, 3]
    assert made["wandb"].closed
    assert said == []


@pytest.mark.parametrize("when", ["open", "write", "close"])
def test_a_failing_sink_costs_one_note_and_the_others_go_on(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    made = opening(monkeypatch, wandb=when)
    run = make_run(tmp_path, said, "wandb", "mlflow")
    write_all(run)
    assert len(said) == 1
    start = "note: wandb gets nothing of this training from here on ("
    assert said[0].startswith(start)
    assert "\n" not in said[0]
    assert len(made["mlflow"].given) == 2
    assert made["mlflow"].closed
    assert len(RunLog(run.folder / rundir.LOG).lines()) == 2, "our own log is whole"


def test_a_package_that_is_missing_is_named_with_what_to_type(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate.tracking", None)
    write_all(make_run(tmp_path, said, "wandb"))
    assert 'pip install -e ".[wandb]"' in said[0]


def test_a_recipe_names_sinks_and_an_unknown_one_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain, named = (
        load_recipe("world", []),
        load_recipe("world", ['train.log_to=["wandb"]']),
    )
    assert named.train.log_to == ("wandb",)
    assert plain.train.log_to == ()
    assert main(["check", "world", "--set", 'train.log_to=["excel"]']) == 1
    assert "excel" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_tensorboard_files_hold_the_numbers(tmp_path: Path, said: list[str]) -> None:
    pytest.importorskip(
        "tensorboard", reason="tensorboard is not installed; type `make test-adapters`"
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = make_run(tmp_path, said, "tensorboard")
    write_all(run)
    assert said == []
    found = EventAccumulator(str(run.folder / rundir.SINKS / "tensorboard"))
    found.Reload()
    assert [
        (event.step, event.value) for event in found.Scalars("sft/train/loss/total")
    ] == [(1, 2.5), (2, 1.5)]


@pytest.mark.filterwarnings("default")
def test_mlflow_keeps_numbers_and_settings_without_a_server(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(
        "mlflow", reason="mlflow is not installed; type `make test-adapters`"
    )
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = make_run(tmp_path, said, "mlflow")
    write_all(run)
    assert said == []
    client = MlflowClient((run.folder / rundir.SINKS / "mlflow").resolve().as_uri())
    experiment = client.get_experiment_by_name("leverplus")
    kept = client.search_runs([experiment.experiment_id])[0]
    history = client.get_metric_history(kept.info.run_id, "sft/val/reward_1")
    assert [(value.step, value.value) for value in history] == [(1, 0.25), (2, 0.5)]
    assert kept.data.params["seed"] == "3"
    assert kept.info.status == "FINISHED"


@pytest.mark.filterwarnings("default")
def test_wandb_writes_an_offline_run(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(
        "wandb", reason="wandb is not installed; type `make test-adapters`"
    )
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = make_run(tmp_path, said, "wandb")
    write_all(run)
    assert said == []
    files = list((run.folder / rundir.SINKS / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 1
    until = (
        time.monotonic() + 60
    )  # its own process writes the file, after `finish` has returned
    while b"sft/train/loss/total" not in files[0].read_bytes():
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.slow
def test_a_training_with_a_sink_logs_what_one_without_logs(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command, with a sink that keeps and one that fails; every answer is in the store already."""
    made = opening(monkeypatch, mlflow="write")
    store = copy_store(tiny_run.store, tmp_path / "s.db")
    done = run_tiny(tmp_path / "run", store, "--set", 'train.log_to=["wandb","mlflow"]')
    lines = RunLog(done.folder / rundir.LOG).lines()
    assert [numbers_of(line) for line in lines] == [
        own for own, _ in made["wandb"].given
    ]
    assert len(lines) == 3
    assert made["wandb"].closed
    same = (tiny_run.folder / rundir.LOG).read_bytes()
    assert (done.folder / rundir.LOG).read_bytes() == same
