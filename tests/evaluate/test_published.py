"""A published table: what it can show over the assumed range, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from leverplus.errors import LeverError
from leverplus.evaluate.published import (
    PublishedRow,
    assume,
    check_published,
    compare_published,
    read_published,
)
from leverplus.evaluate.stats import Changes, mcnemar_test, plan_n
from leverplus.evaluate.stats.power import minimum_detectable_effect

TABLE: dict[str, Any] = {
    "n": 800,
    "arms": {
        "baseline": {"1": 48.55, "2": 47.75, "3": 48.15, "4": 47.45},
        "new": {"1": 50.02, "2": 48.10, "3": 47.73, "4": 47.56},
    },
}


def rows(**arms: dict[str, float]) -> list[PublishedRow]:
    return compare_published(check_published({"n": 800, "arms": arms}, "table")).rows


@pytest.mark.slow
def test_a_small_gain_on_800_items_is_within_noise_at_both_ends_and_says_how_many_items_would_settle_it() -> (
    None
):
    report = compare_published(check_published(TABLE, "table"))
    assert report.table.unit == "percent"
    mean = report.rows[-1]
    assert mean.shots == "mean"
    assert math.isclose(mean.diff, 0.003775)
    assert mean.within_noise
    assert [end.n_needed for end in mean.assuming] == [
        plan_n(0.003775, Changes(0.05)),
        plan_n(0.003775, Changes(0.30)),
    ]
    text = mean.in_words(800)
    assert "+0.38 points" in text
    assert "if 5 % of the items differ it is within noise" in text
    assert "if 30 % of the items differ it is within noise" in text
    values = report.as_json()
    assert values["discordance"] == [0.05, 0.30]
    assert values["arms"]["new"]["mean"] == pytest.approx(0.483525)
    assert json.loads(json.dumps(values))["comparisons"][0]["assuming"][0]["se"] > 0


def test_a_large_gain_is_outside_the_noise_where_few_items_differ_only() -> None:
    low, high = rows(a={"1": 0.50}, b={"1": 0.53})[0].assuming
    assert (low.within_noise, high.within_noise) == (False, True)


@pytest.mark.slow
def test_many_rows_are_corrected_for_each_other() -> None:
    alone = rows(a={"1": 0.500}, b={"1": 0.519})[0].assuming[0]
    assert not alone.within_noise
    others = {f"c{i}": {"1": 0.506} for i in range(9)}
    among = rows(a={"1": 0.500}, b={"1": 0.519}, **others)[0].assuming[0]
    assert among.p_value == alone.p_value
    assert among.within_noise


def test_a_row_by_hand_and_at_the_ends_of_what_is_possible() -> None:
    row = assume(200, 0.1, 0.2, 0.01)
    se = ((0.2 - 0.01) / 200) ** 0.5
    assert row.se == pytest.approx(se)
    assert row.ci95 == pytest.approx((0.1 - 1.959964 * se, 0.1 + 1.959964 * se))
    assert row.p_value == pytest.approx(mcnemar_test(30, 10))
    assert row.mde80 == minimum_detectable_effect(200, Changes(0.2))
    assert row.n_needed == plan_n(0.1, Changes(0.2))
    assert (row.p_adjusted, row.within_noise) == (0.01, False)
    assert assume(200, 0.1, 0.2, 0.05).within_noise
    assert assume(2, 1.0, 1.0, 1.0).ci95 == (1.0, 1.0)
    assert assume(2, -0.5, 1.0, 1.0).ci95[0] == -1.0
    assert assume(2, 0.5, 1.0, 1.0).ci95[1] == 1.0
    equal = assume(800, 0.0, 0.05, 1.0)
    assert (equal.n_needed, equal.p_value) == (None, 1.0)
    # two arms differ on at least as many items as their accuracies do
    assert assume(100, 0.4, 0.05, 1.0).discordance == pytest.approx(0.4)


def test_percent_and_fractions_give_the_same() -> None:
    percent = rows(a={"1": 48.0, "2": 50.0}, b={"2": 46.0, "1": 53.0})
    fractions = rows(a={"1": 0.48, "2": 0.5}, b={"1": 0.53, "2": 0.46})
    for table in (percent, fractions):
        assert [row.diff for row in table] == pytest.approx([0.05, -0.04, 0.005])


@pytest.mark.parametrize(
    ("table", "phrase"),
    [
        ({"arms": {"a": {"1": 0.5}, "b": {"1": 0.5}}}, "n: Field required"),
        (
            {"n": {"a": 800, "b": 400}, "arms": {"a": {"1": 0.5}, "b": {"1": 0.5}}},
            "same items",
        ),
        ({"n": True, "arms": {"a": {"1": 0.5}, "b": {"1": 0.5}}}, "n: "),
        ({"n": 1, "arms": {"a": {"1": 0.5}, "b": {"1": 0.5}}}, "n: "),
        ({"n": 800, "arms": {"a": {"1": 0.5}}}, "at least 2"),
        ({"n": 800, "arms": {"a": {}, "b": {}}}, "give all arms the same"),
        (
            {"n": 800, "arms": {"a": {"1": 0.5}, "b": {"1": 1.2}}},
            "largest accuracy is 1.2, above 1",
        ),
        ({"n": 800, "arms": {"a": {"1": 0.5}, "b": {"1": 48.0}}}, "seem mixed"),
        ({"n": 800, "arms": {"a": {"1": 50}, "b": {"1": 101}}}, "above 100"),
        (
            {"n": 800, "unit": "fraction", "arms": {"a": {"1": 0.5}, "b": {"1": 1.2}}},
            "above 1 ",
        ),
        ({"n": 800, "arms": {"a": {"1": 0.5}, "b": {"1": -0.1}}}, "equal to 0"),
        ({"n": 800, "arms": {"a": {"1": 0.5}, "b": {"1": math.nan}}}, "finite"),
        (
            {"n": 800, "arms": {"a": {"1": 0.5}, "b": {"2": 0.5}}},
            "give all arms the same",
        ),
        ({"n": 800, "arms": {"a": {"one": 0.5}, "b": {"one": 0.5}}}, "arms.a.one"),
        ([1], "must hold"),
    ],
)
def test_bad_tables_are_refused_with_a_sentence(table: Any, phrase: str) -> None:
    with pytest.raises(LeverError, match=phrase):
        check_published(table, "table")


def test_a_file_is_read_and_an_unknown_baseline_is_answered_with_the_known_arms(
    tmp_path: Path,
) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE))
    with pytest.raises(LeverError, match="known: baseline, new"):
        compare_published(read_published(path), "old")
    path.write_text("{")
    with pytest.raises(LeverError, match="is not JSON"):
        read_published(path)
