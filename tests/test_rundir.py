"""The files of a run folder: replaced at once, and a heartbeat that is written seldom."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from leverplus.data import rundir as module
from leverplus.data.rundir import (
    MANIFEST,
    PROGRESS,
    SHIPPED,
    Heartbeat,
    read_json,
    write_json,
)


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["value.json"]


def test_a_heartbeat_is_written_at_most_every_five_seconds_with_the_time_of_the_last_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, 103.0, 104.9, 105.5, 300.5])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    write_json(tmp_path / MANIFEST, {})
    heartbeat, seen = Heartbeat(tmp_path), []
    for done in range(5):
        heartbeat.beat("scoring", done, 4)
        seen.append(read_json(tmp_path / PROGRESS))
    assert [value["done"] for value in seen] == [0, 0, 0, 3, 4]
    assert [value["seconds"] for value in seen] == [0.0, 0.0, 0.0, 0.6, 195.0]
    assert seen[-1] == {"what": "scoring", "done": 4, "total": 4, "seconds": 195.0}
    assert {file.name for file in tmp_path.iterdir()} == {MANIFEST, PROGRESS}


def test_nothing_is_written_where_there_is_no_run(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        Heartbeat(folder).beat("scoring", 0, 2)
    assert list(tmp_path.iterdir()) == []


PACKAGE = Path(module.__file__).parents[1]
MODULES = sorted(PACKAGE.parent.glob("leverplus*/**/*.py"))
MODELS = ("leverplus/models/hf/", "leverplus/encode/", "leverplus/run/prompt.py")
"""A model's folder has a config.json and weights of the same names."""


def test_only_rundir_writes_the_names_of_files_of_a_run() -> None:
    names = {
        value
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    } - {SHIPPED}
    assert len(MODULES) > 200
    found = []
    for path in MODULES:
        own = str(path.relative_to(PACKAGE.parent))
        if own == "leverplus/data/rundir.py" or own.startswith(MODELS):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            joins = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
            named = isinstance(node, ast.BinOp) and getattr(node.right, "value", "")
            if joins and named in names:
                found.append((own, named))
    assert found == []
