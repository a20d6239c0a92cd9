"""How far the world predicts recorded tables: ranks by hand, and the page and the picture say what the records hold."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from benchmarking import load_benchmark

from leverplus.lab.real import WayRecord, read_records
from leverplus.rundir import shipped

ROOT = Path(__file__).parents[2]
ways = load_benchmark("world_tables")


def record(arm: str, shots: str, mean: float) -> WayRecord:
    return WayRecord("task", "model", arm, "free", shots, "", 1, mean, ["a"], [0], np.array([mean]))


def test_ranks_are_compared_over_the_ways_that_a_table_has() -> None:
    own = [record("zero_shot", "best", 0.1), record("random", "1", 0.2), record("nearest", "1", 0.3)]
    own.append(record("oracle", "1", 0.9))
    small = {"zero-shot": 0.3, "random, 1 shot": 0.1, "nearest, 1 shot": 0.2, "oracle, 1 shot": 0.8}
    large = {"zero-shot": 0.1, "random, 1 shot": 0.2, "nearest, 1 shot": 0.7}
    (row,) = ways.correlations(small, large, own)
    assert row["ways"] == 3
    # ranks 3 1 2 against 1 2 3: 1 - 6 * (4 + 1 + 1) / (3 * 8); with the oracle 1 - 6 * 6 / (4 * 15)
    assert row["without_oracle"] == pytest.approx(-0.5)
    assert row["all"] == pytest.approx(0.4)
    assert row["large"] == pytest.approx(1.0)


def test_large_pools_are_the_mean_over_worlds_and_have_no_oracle() -> None:
    arms = {"random": {"1": [0.0, 1.0], "4": [1.0, 1.0]}}
    other = {"random": {"1": [1.0, 1.0], "4": [0.0, 0.0]}}
    records = {
        "a": {"pool": 4096, "accuracy": arms},
        "b": {"pool": 4096, "accuracy": other},
        "c": {"pool": 64, "accuracy": {"random": {"1": [0.0], "4": [0.0]}}},
    }
    assert ways.large_accuracies(records) == {"random, 1 shot": 0.75, "random, most shots": 0.5}


def test_the_page_and_the_picture_are_those_of_the_records() -> None:
    world = ways.world_accuracies(json.loads((ROOT / "docs" / "bench.json").read_text(encoding="utf-8")))
    with gzip.open(ways.CURVES, "rt", encoding="utf-8") as file:
        large = ways.large_accuracies(json.load(file)["records"])
    rows = ways.correlations(world, large, read_records(shipped("tables:real")))
    assert len(rows) == 15
    assert ways.table(rows) in (ROOT / "docs" / "world.md").read_text(encoding="utf-8")
    assert ways.picture(rows) == (ROOT / "docs" / "pictures" / "world_tables.svg").read_text(encoding="utf-8")
