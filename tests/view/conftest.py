"""A folder of runs for the page: two real tiny runs, one of a newer version, a half-written one, one in training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tiny_world import TinyRun, run_tiny
from viewed import client_of

from leverplus.evaluation.conditions import items_hash
from leverplus.evaluation.predictions import Results, read_predictions, write_predictions


def _on_fewer_items(folder: Path) -> None:
    """The run as if it had been evaluated on all but its last two items."""
    old = read_predictions(folder / "predictions.parquet")
    fewer = Results(old.items[:-2], old.images[:-2])
    for arm, shots, draw in old:
        fewer.add(arm, shots, draw[:-2])
    write_predictions(fewer, folder / "predictions.parquet")
    report = json.loads((folder / "eval.json").read_text())
    report["n"], report["conditions"]["items"] = len(fewer.items), items_hash(fewer.items)
    (folder / "eval.json").write_text(json.dumps(report))


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_run: TinyRun) -> Path:
    """Session-wide; tests that change a run copy it first."""
    root = tmp_path_factory.mktemp("page") / "runs"
    root.mkdir()
    shutil.copytree(tiny_run.folder, root / "first")
    run_tiny(root / "second", tiny_run.store, "--set", "sft.lr=0.01")
    _on_fewer_items(shutil.copytree(tiny_run.folder, root / "elsewhere"))
    files = ("run.json", "resolved.toml", "recipe.toml")
    for name in ("newer", "live"):
        (root / name).mkdir()
        for file in files:
            shutil.copy(root / "first" / file, root / name)
    manifest = json.loads((root / "newer" / "run.json").read_text())
    manifest["versions"]["leverplus"] = "9.1.0"
    (root / "newer" / "run.json").write_text(json.dumps(manifest))
    (root / "newer" / "eval.json").write_text('{"n": 3, "arms": {"learned": {"shots": {}}}, "comparisons": "moved"}')
    lines = (root / "first" / "log.jsonl").read_text().splitlines(keepends=True)
    (root / "live" / "log.jsonl").write_text(lines[0] + lines[1][:40])
    (root / "half").mkdir()
    (root / "half" / "run.json").write_text('{"recipe": "wor')
    (root / "half" / "predictions.parquet").write_bytes(b"PAR1 cut short")
    (root / "notes").mkdir()
    return root


@pytest.fixture(scope="session")
def client(runs: Path) -> TestClient:
    return client_of(runs)
