"""The page on training from recorded answers says what its records say."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from benchmarking import load_benchmark

PAGE = Path(__file__).parents[2] / "docs" / "trained-figures.md"


@pytest.mark.slow
def test_the_table_follows_from_the_records() -> None:
    study = load_benchmark("trained_structured")
    records = []
    for path in sorted(study.HERE.glob("*-trained.parquet")):
        records += pq.read_table(path).to_pylist()
    assert study.report(records) in PAGE.read_text(encoding="utf-8")


def test_right_and_wrong_examples_are_put_in_order_by_their_scores() -> None:
    study = load_benchmark("trained_structured")
    np = study.np
    asked = study.Asked(None, [4, 5, 6], np.array([0.0, 1.0, 1.0]), np.ones(3))
    even = study.Asked(None, [4, 5], np.array([0.0, 0.0]), np.ones(2))
    found = study.judged([asked, even], [np.array([2.0, 3.0, 1.0]), np.zeros(2)])
    assert found[0].tolist() == [1.0, 0.5], "one of two right ones is ahead"
    assert found[1, 0] == 0.0
    assert np.isnan(found[1, 1]), "there is nothing to put in order"
