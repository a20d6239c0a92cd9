"""The worlds that recipes were chosen on and those that are reported (`benchmarks/dev_worlds.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarking import load_benchmark

dev_worlds = load_benchmark("dev_worlds")
RESULTS = Path(__file__).parents[2] / "docs" / "results.md"


def test_a_joint_interval_by_hand() -> None:
    dev = {"share": 0.80, "ci95": [0.77, 0.84]}
    reported = {"share": 0.75, "ci95": [0.72, 0.79]}
    found = dev_worlds.apart(dev, reported)
    assert found["difference"] == pytest.approx(0.05)
    assert found["ci95"] == pytest.approx([0.05 - 0.05, 0.05 + 0.05])  # 3-4-5 triangles: .03 and .04, .04 and .03


def test_the_two_sets_of_worlds_differ_by_no_more_than_their_joint_interval() -> None:
    both = dev_worlds.compare()
    assert list(both) == [32_000, 128_000]
    for budget, row in both.items():
        assert not set(row["dev"]["worlds"]) & set(row["reported"]["worlds"])
        assert row["ci95"][0] <= 0.0 <= row["ci95"][1]
        assert dev_worlds.line(budget, row) in RESULTS.read_text(encoding="utf-8")
