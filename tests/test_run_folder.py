"""A run folder under faults: one process at a time, half a log line, changed data, a failed start, a wrong name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_world import TINY, TinyRun

from leverplus.cli.main import main
from leverplus.data.rundir import lock_folder, read_json, read_log
from leverplus.errors import LeverError
from leverplus.learn.runlog import RunLog
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import load_run, open_run, require_same_task
from leverplus.run.train import train_run
from leverplus.web.runs import read_run
from leverplus_doctor.check import Finding
from leverplus_doctor.monitor import Monitor

HOLD = (
    "import sys, time; from pathlib import Path; from leverplus.data.rundir import lock_folder\n"
    "with lock_folder(Path(sys.argv[1])):\n"
)


def test_a_second_process_is_told_the_pid_and_a_killed_one_leaves_no_lock(
    tmp_path: Path,
) -> None:
    script = HOLD + "    print('held', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with (
            pytest.raises(LeverError, match=rf"another process \(pid {first.pid}\)"),
            lock_folder(tmp_path),
        ):
            pass
        first.kill()
    with lock_folder(tmp_path):
        assert (tmp_path / "run.lock").read_text() == str(os.getpid())


def test_half_a_line_at_the_end_of_the_log_blocks_no_reader(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
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


def test_changed_data_are_refused_unless_forced(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_run.folder, tmp_path / "run")
    run = load_run(folder)
    run.remember({"task_version": "another"})
    with pytest.raises(
        LeverError, match=r"the data of task world changed since .* was trained"
    ):
        require_same_task(run)
    require_same_task(run, force=True)
    require_same_task(run)
    assert read_json(folder / "run.json")["trained_on"] == "another"


def test_a_run_that_failed_before_it_began_leaves_its_folder_to_the_corrected_recipe(
    tmp_path: Path,
) -> None:
    source = find_recipe("world")
    for overrides in (TINY, (*TINY, "score.budget=1301")):
        recipe = load_recipe("world", overrides)
        run = open_run(
            recipe, source, tmp_path / "run", seed=0, store_path=tmp_path / "s.db"
        )
        assert load_run(tmp_path / "run").recipe.hash == recipe.hash == run.recipe.hash
    (tmp_path / "run" / "log.jsonl").write_text("{}\n")
    with pytest.raises(LeverError, match="holds another run"):
        open_run(
            load_recipe("world", TINY),
            source,
            tmp_path / "run",
            seed=0,
            store_path=tmp_path / "s.db",
        )


def test_an_unknown_checkpoint_is_refused_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe("world", TINY)
    open_run(
        recipe,
        find_recipe("world"),
        tmp_path / "run",
        seed=0,
        store_path=tmp_path / "s.db",
    )
    assert (
        main(
            [
                "eval",
                str(tmp_path / "run"),
                "--checkpoint",
                "nosuch",
                "--store",
                str(tmp_path / "s.db"),
            ]
        )
        == 1
    )
    assert "there is no checkpoint 'nosuch'" in capsys.readouterr().err
    assert not (tmp_path / "s.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["score", "sweep", "eval --checkpoint all --split dev"]
)
def test_commands_that_ask_and_write_wait_for_no_other_but_say_who_is_at_work(
    command: str, tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(tiny_run.folder, tmp_path / "run")
    name, *more = command.split()
    words = [name, str(folder), *more, "--store", str(tiny_run.store)]
    if name == "sweep":
        words = [
            "sweep",
            "world",
            "--grid",
            "sft.lr=0.001",
            "--out",
            str(folder),
            "--store",
            str(tiny_run.store),
        ]
    script = HOLD + "    print('held', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        assert main(words) == 1
        assert (
            f"is being worked on by another process (pid {first.pid})"
            in capsys.readouterr().err
        )
        first.kill()


def test_what_killed_processes_left_is_cleared_and_what_is_at_work_stays(
    tmp_path: Path,
) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        check=True,
    )
    pid, mine = int(dead.stdout), os.getppid()
    for folder in ("checkpoints", "state/sft"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / f".eval.json.{pid}").write_text("half")
    (tmp_path / f".report.html.{mine}").write_text("being written")
    (tmp_path / f"checkpoints/.sft-epoch002.{pid}.new").mkdir()
    (tmp_path / f"checkpoints/.sft-epoch001.{pid}.old").mkdir()
    (tmp_path / "checkpoints/sft-epoch001").mkdir()
    # killed between the two moves: the new folder is whole, and nothing has its name
    (tmp_path / f"state/.grpo.{pid}.old").mkdir()
    (tmp_path / f"state/.grpo.{pid}.new").mkdir()
    (tmp_path / f"state/.grpo.{pid}.new/state.json").write_text("{}")
    (tmp_path / ".hidden").write_text("somebody's own")
    with lock_folder(tmp_path):
        pass
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("**/*")}
    assert found == {
        *(
            "run.lock",
            f".report.html.{mine}",
            ".hidden",
            "checkpoints",
            "checkpoints/sft-epoch001",
        ),
        *("state", "state/sft", "state/grpo", "state/grpo/state.json"),
    }


def test_a_finished_stage_leaves_no_state_behind(tiny_run: TinyRun) -> None:
    assert (tiny_run.folder / "checkpoints" / "sft").is_dir()
    assert list((tiny_run.folder / "state").iterdir()) == []
    assert not [path for path in tiny_run.folder.glob("**/.*") if path.is_file()]


@pytest.mark.slow
def test_going_on_keeps_what_was_measured_before_the_first_step(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    """Everything is stored by then, so the model is not asked again; what it said the first time stays."""
    folder = shutil.copytree(tiny_run.folder, tmp_path / "run")
    before = read_json(folder / "probe.json")["probe"]
    assert before["rescored"] is not None
    shutil.rmtree(folder / "checkpoints")
    run = load_run(folder, tiny_run.store)
    train_run(run)
    assert run.scorer.meter.fresh == 0
    after = read_json(folder / "probe.json")["probe"]
    assert {key for key, value in after.items() if value is None} == {
        k for k, v in before.items() if v is None
    }


@pytest.mark.slow
def test_a_finding_is_said_once_and_then_whether_training_goes_on(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    recipe = load_recipe("world", [*TINY, "sft.lr=1e-9", "sft.epochs=4"])
    said: list[str] = []
    run = open_run(
        recipe,
        find_recipe("world"),
        tmp_path / "run",
        seed=0,
        store_path=tiny_run.store,
        say=said.append,
    )
    train_run(run)
    codes = [line.rpartition("[")[2] for line in said if line.endswith("]")]
    assert "learning_rate_tiny]" in codes
    assert len(codes) == len(set(codes))
    (sentence,) = [line for line in said if line.startswith("training goes on")]
    assert (
        "without --ignore-findings" in sentence
        or "none of these findings is an error" in sentence
    )


def test_a_strict_run_ends_with_its_first_error_and_says_no_finding_twice(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    recipe = load_recipe("world", [*TINY, "sft.lr=1e-9"])
    said: list[str] = []
    run = open_run(
        recipe,
        find_recipe("world"),
        tmp_path / "run",
        seed=0,
        store_path=tiny_run.store,
        say=said.append,
    )
    finding = Finding("first", "error", "the first", {}, "cause", "cure")
    others = [
        replace(finding, code=code, title=f"the {code}") for code in ("second", "third")
    ]
    monitor = Monitor(replace(run, strict=True))
    with pytest.raises(
        LeverError,
        match=r"preflight first: the first. cure \(2 more errors stand above\)",
    ):
        monitor.report([finding, *others], "before training")
    assert said == [
        "error before training: the second [second]",
        "error before training: the third [third]",
    ]
