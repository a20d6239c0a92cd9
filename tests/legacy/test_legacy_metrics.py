"""Metrics files are read, written back, and made into tables that can be compared."""

from __future__ import annotations

import pytest
from legacy_files import metrics

from leverplus.errors import DataError
from leverplus.evaluation.published import check_published
from leverplus.legacy.imports import kind_of
from leverplus.legacy.metrics import metrics_from_report, published_tables, read_metrics, write_metrics


def test_metrics_survive_import_and_export() -> None:
    assert kind_of(metrics()) == "metrics"
    assert write_metrics(read_metrics(metrics(), "m.json")) == metrics()


def test_arms_on_the_same_items_and_shots_become_a_table_that_compare_reads() -> None:
    tables = published_tables(read_metrics(metrics(), "m.json"))
    assert list(tables) == ["n800-shots1_2_3_4"]
    table = check_published(tables["n800-shots1_2_3_4"], "table")
    assert table.n == 800
    assert table.arms["LeverLMRetriever"]["2"] == 0.4833


def test_two_runs_of_one_retriever_stay_apart() -> None:
    value = {f"2025-12-2{day} 10:00:00.000-test_data_num=100-Random": {"shot_num=1": 0.5 + day / 100} for day in (1, 2)}
    table = published_tables(read_metrics(value, "m.json"))["n100-shots1"]
    assert set(table["arms"]) == {"Random 2025-12-21 10:00:00.000", "Random 2025-12-22 10:00:00.000"}


def test_values_that_are_no_accuracy_are_named() -> None:
    value = {"2025-test_data_num=100-Random": {"shot_num=1": "0.5", "shots": 0.5, "shot_num=2": float("nan")}}
    with pytest.raises(DataError, match="3 problems"):
        read_metrics(value, "m.json")


def test_an_evaluation_made_here_can_be_written_for_the_earlier_tools() -> None:
    report = {
        "n": 300,
        "arms": {"learned": {"shots": {"1": 0.5, "2": 0.6}, "mean": 0.55}, "zero_shot": {"shots": {"0": 0.2}}},
    }
    written = write_metrics(metrics_from_report(report, "2026-01-01 00:00:00.000"))
    assert written["2026-01-01 00:00:00.000-test_data_num=300-learned"] == {"shot_num=1": 0.5, "shot_num=2": 0.6}
    assert read_metrics(written, "m.json")[1].accuracy == {0: 0.2}
