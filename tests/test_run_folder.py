"""A run folder under faults: one process at a time, half a log line, changed data, a failed start, a wrong name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_world import TINY, TinyRun

from leverplus.cli.main import main
from leverplus.errors import LeverError
from leverplus.folder import held
from leverplus.pipeline import load_run, open_run, read_json
from leverplus.recipe.recipe import find_recipe, load_recipe
from leverplus.report.data import read_run
from leverplus.training.runlog import RunLog, read_log

HOLD = "import sys, time; from pathlib import Path; from leverplus.folder import held\nwith held(Path(sys.argv[1])):\n"


def test_a_second_process_is_told_the_pid_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    script = HOLD + "    print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(LeverError, match=rf"another process \(pid {first.pid}\)"), held(tmp_path):
            pass
        first.kill()
    with held(tmp_path):
        assert (tmp_path / "run.lock").read_text() == str(os.getpid())


def test_half_a_line_at_the_end_of_the_log_blocks_no_reader(tiny_run: TinyRun, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_run.folder, tmp_path / "run")
    log = folder / "log.jsonl"
    whole = RunLog(log).lines()
    with log.open("a") as file:
        file.write('{"stage": "sft", "ep')
    assert RunLog(log).lines() == whole
    assert read_log(log)[1] == [len(whole) + 1]
    assert read_run(folder).log == whole
    RunLog(log).rewind("sft", 1)
    assert [line["epoch"] for line in RunLog(log).lines()] == [1]


def test_changed_data_are_refused_unless_forced(tiny_run: TinyRun, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_run.folder, tmp_path / "run")
    run = load_run(folder)
    run.remember({"task_version": "another"})
    with pytest.raises(LeverError, match=r"the data of task world changed since .* was trained"):
        run.require_same_task()
    run.require_same_task(force=True)
    run.require_same_task()
    assert read_json(folder / "run.json")["trained_on"] == "another"


def test_a_run_that_failed_before_it_began_leaves_its_folder_to_the_corrected_recipe(tmp_path: Path) -> None:
    source = find_recipe("world")
    for overrides in (TINY, (*TINY, "score.budget=1301")):
        recipe = load_recipe("world", overrides)
        run = open_run(recipe, source, tmp_path / "run", seed=0, store_path=tmp_path / "s.db")
        assert load_run(tmp_path / "run").recipe.hash == recipe.hash == run.recipe.hash
    (tmp_path / "run" / "log.jsonl").write_text("{}\n")
    with pytest.raises(LeverError, match="holds another run"):
        open_run(load_recipe("world", TINY), source, tmp_path / "run", seed=0, store_path=tmp_path / "s.db")


def test_an_unknown_checkpoint_is_refused_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe("world", TINY)
    open_run(recipe, find_recipe("world"), tmp_path / "run", seed=0, store_path=tmp_path / "s.db")
    assert main(["eval", str(tmp_path / "run"), "--checkpoint", "nosuch", "--store", str(tmp_path / "s.db")]) == 1
    assert "there is no checkpoint 'nosuch'" in capsys.readouterr().err
    assert not (tmp_path / "s.db").exists()
