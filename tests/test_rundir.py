"""The files of a run folder: replaced at once, and a pulse that is written seldom."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from leverplus import rundir as module
from leverplus.rundir import MANIFEST, PULSE, Pulse, read_json, write_json


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["value.json"]


def test_a_pulse_is_written_at_most_every_five_seconds_with_the_time_of_the_last_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, 103.0, 104.9, 105.5, 300.5])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    write_json(tmp_path / MANIFEST, {})
    pulse, seen = Pulse(tmp_path), []
    for done in range(5):
        pulse.beat("scoring", done, 4)
        seen.append(read_json(tmp_path / PULSE))
    assert [value["done"] for value in seen] == [0, 0, 0, 3, 4]
    assert [value["seconds"] for value in seen] == [0.0, 0.0, 0.0, 0.6, 195.0]
    assert seen[-1] == {"what": "scoring", "done": 4, "total": 4, "seconds": 195.0}
    assert {file.name for file in tmp_path.iterdir()} == {MANIFEST, PULSE}


def test_nothing_is_written_where_there_is_no_run(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        Pulse(folder).beat("scoring", 0, 2)
    assert list(tmp_path.iterdir()) == []
