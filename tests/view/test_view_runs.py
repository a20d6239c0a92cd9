"""A folder of runs: which there are, in which state, made by which version."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from leverplus import __version__
from leverplus.errors import DataError, MissingFile
from leverplus.folder import PULSE
from leverplus.pipeline import load_run
from leverplus.report.data import newer, require_manifest
from leverplus.view.runs import LIVE_SECONDS, RunsFolder


def test_a_run_folder_is_a_folder_of_one(runs: Path) -> None:
    alone = RunsFolder(runs / "first")
    assert alone.names() == ["first"]
    assert alone.folder("first") == (runs / "first").resolve()


def test_a_folder_that_is_not_there_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"there is no folder .*lever run --out"):
        RunsFolder(tmp_path / "none")
    assert RunsFolder(tmp_path).names() == []


def test_a_run_without_results_is_training_while_its_files_change(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "live", tmp_path / "live")
    os.utime(folder / "log.jsonl")
    assert RunsFolder(tmp_path).summary("live").state == "training"
    past = time.time() - LIVE_SECONDS - 5
    for path in folder.iterdir():
        os.utime(path, (past, past))
    assert RunsFolder(tmp_path).summary("live").state == "stopped"


def test_a_run_that_only_scores_is_training(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "live", tmp_path / "live")
    past = time.time() - LIVE_SECONDS - 5
    for path in folder.iterdir():
        os.utime(path, (past, past))
    listed = RunsFolder(tmp_path)
    assert listed.summary("live").state == "stopped"
    run = load_run(folder, tmp_path / "empty.db")
    (query,) = run.chosen_items("dev", 1)
    run.scorer.score([(query.id, ())])
    assert listed.summary("live").state == "training"
    os.utime(folder / PULSE, (past, past))
    assert listed.summary("live").state == "stopped"


def test_a_slow_run_is_waited_for_three_times_as_long_as_its_last_piece_took(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "live", tmp_path / "live")
    for text, age, state in (
        ('{"seconds": 400}', 1100, "training"),
        ('{"seconds": 400}', 1300, "stopped"),
        ('{"seconds": 2}', 200, "training"),
        ('{"seconds": 2}', 400, "stopped"),
        ('{"seco', 200, "training"),
        ('{"seco', 400, "stopped"),
    ):
        (folder / PULSE).write_text(text)
        for path in folder.iterdir():
            os.utime(path, (time.time() - age,) * 2)
        assert RunsFolder(tmp_path).summary("live").state == state, (text, age)


def test_a_line_is_read_again_when_its_results_change(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "live", tmp_path / "live")
    listed = RunsFolder(tmp_path)
    assert listed.summary("live").n is None
    shutil.copy(runs / "first" / "eval.json", folder)
    assert listed.summary("live").n == 10


@pytest.mark.parametrize(
    ("made", "is_newer"),
    [(__version__, False), ("0.0.9", False), ("0.1.1", True), ("9.0.0+local", True), ("nonsense", False), ("", False)],
)
def test_versions_are_compared_as_numbers(made: str, is_newer: bool) -> None:
    assert bool(newer({"versions": {"leverplus": made}})) is is_newer


def test_a_manifest_must_be_whole_and_of_this_version(runs: Path) -> None:
    require_manifest(runs / "first")
    with pytest.raises(DataError, match=r"no whole run\.json"):
        require_manifest(runs / "half")
    with pytest.raises(DataError, match=r"made by leverplus 9\.1\.0"):
        require_manifest(runs / "newer")
