"""`lever demos audit` names the demonstrations that help and harm, with their texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leverplus.cli.main import main

TABLE = "tables:okvqa-qwen2.5-coder-1.5b.parquet"


def test_both_ends_of_the_shipped_table_are_shown_with_texts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demos", "audit", TABLE, "--show", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["useful"]) == len(found["harmful"]) == 5
    assert not found["is_noise"]
    assert found["useful"][0]["effect"] > 0.01 > -0.01 > found["harmful"][0]["effect"]
    assert all(" -> " in row["text"] for row in found["useful"] + found["harmful"])
    assert 0.01 < found["effect_sd"] < 0.05


def test_a_strange_file_of_items_and_a_missing_table_are_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "items.jsonl"
    bad.write_text("[1]\n", encoding="utf-8")
    assert main(["demos", "audit", TABLE, "--items", str(bad)]) == 1
    assert "line 1: no item with an id" in capsys.readouterr().err
    assert main(["demos", "audit", "nowhere.parquet"]) == 1
    assert "there is no recorded table" in capsys.readouterr().err
    assert main(["demos", "audit", TABLE, "--items", str(tmp_path / "none")]) == 1
    assert "there is no such file" in capsys.readouterr().err
