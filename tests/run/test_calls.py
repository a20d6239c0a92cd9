"""The count of calls that a run folder keeps: through kills and through resuming."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny_world import TinyRun

from leverplus.cli.main import main
from leverplus.data.rundir import CALLS
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import load_run, open_run
from leverplus.run.scoring import KeptCalls
from leverplus.scores.scorer import EVALUATION, TRAINING, CallMeter


def test_every_prompt_is_counted_once_and_is_known_when_the_file_is_opened_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / CALLS
    kept = KeptCalls(path)
    meter = CallMeter(keep=kept.write)
    meter.asked[TRAINING] = kept.keys
    meter.count(TRAINING, [b"\x01\x02", b"\x03\x04", b"\x01\x02"])
    meter.count(TRAINING, [b"\x03\x04", b"\x05\x06"])
    meter.count(EVALUATION, [b"\x07\x08"])
    assert len(kept.keys) == meter.calls(TRAINING) == 3
    assert path.read_text() == "0102\n0304\n0506\n"
    again = KeptCalls(path)
    assert again.keys == kept.keys


@pytest.mark.parametrize("torn", ["0", "030", "0304"])
def test_a_line_that_a_kill_cut_short_is_asked_and_counted_again(
    torn: str, tmp_path: Path
) -> None:
    path = tmp_path / CALLS
    path.write_text(f"0102\n{torn}")
    kept = KeptCalls(path)
    assert kept.keys == {b"\x01\x02"}
    kept.write([b"\x03\x04"])
    assert path.read_text() == "0102\n0304\n"


def test_without_a_run_folder_nothing_is_written(tmp_path: Path) -> None:
    kept = KeptCalls(None)
    kept.write([b"\x01"])
    assert list(tmp_path.iterdir()) == []


def test_a_trained_run_knows_its_calls_without_asking_anything(
    tiny_run: TinyRun,
) -> None:
    run = load_run(tiny_run.folder, tiny_run.store)
    assert run.calls() == tiny_run.report["model_calls"]
    assert "scorer" not in vars(run), "neither store nor model was opened"


def test_evaluating_never_trains_and_says_what_to_type(
    tiny_run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "untrained"
    shutil.copytree(tiny_run.folder, folder)
    shutil.rmtree(folder / "checkpoints")
    (folder / "eval.json").unlink()
    assert main(["eval", str(folder), "--store", str(tiny_run.store)]) == 1
    assert f"type `lever train {folder}`" in capsys.readouterr().err
    assert not (folder / "checkpoints").exists()
    assert not (folder / "eval.json").exists()


def test_a_corrected_recipe_that_takes_over_a_folder_begins_to_count_anew(
    tmp_path: Path,
) -> None:
    folder, store = tmp_path / "run", tmp_path / "s.db"
    open_run(
        load_recipe("world"), find_recipe("world"), folder, seed=0, store_path=store
    )
    (folder / CALLS).write_text("0102\n")
    run = open_run(
        load_recipe("world", ["pool.size=8"]),
        find_recipe("world"),
        folder,
        seed=0,
        store_path=store,
    )
    assert run.calls() == 0
