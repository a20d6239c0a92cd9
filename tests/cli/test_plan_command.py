"""`lever plan` reads a recorded table and says what choosing by effects could gain."""

from __future__ import annotations

import json

import pytest

from leverplus.cli.main import main

TABLE = "tables:okvqa-qwen2.5-coder-1.5b.parquet"


def test_the_shipped_table_shows_shares_that_sum_to_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", TABLE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["calls"] == 600
    own = found["shares"]
    assert own["query"] + own["demonstration"] + own["interaction_and_luck"] == pytest.approx(1.0)
    assert own["query"] > 0.5, "how easy a question is decides most"
    assert [row["calls"] for row in found["gains"]] == [1000, 4000, 16000, 64000]
    for row in found["gains"]:
        assert row["ci95"][0] <= row["gain"] <= row["ci95"][1]


def test_it_says_it_in_words_and_refuses_a_table_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", TABLE, "--queries", "40", "--demos", "5"]) == 0
    out = capsys.readouterr().out
    assert "pilot: 40 queries x 5 demonstrations = 200 calls" in out
    assert "interaction and luck" in out
    assert main(["plan", "nowhere.parquet"]) == 1
    assert "there is no recorded table nowhere.parquet" in capsys.readouterr().err
