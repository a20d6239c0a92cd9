"""The command line: exit codes 0, 1 and 2, one sentence a problem, one JSON object on stdout."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tiny_world import TinyRun, tiny_arguments

from leverplus import catalog
from leverplus.cli.command import Outcome, explanations
from leverplus.cli.main import (
    COMMANDS,
    add_command,
    find_command,
    main,
    overview,
    parse,
)
from leverplus.cli.use import explanation_lines

Capture = pytest.CaptureFixture[str]


def one_object(captured: str) -> dict[str, Any]:
    """The single JSON object on one line."""
    assert len(captured.splitlines()) == 1
    value = json.loads(captured)
    assert isinstance(value, dict)
    return value


def sentence(capsys: Capture, arguments: list[str]) -> str:
    """What a failing command says: nothing on stdout, no stack trace, exit code 1."""
    capsys.readouterr()
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    said = [line for line in captured.err.splitlines() if line.startswith("lever: ")]
    assert len(said) == 1
    return said[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: lever {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["run", "world", "--colour", "red"],
        ["run", "--seed", "x"],
        ["run", "--seed", "-1"],
        ["world"],
        ["world", "ladder", "--world-seed", "-3"],
        ["check"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: lever" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "command", "said"),
    [
        (
            ["fit", "x", "--model", "m", "--cals", "900"],
            "lever fit",
            "there is no option --cals; did you mean --calls?",
        ),
        (
            ["fit", "x", "--modl=m"],
            "lever fit",
            "there is no option --modl; did you mean --model?",
        ),
        (
            ["fit", "x", "--model", "m", "--zzz"],
            "lever fit",
            "there is no option --zzz; `lever fit --help` lists all",
        ),
        (
            ["fit", "x", "y", "--model", "m"],
            "lever fit",
            "not understood: y; `lever fit --help` lists",
        ),
        (["fitt"], "lever", "there is no command 'fitt'; did you mean fit?"),
        (
            ["demos", "lsit", "b"],
            "lever demos",
            "there is no verb 'lsit'; did you mean list?",
        ),
        (
            ["demos", "list", "b", "--jsno"],
            "lever demos list",
            "there is no option --jsno; did you mean --json?",
        ),
        (
            ["plan-n", "--effect", "x%"],
            "lever plan-n",
            "argument --effect: invalid float value: 'x%'",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_misspelt_is_named_with_what_was_meant(
    arguments: list[str], command: str, said: str, capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert f"usage: {command} " in error
    assert f"{command}: error: {said}" in error
    assert len(error.splitlines()[-1]) < 120


def test_an_option_may_be_shortened_and_a_value_may_begin_with_two_dashes() -> None:
    args = parse(["fit", "x", "--mod", "m", "--instruction", "-- answer briefly"])
    assert (args.model, args.instruction) == ("m", "-- answer briefly")


def test_a_problem_the_user_can_mend_is_exit_code_1_and_one_sentence(
    capsys: Capture, tmp_path: Path
) -> None:
    assert "no recipe called 'wrold'" in sentence(capsys, ["run", "wrold"])
    assert "is not a run folder" in sentence(capsys, ["eval", str(tmp_path)])
    assert "is neither a bundle nor a run folder" in sentence(
        capsys, ["select", str(tmp_path), "--question", "what"]
    )
    assert "choose 2 to 4000" in sentence(capsys, ["world", "ladder", "--n", "1"])
    assert "name a writable .png" in sentence(
        capsys, ["world", "sample", "--n", "2", "--png", str(tmp_path / "a/b.png")]
    )


def test_debug_shows_the_stack(tmp_path: Path) -> None:
    from leverplus.errors import MissingFile

    with pytest.raises(MissingFile):
        main(["--debug", "pool", str(tmp_path)])


def test_ctrl_c_says_that_nothing_is_lost(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr("leverplus.cli.main.find_command", lambda _: stopped)
    assert main(["check"]) == 130
    assert "everything measured so far is kept" in capsys.readouterr().err


@pytest.mark.slow
def test_python_m_leverplus_is_lever() -> None:
    for words, code in (
        (["--version"], 0),
        (["recipes", "nosuch"], 1),
        (["nosuch"], 2),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "leverplus", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code
        assert "lever" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m leverplus.cli.main recipes world | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("purpose")
    assert done.stderr == ""


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_computed(
    capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    said = sentence(
        capsys, tiny_arguments(tmp_path / "file" / "run", tmp_path / "scores.db")
    )
    assert "cannot write to" in said
    assert "--out DIR" in said
    assert not (tmp_path / "scores.db").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_named(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "cannot write to" in sentence(
        capsys, tiny_arguments(tmp_path / "locked" / "run", tmp_path / "scores.db")
    )


def test_a_truncated_store_is_named_and_left_as_it_is(
    capsys: Capture, tiny_run: TinyRun, tmp_path: Path
) -> None:
    whole, store = tmp_path / "whole.db", tmp_path / "scores.db"
    with closing(sqlite3.connect(tiny_run.store)) as source:
        source.execute("VACUUM INTO ?", [str(whole)])
    half = whole.read_bytes()[: whole.stat().st_size // 2]
    store.write_bytes(half)
    said = sentence(capsys, tiny_arguments(tmp_path / "run", store))
    assert str(store) in said
    assert store.read_bytes() == half


def test_a_store_that_is_something_else_is_named(
    capsys: Capture, tmp_path: Path
) -> None:
    store = tmp_path / "notes.txt"
    store.write_text("these are my notes, please keep them\n" * 200)
    said = sentence(capsys, tiny_arguments(tmp_path / "run", store))
    assert str(store) in said
    assert store.read_text().startswith("these are my notes")


def test_a_folder_of_another_run_is_refused(capsys: Capture, tiny_run: TinyRun) -> None:
    said = sentence(
        capsys, tiny_arguments(tiny_run.folder, tiny_run.store, "--seed", "3")
    )
    assert "holds another run" in said
    assert "seed 0" in said


def test_run_prints_one_object_that_is_eval_json(tiny_run: TinyRun) -> None:
    assert one_object(tiny_run.printed) == json.loads(
        (tiny_run.folder / "eval.json").read_text()
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", ["pool", "score", "train", "eval"])
def test_every_stage_can_be_run_alone_and_prints_one_object(
    command: str, capsys: Capture, tiny_run: TinyRun, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_run.folder, tmp_path / "run")
    capsys.readouterr()
    assert main([command, str(folder), "--store", str(tiny_run.store), "--json"]) == 0
    facts = one_object(capsys.readouterr().out)
    expected = {
        "pool": {"pools": 74, "size": 16},
        "score": {"queries": 74, "calls": tiny_run.report["model_calls"], "fresh": 0},
        "train": {"model_calls": tiny_run.report["model_calls"]},
        "eval": tiny_run.report,
    }[command]
    assert {key: facts[key] for key in expected} == expected


def test_select_prints_the_demonstrations(
    capsys: Capture, tiny_run: TinyRun, tmp_path: Path
) -> None:
    from leverplus_lab.world.task import WorldTask

    task, path = WorldTask(0), tmp_path / "query.png"
    task.image(task.items("test")[0]).save(path)
    arguments = [
        "select",
        str(tiny_run.folder),
        "--image",
        str(path),
        "--question",
        "what does it like",
        "-k",
        "2",
    ]
    assert main([*arguments, "--json"]) == 0
    demos = one_object(capsys.readouterr().out)["demos"]
    assert [set(demo) for demo in demos] == [{"id", "question", "answer", "image"}] * 2
    assert main(arguments) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        demo["id"] for demo in demos
    ]


def test_recipes_are_listed_and_printed(capsys: Capture) -> None:
    assert main(["recipes", "--json"]) == 0
    assert set(one_object(capsys.readouterr().out)["world"]) == {"purpose", "expected"}
    assert main(["recipes"]) == 0
    assert "world" in capsys.readouterr().out
    assert main(["recipes", "world"]) == 0
    printed = capsys.readouterr().out
    assert main(["recipes", "world", "--json"]) == 0
    assert one_object(capsys.readouterr().out) == tomllib.loads(printed)


def test_check_says_that_a_recipe_is_well_or_all_that_is_wrong(capsys: Capture) -> None:
    assert main(["check", "world", "--json"]) == 0
    found = one_object(capsys.readouterr().out)
    assert found["ok"]
    assert found["calls_per_query"] == 65
    wrong = ["check", "world", "--set", "pool.size=0", "--set", "score.budgt=3"]
    assert main([*wrong, "--json"]) == 1
    assert len(one_object(capsys.readouterr().out)["problems"]) == 2
    assert main(wrong) == 1
    said = capsys.readouterr().err
    assert "2 problems" in said
    assert "pool.size = 0: must be at least 1" in said
    assert "did you mean 'score.budget'?" in said


def test_check_names_known_mistakes(capsys: Capture) -> None:
    sick = ["--set", 'train.stages=["grpo"]', "--set", "grpo.kl=k3_inverted"]
    assert main(["check", "world", *sick]) == 0
    assert (
        'grpo.kl = "k3_inverted" reproduces a known mistake on purpose'
        in capsys.readouterr().out
    )


def test_an_explanation_shows_questions_and_says_what_its_terms_are() -> None:
    """Terms that nobody knows have no column; long answers are cut like long questions."""
    terms = dict.fromkeys(("score", "label", "effect", "similarity", "interaction"))
    question = f"what is {'very ' * 20}small"
    candidate = {"place": 1, "id": "d7", "answer": "cat", "question": question, **terms}
    found = {"candidates": [candidate], "nearest_would_show": ["d7"]}
    told = {"arm": "nearest_text", "goes_by": "likeness", **found}
    _, head, row, last = explanation_lines(told)
    assert head.split() == ["place", "id", "answer", "question"]
    assert row.endswith("cat     what is very very very very very very very...")
    assert last == "the most similar examples would be: d7"
    candidate |= {"label": 0.5, "answer": f"SELECT {'very, ' * 20}small"}
    _, head, row, legend, _ = explanation_lines(told)
    assert head.split() == ["place", "id", "label", "answer", "question"]
    assert "SELECT very, very, very, very, very, very,... " in row
    assert legend == "label: what labels add to the score"


@pytest.mark.parametrize("name", catalog.COMMANDS)
def test_every_argument_is_explained_and_every_command_prints_json(name: str) -> None:
    """The lines of a docstring belong to the parameters in their order."""
    command = find_command(name)
    parameters = [
        parameter
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name not in ("json", "store")
    ]
    lines = explanations(command)
    assert len(lines) == len(parameters)
    for parameter, line in zip(parameters, lines, strict=True):
        words, _, meaning = line.partition(": ")
        assert meaning
        flags = [word for word in words.split() if word.startswith("--")]
        option = f"--{parameter.name.rstrip('_').replace('_', '-')}"
        assert flags == ([option] if parameter.kind is parameter.KEYWORD_ONLY else [])
    parser = argparse.ArgumentParser()
    add_command(parser, name)
    assert any("--json" in action.option_strings for action in parser._actions)


def test_the_overview_names_every_command_once_with_its_line() -> None:
    text = overview()
    for name, line in COMMANDS.items():
        assert text.count(f"  {name:<11} {line}\n") == 1
    assert {row.partition(" ")[0] for row in catalog.COMMANDS} == set(COMMANDS)


def test_an_explanation_says_what_a_way_of_choosing_goes_by() -> None:

    from leverplus.arms.spec import arm_class, known_arms

    for name in known_arms():
        assert arm_class(name).says
        assert arm_class(name).title
    terms = {
        "score": 0.0,
        "label": 1.0,
        "effect": None,
        "similarity": 0.3,
        "interaction": None,
    }
    candidate = {
        "id": "a",
        "place": 1,
        "question": "what is it",
        "answer": "cat",
        **terms,
    }
    found = {
        "arm": "random",
        "goes_by": "chance",
        "candidates": [candidate],
        "nearest_would_show": ["b"],
    }
    lines = explanation_lines(found)
    assert lines[0] == "chosen: random (chance)"
    assert lines[-1] == "the most similar examples would be: b"
