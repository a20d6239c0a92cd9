"""A folder of runs: which there are, in which state, made by which version."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from viewed import client_of, sentence

from leverplus import __version__
from leverplus.errors import DataError, MissingFile
from leverplus.experiment.opening import load_run
from leverplus.report.data import newer_version_note, require_manifest
from leverplus.rundir import PROGRESS
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
    for path in folder.iterdir():
        os.utime(path, (past, past))
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
        (folder / PROGRESS).write_text(text)
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
    [
        (__version__, False),
        ("0.0.9", False),
        ("0.1.1", False),
        ("0.99", True),
        ("9.0.0+local", True),
        ("nonsense", False),
        ("", False),
    ],
)
def test_versions_are_compared_as_numbers(made: str, is_newer: bool) -> None:
    assert bool(newer_version_note({"versions": {"leverplus": made}})) is is_newer


def test_a_manifest_must_be_whole_and_of_this_version(runs: Path) -> None:
    require_manifest(runs / "first")
    with pytest.raises(DataError, match=r"no whole run\.json"):
        require_manifest(runs / "half")
    with pytest.raises(DataError, match=r"made by leverplus 9\.1\.0"):
        require_manifest(runs / "newer")


DAMAGE = {
    "another encoding": ("resolved.toml", b"\xff\xfe\x00broken"),
    "nested too deep": ("eval.json", b'{"n":' + b"[" * 100_000),
    "a list": ("run.json", b"[]"),
    "nothing": ("run.json", b""),
    "strange arms": ("eval.json", b'{"n": 3, "arms": {"learned": []}, "comparisons": [], "split": 7}'),
    "a log of other things": ("log.jsonl", b'{"stage": {"a": []}}\n[1]\n\xff\n' + b"[" * 50_000),
    "a number of many digits": ("run.json", b'{"recipe": "x", "seed": ' + b"9" * 5_000 + b"}"),
    "strange findings": ("findings.json", b'{"findings": [{"code": 1, "title": []}, 3]}'),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_one_damaged_run_never_hides_the_others(runs: Path, tmp_path: Path, name: str) -> None:
    file, content = DAMAGE[name]
    for run in ("whole", "hurt"):
        shutil.copytree(runs / "first", tmp_path / run)
    (tmp_path / "hurt" / file).write_bytes(content)
    client = client_of(tmp_path)
    listed = client.get("/")
    assert listed.status_code == 200
    assert "whole" in listed.text
    assert "hurt" in listed.text
    assert client.get("/run/whole").status_code == 200
    assert client.get("/run/hurt").status_code in (200, 422)


def test_a_run_that_cannot_be_read_is_listed_as_damaged_with_the_reason(runs: Path, tmp_path: Path) -> None:
    for run in ("whole", "hurt"):
        shutil.copytree(runs / "first", tmp_path / run)
    (tmp_path / "hurt" / "resolved.toml").write_bytes(b"\xff\xfe")
    listed = {summary.name: summary for summary in RunsFolder(tmp_path).summaries()}
    assert listed["whole"].state == "finished"
    assert listed["hurt"].state == "damaged"
    assert "UnicodeDecodeError" in listed["hurt"].verdict
    client = client_of(tmp_path)
    assert "hurt" in client.get("/", params={"state": "damaged"}).text
    assert "hurt is damaged" in sentence(client.get("/run/hurt").text)
