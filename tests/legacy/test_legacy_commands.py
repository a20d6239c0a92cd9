"""`lever import` and `lever export` bring files in and out from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from legacy_files import OldSelector, beam, identical, metrics, rl_global, rl_local

from leverplus.cli.main import main
from leverplus_lab.legacy.groups import read_groups


@pytest.mark.parametrize(
    ("kind", "value"),
    [("rl", rl_global()), ("rl", rl_local()), ("beam", beam()), ("metrics", metrics())],
)
def test_values_of_files_come_back(tmp_path: Path, capsys, kind, value) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(value))
    assert main(["import", str(path), "--into", str(tmp_path / "in"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == kind
    assert Path(found["written"][0]).is_file()
    assert (
        main(
            [
                "export",
                str(tmp_path / "in"),
                "--format",
                kind,
                "--out",
                str(tmp_path / "b.json"),
            ]
        )
        == 0
    )
    again = json.loads((tmp_path / "b.json").read_text())
    if kind == "metrics":
        assert again == value
    else:
        assert read_groups(again, "b") == read_groups(value, "a")


def test_an_import_says_what_it_found_and_writes_nothing_unasked(
    tmp_path: Path, capsys
) -> None:
    path = tmp_path / "a.json"
    value = rl_local()
    value["12"]["pointer_candidates"][0]["vqa_eval_mode"] = "fallback"
    path.write_text(json.dumps(value))
    assert main(["import", str(path)]) == 0
    text = capsys.readouterr().out
    assert "RL data: 2 queries, 5 sequences, local pointers, pools: given" in text
    assert "1 sequences are set aside: its accuracy was guessed" in text
    assert "nothing was written" in text
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_goes_in_and_out(tmp_path: Path, capsys) -> None:
    state = OldSelector().state_dict()
    torch.save({"epoch": 1, "model_state_dict": state}, tmp_path / "rce_epoch2.pt")
    assert (
        main(
            ["import", str(tmp_path / "rce_epoch2.pt"), "--into", str(tmp_path / "in")]
        )
        == 0
    )
    assert "cross_attention_faithful" in capsys.readouterr().out
    for layout in ("pt", "v2"):
        out = tmp_path / f"out.{layout}"
        assert (
            main(
                ["export", str(tmp_path / "in"), "--format", layout, "--out", str(out)]
            )
            == 0
        )
    again = torch.load(tmp_path / "out.pt", weights_only=True)
    assert identical(again, {"epoch": 1, "model_state_dict": state})
    named = torch.load(tmp_path / "out.v2", weights_only=True)["state_dict"]
    assert set(named) == {f"lever_lm.pointer_selector.{name}" for name in state}


def test_what_cannot_be_imported_or_exported_is_said_in_a_sentence(
    tmp_path: Path, capsys
) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1, 2, 3]")
    assert main(["import", str(path)]) == 1
    assert "cache of anchors" in capsys.readouterr().err
    path.write_text(json.dumps(beam()))
    assert main(["import", str(path), "--into", str(tmp_path / "in")]) == 0
    assert (
        main(
            [
                "export",
                str(tmp_path / "in"),
                "--format",
                "rl",
                "--out",
                str(tmp_path / "b.json"),
            ]
        )
        == 1
    )
    assert "holds beam data" in capsys.readouterr().err
    assert (
        main(
            [
                "export",
                str(tmp_path / "in"),
                "--format",
                "v2",
                "--out",
                str(tmp_path / "b.ckpt"),
            ]
        )
        == 1
    )
    assert "say which checkpoint" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_is_written_for_the_earlier_tools_and_reads_back(
    tiny_run, tmp_path: Path, capsys
) -> None:
    def export(layout: str) -> int:
        out = str(tmp_path / f"{layout}.json")
        return main(
            [
                "export",
                str(tiny_run.folder),
                "--store",
                str(tiny_run.store),
                "--format",
                layout,
                "--out",
                out,
            ]
        )

    assert export("rl") == 0
    value = json.loads((tmp_path / "rl.json").read_text())
    groups = read_groups(value, "rl.json").groups()
    assert all(len(group.pool) == 16 for group in groups)
    assert all(group.query.startswith("train-") for group in groups)
    assert {len(member.demos) for group in groups for member in group.members} == {1}
    assert export("metrics") == 0
    written = {
        key.rpartition("-")[2]: row
        for key, row in json.loads((tmp_path / "metrics.json").read_text()).items()
    }
    learned = tiny_run.report["arms"]["learned"]["shots"]
    assert written["learned"] == {
        f"shot_num={shots}": value for shots, value in learned.items()
    }
    capsys.readouterr()
    assert export("beam") == 1  # searched at one shot only
    assert "no sequence of 2 demonstrations" in capsys.readouterr().err
    assert export("v2") == 1  # sees answers, which the earlier code cannot hold
    assert "cannot be written for the earlier code" in capsys.readouterr().err
