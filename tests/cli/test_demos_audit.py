"""`lever demos audit` names the demonstrations that help and harm, with their texts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_world import TinyRun

from leverplus.bundle.selector import Selector
from leverplus.cli.main import main

TABLE = "tables:okvqa-qwen2.5-coder-1.5b.parquet"


@pytest.mark.slow
def test_both_ends_of_the_shipped_table_are_shown_with_texts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["demos", "audit", TABLE, "--show", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["useful"]) == len(found["harmful"]) == 5
    assert not found["is_noise"]
    assert found["useful"][0]["effect"] > 0.01 > -0.01 > found["harmful"][0]["effect"]
    assert all(" -> " in row["text"] for row in found["useful"] + found["harmful"])
    assert 0.01 < found["effect_sd"] < 0.05


def test_a_shipped_table_is_named_as_fit_names_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("tables:okvqa-sample", "tables:okvqa-sample.parquet"):
        assert main(["demos", "audit", name, "--show", "2"]) == 0
    first, second = capsys.readouterr().out.split("6,757 answers")[1:]
    assert first == second


def test_a_run_and_a_bundle_are_audited_by_what_training_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_run: TinyRun
) -> None:
    run, bundle = shutil.copytree(tiny_run.folder, tmp_path / "b.run"), tmp_path / "b"
    assert main(["pack", str(run), "--out", str(bundle)]) == 0
    capsys.readouterr()
    assert (
        main(["demos", "audit", str(bundle)]) == 1
    )  # this run showed every demonstration to one or two queries
    assert "give `lever fit` more --calls" in capsys.readouterr().err
    shown = {demo.id: demo for _, demo in Selector.load(bundle).source.all()}
    lines = [
        {"demo": name, "effect": 0.1, "error": 0.02, "shown": 9}
        for name in list(shown)[:3]
    ]
    own = {
        "answers": 27,
        "queries": 9,
        "demonstrations": 3,
        "effect_sd": 0.1,
        "reliability": 0.5,
        "is_noise": False,
    }
    own |= {"useful": lines, "harmful": lines[::-1]}
    path = next(run.glob("groups-*.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "effects": own}))
    for source in (bundle, run):
        assert main(["demos", "audit", str(source), "--show", "2", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["answers"] == own["answers"]
        assert [row["demo"] for row in found["harmful"]] == [
            line["demo"] for line in own["harmful"][:2]
        ]
        worst = shown[found["harmful"][0]["demo"]]
        assert (
            found["harmful"][0]["text"]
            == f"{worst.id}: {worst.question[:100]} -> {worst.answer}"
        )


@pytest.mark.slow
def test_a_strange_file_of_items_and_a_missing_table_are_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "items.jsonl"
    bad.write_text("[1]\n", encoding="utf-8")
    assert main(["demos", "audit", TABLE, "--items", str(bad)]) == 1
    assert "must be an object" in capsys.readouterr().err
    assert main(["demos", "audit", "nowhere.parquet"]) == 1
    assert "name a bundle, a run folder, or a recorded table" in capsys.readouterr().err
    assert main(["demos", "audit", TABLE, "--items", str(tmp_path / "none")]) == 1
    assert "there is no file" in capsys.readouterr().err
