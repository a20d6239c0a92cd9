"""Runs for the pages: a hostile one for the report; a folder of real tiny ones, half-written and damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from report_run import HostileTask, Made, make_record, make_results, write_run
from tiny_world import TinyRun, run_tiny
from viewed import client_of

from leverplus.evaluate.conditions import items_hash
from leverplus.evaluate.predictions import (
    Results,
    read_predictions,
    write_predictions,
)
from leverplus.evaluate.record import EvaluationRecord
from leverplus.web.report import build_report


@pytest.fixture(scope="session")
def task() -> HostileTask:
    return HostileTask()


@pytest.fixture
def made(tmp_path: Path, task: HostileTask) -> Made:
    return write_run(tmp_path / "run", task)


@pytest.fixture(scope="session")
def report_address(tmp_path_factory: pytest.TempPathFactory, task: HostileTask) -> str:
    """The report of such a run, built once for all who only look at it."""
    folder = tmp_path_factory.mktemp("report") / "run"
    return build_report(write_run(folder, task)).as_uri()


@pytest.fixture(scope="session")
def results(task: HostileTask) -> Results:
    return make_results(task)


@pytest.fixture(scope="session")
def record(task: HostileTask, results: Results) -> EvaluationRecord:
    return make_record(task, results)


def _on_fewer_items(folder: Path) -> None:
    """The run as if it had been evaluated on all but its last two items."""
    old = read_predictions(folder / "predictions.parquet")
    fewer = Results(old.items[:-2], old.images[:-2])
    for arm, shots, draw in old:
        fewer.add(arm, shots, draw[:-2])
    write_predictions(fewer, folder / "predictions.parquet")
    report = json.loads((folder / "eval.json").read_text())
    report["n"] = len(fewer.items)
    report["conditions"]["items"] = items_hash(fewer.items)
    (folder / "eval.json").write_text(json.dumps(report))


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_run: TinyRun) -> Path:
    """Session-wide; tests that change a run copy it first."""
    root = tmp_path_factory.mktemp("page") / "runs"
    root.mkdir()
    shutil.copytree(tiny_run.folder, root / "first")
    run_tiny(root / "second", tiny_run.store, "--set", "sft.lr=0.01")
    _on_fewer_items(shutil.copytree(tiny_run.folder, root / "elsewhere"))
    (root / "live").mkdir()
    for file in ("run.json", "resolved.toml", "recipe.toml"):
        shutil.copy(root / "first" / file, root / "live")
    lines = (root / "first" / "log.jsonl").read_text().splitlines(keepends=True)
    (root / "live" / "log.jsonl").write_text(lines[0] + lines[1][:40])
    (root / "half").mkdir()
    (root / "half" / "run.json").write_text('{"recipe": "wor')
    (root / "half" / "eval.json").write_text('{"n": 3, "arms": "moved"}')
    (root / "half" / "predictions.parquet").write_bytes(b"PAR1 cut short")
    (root / "notes").mkdir()
    return root


@pytest.fixture(scope="session")
def client(runs: Path) -> TestClient:
    return client_of(runs)
