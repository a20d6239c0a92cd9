"""What commands share: folder names that keep runs apart, tables, progress on stderr."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from leverplus.cli.command import Bars, Outcome, show, whole_number
from leverplus.cli.console import results_table
from leverplus.cli.experiments import run_folder
from leverplus.evaluate.record import record_of
from leverplus.run.recipe import load_recipe


def folder(seed: int = 0, sets: tuple[str, ...] = ()) -> Path:
    return run_folder(load_recipe("world", sets), seed, named=not sets)


def test_runs_that_differ_get_folders_that_differ() -> None:
    assert folder() == Path("runs/world")
    assert folder(seed=2) == Path("runs/world-seed2")
    names = {
        folder(),
        folder(seed=2),
        folder(sets=("pool.size=32",)),
        folder(sets=("pool.size=33",)),
    }
    assert len(names) == 4


@pytest.mark.parametrize("text", ["-1", "1.5", "", "x", "²"])
def test_a_seed_is_a_whole_number(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="whole number"):
        whole_number(text)
    assert whole_number("7") == 7


def test_the_table_shows_every_arm_in_percent_and_leaves_out_what_was_not_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {
        "zero_shot": {"shots": {"0": 0.25}, "mean": 0.25},
        "label_vote": {"shots": {"0": 0.125}, "mean": 0.125, "calls_per_question": 0},
        "learned": {"shots": {"1": 0.5, "2": 0.625}, "mean": 0.5625},
        "oracle_exhaustive": {"shots": {"1": 1.0}},
    }
    values = {
        "arms": arms,
        "comparisons": [],
        "n": 8,
        "split": "dev",
        "gap_closed": {"learned": {"mean": 0.75}},
    }
    table = results_table(record_of(values))
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.title == "accuracy on 8 dev items, % by number of shots"
    assert table.header[1:] == ["0", "1", "2", "mean", "gap closed"]
    assert rows["zero-shot"] == ["25.0", "", "", "", ""]
    assert rows["label vote (no model)"] == ["12.5", "", "", "", ""]
    assert rows["learned"] == ["", "50.0", "62.5", "56.2", "75 %"]
    assert rows["exhaustive oracle"] == ["", "100.0", "", "", ""]
    monkeypatch.setenv("COLUMNS", "100")
    show(Outcome(values, [table]), as_json=False)
    out = capsys.readouterr().out
    assert all(cell in out for cell in ("who chooses", "62.5", "exhaustive oracle"))
    assert "(no model): the answer is taken from labels" in out
    assert "gap closed: 0 % is random" in out
    assert "shots: how many demonstrations are shown; mean: over 1, 2" in out


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as bars:
        bars.said -= 60  # long ago
        bars.show("scoring", 512, 1024)
        bars.say("done")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "scoring: 512 of 1,024" in captured.err
    assert "done" in captured.err


@pytest.mark.parametrize("name", ["...toml", "....toml", "a b;c.toml"])
def test_no_name_of_a_recipe_file_leads_out_of_runs(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text('extends = "world"\n')
    folder = run_folder(load_recipe(str(file)), 0)
    assert folder.parent == Path("runs")
    assert folder.name not in ("", ".", "..")
    assert folder.resolve().parent == Path("runs").resolve()
