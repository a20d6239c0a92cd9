"""`lever sweep` prints what was tried, what was chosen and its test result; bad grids are one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_world import TINY

from leverplus.cli.main import main


def words(folder: Path, *more: str) -> list[str]:
    sets = [
        word
        for override in (*TINY, "score.budget=200", "sft.epochs=1", "eval.oracle=false")
        for word in ("--set", override)
    ]
    store = str(folder / "scores.db")
    return [
        "sweep",
        "world",
        "--out",
        str(folder / "runs"),
        "--store",
        store,
        "--seeds",
        "1",
        *sets,
        *more,
    ]


@pytest.mark.slow
def test_a_sweep_prints_its_choice_and_the_same_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ("--grid", "sft.lr=1e-3,1e-4")
    assert main(words(tmp_path, *grid)) == 0
    shown = capsys.readouterr().out
    assert "chosen on dev out of 2 configurations: sft.lr=" in shown
    assert "test, looked at once" in shown
    assert main(words(tmp_path, *grid, "--json")) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        (tmp_path / "runs" / "sweep.json").read_text()
    )


def test_a_bad_grid_is_one_sentence_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for grid, sentence in (
        ("lr=1,2", "section.key=a,b,c"),
        ("sft.lrr=1", "did you mean 'sft.lr'"),
    ):
        assert main(words(tmp_path, "--grid", grid)) == 1
        assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit) as caught:
        main(["sweep", "world"])
    assert caught.value.code == 2
