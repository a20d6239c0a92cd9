"""A full or read-only disk ends with one sentence that names the file, and leaves nothing half written behind."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_world import TinyRun, run_tiny

from leverplus.cli.command import Outcome
from leverplus.cli.main import main
from leverplus.data.rundir import write_atomically, write_json
from leverplus.encode.cached import VectorCache
from leverplus.errors import LeverError
from leverplus.evaluate.predictions import read_predictions, write_predictions
from leverplus.learn.checkpoint import load_checkpoint, save_checkpoint, save_state
from leverplus.learn.runlog import RunLog
from leverplus.run.run import load_run
from leverplus.web.report import build_report
from leverplus_lab.legacy.groups import write_json_value as write_groups

SENTENCE = r"cannot write .*; make room, or make .* writable, then type the same command to go on"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, where the system lets us mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(
        ["umount", "--lazy", str(place)], check=True
    )  # a store of this process may still be open there


def writers(run: TinyRun) -> dict[str, Callable[[Path], object]]:
    """Everything that writes a large file into a folder, by its name."""
    policy = load_checkpoint(run.folder / "checkpoints" / "sft")[0]
    results = read_predictions(run.folder / "predictions.parquet")
    rng = np.random.default_rng(0)
    keys = [rng.bytes(16) for _ in range(4096)]

    def report(folder: Path) -> object:
        return build_report(replace(load_run(run.folder), folder=folder))

    return {
        "checkpoint": lambda folder: save_checkpoint(
            folder / "checkpoints" / "sft", policy
        ),
        "state": lambda folder: save_state(
            folder / "state" / "sft", {"a": torch.zeros(100_000)}, {}
        ),
        "Parquet": lambda folder: write_predictions(
            results, folder / "predictions.parquet"
        ),
        "eval": lambda folder: write_json(
            folder / "eval.json", {"text": rng.bytes(100_000).hex()}
        ),
        "report": report,
        "import": lambda folder: write_groups(
            folder / "groups" / "groups.json", {"text": rng.bytes(100_000).hex()}
        ),
        "vectors": lambda folder: VectorCache(
            folder / "vectors", {"embedder": "x"}
        ).write(keys, np.zeros((4096, 8), np.float32)),
    }


NAMES = ("checkpoint", "state", "Parquet", "eval", "report", "import", "vectors")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_one_sentence_and_leaves_no_part(
    name: str, tiny_run: TinyRun, small_disk: Path
) -> None:
    (small_disk / "ballast").write_bytes(b"x" * (60 << 10))
    with pytest.raises(LeverError, match=f"(?s){SENTENCE}"):
        writers(tiny_run)[name](small_disk)
    assert [path.name for path in small_disk.glob("**/*") if path.is_file()] == [
        "ballast"
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_read_only_disk_is_one_sentence(
    name: str, tiny_run: TinyRun, small_disk: Path
) -> None:
    write = writers(tiny_run)[name]
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(LeverError, match=f"(?s){SENTENCE}"):
        write(small_disk)


def test_the_log_of_a_training_says_that_the_disk_is_full(small_disk: Path) -> None:
    log = RunLog(small_disk / "log.jsonl")
    with pytest.raises(LeverError, match=SENTENCE):  # noqa: PT012 which line fills it depends on the system
        for epoch in range(3000):
            log.write({"stage": "sft", "epoch": epoch, "step": 1}, {}, {"reward": 0.5})


def test_what_raises_while_writing_leaves_the_old_file_and_no_part(
    tmp_path: Path,
) -> None:
    """The same without a disk of our own."""
    path = tmp_path / "eval.json"
    write_json(path, {"a": 1})
    with pytest.raises(LeverError, match=SENTENCE), write_atomically(path) as part:  # noqa: PT012
        part.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(KeyboardInterrupt), write_atomically(path) as part:  # noqa: PT012
        part.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == '{\n "a": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_fills_where_nobody_expects_it_is_one_sentence_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> Outcome:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/somewhere/file")

    monkeypatch.setattr("leverplus.cli.main.find_command", lambda _: run)
    assert main(["check"]) == 1
    assert (
        "cannot write to /somewhere/file (No space left on device); make room"
        in capsys.readouterr().err
    )
    with pytest.raises(OSError, match="No space left"):
        main(["--debug", "check"])


@pytest.mark.slow
def test_commands_on_a_run_that_can_only_be_read_end_with_a_sentence(
    tiny_run: TinyRun, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    folder = small_disk / "run"
    shutil.copytree(tiny_run.folder, folder)
    shutil.copy(tiny_run.store, small_disk / "scores.db")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    store = ["--store", str(small_disk / "scores.db")]
    for command in (
        ["train", str(folder), *store],
        ["eval", str(folder), *store],
        ["report", str(folder)],
    ):
        assert main(command) == 1, command
        said = capsys.readouterr().err
        assert said.count("lever: cannot write") == 1, said
        assert "Read-only file system" in said


@pytest.mark.slow
def test_a_store_that_can_only_be_read_serves_what_it_holds(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluated again from stored answers; what is not stored ends with a sentence that says what to type."""
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    folder = tmp_path / "run"
    run_tiny(
        folder, tmp_path / "scores.db"
    )  # not the shared store, in which another test may have evaluated dev
    for file in tmp_path.glob(
        "scores.db*"
    ):  # with the -wal of a connection that is open
        shutil.copy(file, small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    before, store = (
        (folder / "eval.json").read_text(),
        ["--store", str(small_disk / "scores.db")],
    )
    (folder / "eval.json").unlink()
    assert main(["eval", str(folder), *store]) == 0
    assert (
        json.loads((folder / "eval.json").read_text())["arms"]
        == json.loads(before)["arms"]
    )
    capsys.readouterr()
    assert main(["eval", str(folder), "--split", "dev", *store]) == 1
    said = capsys.readouterr().err
    assert "name a file in a folder you may write with --store FILE" in said
    assert "Traceback" not in said
