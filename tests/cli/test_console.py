"""What commands share: folder names that keep runs apart, tables, progress on stderr."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import pytest
from rich.console import Console

from leverplus.cli.console import Bars, results_table, run_folder, whole_number
from leverplus.cli.main import main
from leverplus.recipe.recipe import load_recipe


def folder(out: Path | None = None, seed: int = 0, sets: tuple[str, ...] = ()) -> Path:
    args = argparse.Namespace(out=out, seed=seed, set=list(sets))
    return run_folder(args, load_recipe("world", sets))


def test_runs_that_differ_get_folders_that_differ() -> None:
    assert folder() == Path("runs/world")
    assert folder(seed=2) == Path("runs/world-seed2")
    names = {folder(), folder(seed=2), folder(sets=("pool.size=32",)), folder(sets=("pool.size=33",))}
    assert len(names) == 4
    assert folder(out=Path("here"), seed=2) == Path("here")


@pytest.mark.parametrize("text", ["-1", "1.5", "", "x", "²"])
def test_a_seed_is_a_whole_number(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="whole number"):
        whole_number(text)
    assert whole_number("7") == 7


def test_the_table_shows_every_arm_in_percent_and_leaves_out_what_was_not_measured() -> None:
    arms = {
        "zero_shot": {"shots": {"0": 0.25}, "mean": 0.25},
        "label_vote": {"shots": {"0": 0.125}, "mean": 0.125},
        "learned": {"shots": {"1": 0.5, "2": 0.625}, "mean": 0.5625},
        "oracle_exhaustive": {"shots": {"1": 1.0}},
    }
    out = io.StringIO()
    table = results_table({"arms": arms, "n": 8, "split": "dev", "gap_closed": {"learned": {"mean": 0.75}}})
    Console(file=out, width=100).print(table)
    rows = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in out.getvalue().splitlines() if "│" in line}
    assert "accuracy on 8 dev items, % by number of shots" in out.getvalue()
    head = next(line for line in out.getvalue().splitlines() if "who chooses" in line)
    assert [cell.strip() for cell in head.split("┃")[2:-1]] == ["0", "1", "2", "mean", "gap closed"]
    assert [cell.strip() for cell in rows["zero-shot"]] == ["25.0", "", "", "", ""]
    assert [cell.strip() for cell in rows["label vote (no model)"]] == ["12.5", "", "", "", ""]
    assert [cell.strip() for cell in rows["learned"]] == ["", "50.0", "62.5", "56.2", "75 %"]
    assert [cell.strip() for cell in rows["exhaustive oracle"]] == ["", "100.0", "", "", ""]
    assert "(no model): the answer is taken from labels" in out.getvalue()
    assert "gap closed: 0 % is random" in out.getvalue()
    assert "shots: how many demonstrations are shown; mean: over 1, 2" in out.getvalue()


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as bars:
        bars.said -= 60  # long ago
        bars.show("scoring", 512, 1024)
        bars.say("done")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "scoring: 512 of 1,024" in captured.err
    assert "done" in captured.err


def test_quiet_bars_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars(quiet=True) as bars:
        bars.said -= 60
        bars.show("scoring", 512, 1024)
        bars.say("done")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["...toml", "....toml", "a b;c.toml"])
def test_no_name_of_a_recipe_file_leads_out_of_runs(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text('extends = "world"\n')
    args = argparse.Namespace(out=None, set=[], seed=0)
    folder = run_folder(args, load_recipe(str(file)))
    assert folder.parent == Path("runs")
    assert folder.name not in ("", ".", "..")
    assert folder.resolve().parent == Path("runs").resolve()


def test_check_names_lists_that_are_longer_than_what_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["score.search=dense", "reward.mode=hard_plus_soft", "reward.hard_by_shots=[1.0,0.5,0.2]"]
    stages = ['train.stages=["sft","grpo"]', "grpo.epochs=2", "grpo.top_k=[3,4,5]"]
    assert main(["check", "world", "--set", *sets, *stages]) == 0
    said = capsys.readouterr().out
    assert "note: reward.hard_by_shots has 3 factors, but no list that is learnt from has more than 1" in said
    assert "note: grpo.top_k has 3 values for grpo.epochs = 2" in said
    assert main(["check", "world", "--set", "score.search=beam", "score.shots=3", *sets[1:], *stages[:2]]) == 0
    assert "factors, but" not in capsys.readouterr().out
