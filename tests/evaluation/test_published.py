"""A published table: what it can show over the assumed range, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from leverplus.errors import LeverError
from leverplus.evaluation.published import check_published, compare_published, read_published, row_in_words
from leverplus.stats import Changes, plan_n

TABLE: dict[str, Any] = {
    "n": 800,
    "arms": {
        "baseline": {"1": 48.55, "2": 47.75, "3": 48.15, "4": 47.45},
        "new": {"1": 50.02, "2": 48.10, "3": 47.73, "4": 47.56},
    },
}


def test_a_small_gain_on_800_items_is_within_noise_at_both_ends_and_says_how_many_items_would_settle_it() -> None:
    report = compare_published(check_published(TABLE, "table"))
    assert report["unit"] == "percent"
    assert report["discordance"] == [0.05, 0.30]
    mean = report["comparisons"][-1]
    assert mean["shots"] == "mean"
    assert math.isclose(mean["diff"], 0.003775)
    assert [end["within_noise"] for end in mean["assuming"]] == [True, True]
    assert [end["n_needed"] for end in mean["assuming"]] == [
        plan_n(0.003775, Changes(0.05)),
        plan_n(0.003775, Changes(0.30)),
    ]
    text = row_in_words(mean, 800)
    assert "+0.38 points" in text
    assert "if 5 % of the items differ it is within noise" in text
    assert "if 30 % of the items differ it is within noise" in text


def test_a_large_gain_is_outside_the_noise_where_few_items_differ_only() -> None:
    table = check_published({"n": 800, "arms": {"a": {"1": 0.50}, "b": {"1": 0.53}}}, "table")
    low, high = compare_published(table)["comparisons"][0]["assuming"]
    assert (low["within_noise"], high["within_noise"]) == (False, True)


def test_many_rows_are_corrected_for_each_other() -> None:
    few = check_published({"n": 800, "arms": {"a": {"1": 0.500}, "b": {"1": 0.519}}}, "table")
    alone = compare_published(few)["comparisons"][0]["assuming"][0]
    assert not alone["within_noise"]
    arms = {"a": {"1": 0.500}, "b": {"1": 0.519}, **{f"c{i}": {"1": 0.506} for i in range(9)}}
    among = compare_published(check_published({"n": 800, "arms": arms}, "table"))["comparisons"][0]["assuming"][0]
    assert among["p_value"] == alone["p_value"]
    assert among["within_noise"]


def test_a_difference_larger_than_the_assumed_discordance_is_given_its_own_size() -> None:
    table = check_published({"n": 100, "arms": {"a": {"1": 0.2}, "b": {"1": 0.6}}}, "table")
    assert [end["discordance"] for end in compare_published(table)["comparisons"][0]["assuming"]] == pytest.approx(
        [0.4, 0.4]
    )


def test_percent_and_fractions_give_the_same() -> None:
    percent = {"n": 800, "arms": {"a": {"1": 48.0, "2": 50.0}, "b": {"1": 53.0, "2": 46.0}}}
    fractions = {"n": 800, "arms": {"a": {"1": 0.48, "2": 0.5}, "b": {"1": 0.53, "2": 0.46}}}
    first, second = (compare_published(check_published(table, "t")) for table in (percent, fractions))
    assert (first["unit"], second["unit"]) == ("percent", "fraction")
    assert [row["diff"] for row in first["comparisons"]] == pytest.approx([0.05, -0.04, 0.005])
    assert [row["diff"] for row in second["comparisons"]] == pytest.approx([0.05, -0.04, 0.005])


@pytest.mark.parametrize(
    ("table", "phrase"),
    [
        ({"arms": {"a": {"1": 0.5}, "b": {"1": 0.5}}}, "n = None must be the number of items"),
        ({"n": {"a": 800, "b": 400}, "arms": {"a": {"1": 0.5}, "b": {"1": 0.5}}}, "same items"),
        ({"n": 800, "arms": {"a": {"1": 0.5}}}, "at least two arms"),
        ({"n": 800, "arms": {"a": {"1": 0.5}, "b": {"1": 1.2}}}, "largest accuracy is 1.2, above 1"),
        ({"n": 800, "arms": {"a": {"1": 0.5}, "b": {"1": 48.0}}}, "seem mixed"),
        ({"n": 800, "arms": {"a": {"1": 50}, "b": {"1": 101}}}, "above 100"),
        ({"n": 800, "unit": "fraction", "arms": {"a": {"1": 0.5}, "b": {"1": 1.2}}}, "above 1 "),
        ({"n": 800, "arms": {"a": {"1": 0.5}, "b": {"1": -0.1}}}, "at least 0"),
        ({"n": 800, "arms": {"a": {"1": 0.5}, "b": {"2": 0.5}}}, "give all arms the same"),
        ({"n": 800, "arms": {"a": {"one": 0.5}, "b": {"one": 0.5}}}, "write whole numbers"),
        ([1], "must hold"),
    ],
)
def test_bad_tables_are_refused_with_a_sentence(table: Any, phrase: str) -> None:
    with pytest.raises(LeverError, match=phrase):
        check_published(table, "table")


def test_a_file_is_read_and_an_unknown_baseline_is_answered_with_the_known_arms(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE))
    with pytest.raises(LeverError, match="known: baseline, new"):
        compare_published(read_published(path), "old")
    path.write_text("{")
    with pytest.raises(LeverError, match="is not JSON"):
        read_published(path)
