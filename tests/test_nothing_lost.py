"""What was paid for is never lost: a part that fails is a note, small cases have a result, a kill costs nothing."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from forked import LEVER, Forker
from tiny_world import TinyRun, copy_store, tiny_arguments

from leverplus.cli.main import main
from leverplus.data.rundir import read_json
from leverplus.evaluate.predictions import read_predictions
from leverplus.evaluate.record import record_of
from leverplus.run.evaluate import run_all
from leverplus.run.run import load_run
from leverplus.scores.store import ScoreStore

KILLED = -9


def copied(tiny_run: TinyRun, place: Path) -> Path:
    """A run with its training done and its evaluation still to come."""
    folder = shutil.copytree(tiny_run.folder, place)
    for name in ("eval.json", "predictions.parquet", "findings.json", "report.html"):
        (folder / name).unlink()
    return folder


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("no such luck")


BREAKABLE = {
    "arms": "leverplus.evaluate.evaluate.known_interval",
    "comparisons": "leverplus.run.evaluate.comparisons",
    "regret": "leverplus.run.evaluate.regret_table",
    "advice": "leverplus.run.evaluate.advise_by",
    "findings.json": "leverplus_doctor.monitor.examine_run",
    "report.html": "leverplus.web.report.build_report",
}


@pytest.mark.slow
def test_parts_that_fail_are_notes_and_are_made_up_by_the_same_command(
    tiny_run: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(tiny_run, tmp_path / "run")
    said: list[str] = []
    with monkeypatch.context() as patch:
        for place in BREAKABLE.values():
            patch.setattr(place, broken)
        found = run_all(load_run(folder, tiny_run.store, said.append))
    assert found.notes == [
        f"{part} is missing: ZeroDivisionError: no such luck" for part in BREAKABLE
    ]
    for part in BREAKABLE:
        assert any(line.startswith(f"note: {part} is missing") for line in said)
    kept = read_json(folder / "eval.json")
    assert kept == found.as_json()
    assert record_of(kept).n
    assert (
        kept["arms"]["learned"]["shots"] == tiny_run.report["arms"]["learned"]["shots"]
    )
    assert len(read_predictions(folder / "predictions.parquet").items) == 10
    again = load_run(folder, tiny_run.store)
    run_all(again)
    assert again.scorer.meter.fresh == 0
    assert (folder / "eval.json").read_bytes() == (
        tiny_run.folder / "eval.json"
    ).read_bytes()
    assert (folder / "report.html").is_file()


KILL_BEFORE_THE_REPORT = """
import leverplus.web.report as build
build.build_report = lambda run: os.kill(os.getpid(), signal.SIGKILL)
"""

KILL_BEFORE_THE_RECORD_IS_WHOLE = """
import leverplus.run.evaluate as evaluate
evaluate.comparisons = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill",
    [KILL_BEFORE_THE_REPORT, KILL_BEFORE_THE_RECORD_IS_WHOLE],
    ids=["report", "record"],
)
def test_a_run_killed_after_its_last_answer_ends_in_seconds_and_asks_nothing(
    kill: str, tiny_run: TinyRun, tmp_path: Path, forker: Forker
) -> None:
    folder, store = tmp_path / "run", tmp_path / "scores.db"
    copy_store(tiny_run.store, store)
    lever = LEVER.format(words=tiny_arguments(folder, store))
    assert forker.run(f"import os, signal\n{kill}\n{lever}") == KILLED
    assert record_of(read_json(folder / "eval.json")).n
    assert not (folder / "report.html").exists()
    asked = ScoreStore(store).count()
    started = time.monotonic()
    assert main(tiny_arguments(folder, store)) == 0
    assert time.monotonic() - started < 30
    assert ScoreStore(store).count() == asked
    assert (folder / "eval.json").read_bytes() == (
        tiny_run.folder / "eval.json"
    ).read_bytes()
    assert (folder / "report.html").is_file()


SMALL = {
    "one of everything": (
        "eval.items=1",
        "score.queries=1",
        "eval.dev_items=1",
        "score.dev_queries=1",
    ),
    "a pool of as many as are shown": ("pool.size=2", "score.queries=8"),
    "eight shots only": ("eval.shots=[8]", "select.max_shots=8", "score.queries=8"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SMALL)
def test_the_smallest_runs_end_with_a_table_and_without_notes(
    case: str, tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [word for override in SMALL[case] for word in ("--set", override)]
    assert (
        main(
            [
                *tiny_arguments(tmp_path / "run", tiny_run.store),
                *sets,
                "--ignore-findings",
            ]
        )
        == 0
    )
    assert "who chooses" in capsys.readouterr().out
    found = read_json(tmp_path / "run" / "eval.json")
    assert found["notes"] == []
    assert record_of(found).n
    assert (tmp_path / "run" / "report.html").is_file()
    if found["n"] == 1:
        assert found["arms"]["learned"]["ci95"] == {"1": None, "2": None}
        assert all(
            row["ci95"] == [-1.0, 1.0] and row["p_value"] == 1.0
            for row in found["comparisons"]
        )
    json.dumps(found, allow_nan=False)
