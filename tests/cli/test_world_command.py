"""`lever world`: the ladder of baselines with what the world promises, and a picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from leverplus.cli.main import main


@pytest.mark.slow
def test_the_ladder_has_every_rung_and_leaves_nothing_in_the_folder_it_is_typed_in(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert (
        main(
            [
                "world",
                "ladder",
                "--n",
                "6",
                "--json",
                "--store",
                str(tmp_path / "scores.db"),
            ]
        )
        == 0
    )
    assert list(here.iterdir()) == []
    ladder = json.loads(capsys.readouterr().out)
    assert (ladder["n"], ladder["world_seed"]) == (6, 0)
    assert set(ladder["arms"]["zero_shot"]) == {"0"}
    for arm in ("random", "nearest_image", "nearest_text", "nearest_both", "oracle"):
        assert set(ladder["arms"][arm]) == {"1", "2", "3", "4"}
        assert all(0.0 <= value <= 1.0 for value in ladder["arms"][arm].values())
    oracle, random = ladder["arms"]["oracle"], ladder["arms"]["random"]
    assert oracle["1"] > random["1"]
    assert 0.0 <= ladder["text_share"] <= 1.0
    assert set(ladder["oracle_two_facts"]) == {"1", "2", "3", "4"}
    for share in (
        ladder["harmed"],
        ladder["helped"],
        ladder["reversed"],
        *ladder["oracle_two_facts"].values(),
    ):
        assert share is None or 0.0 <= share <= 1.0


@pytest.mark.slow
def test_the_ladder_is_a_table_too_even_where_a_share_is_over_no_item(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert (
        main(
            [
                "world",
                "ladder",
                "--n",
                "2",
                "--world-seed",
                "2",
                "--store",
                str(tmp_path / "scores.db"),
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "accuracy on 2 test items" in shown
    assert "share of the question" in shown
    assert "(no such item)" in shown, "neither of these two items is of that kind"
    assert "nan" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 5])
def test_a_sample_is_a_picture(
    count: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "sample.png"
    assert main(["world", "sample", "--n", str(count), "--png", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    assert (
        main(["world", "sample", "--n", str(count), "--png", str(path), "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out) == {
        "n": count,
        "world_seed": 0,
        "png": str(path),
    }
    with Image.open(path) as image:
        assert image.size[0] == 760
