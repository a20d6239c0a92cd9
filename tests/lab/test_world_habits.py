"""Copying in a recorded table counts random candidates with one demonstration; exchanging leaves the rest as it was."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarking import load_benchmark

habits = load_benchmark("world_habits")


def test_copies_are_counted_among_the_random_candidates_of_one_demonstration(tmp_path: Path) -> None:
    demos = [f"d{place}" for place in range(64)]
    shown = dict.fromkeys(demos, "cat")
    answers = ["cat"] * 48 + ["cat"] * 4 + ["dog"] * 12  # near ones copy always, 4 of the 16 random ones do
    rows = {"query": ["q"] * 66, "demos": [[], *[[demo] for demo in demos], ["d0", "d1"]]}
    pq.write_table(pa.table({**rows, "answer": ["cat", *answers, "cat"]}), tmp_path / "t.parquet")
    assert habits.copied_in_table(tmp_path / "t.parquet", shown) == (0.25, 1)


def test_every_shipped_item_shows_its_most_common_answer() -> None:
    shown = habits.shown_answers()
    assert len(shown) == 5045
    assert shown["3473675"] == "airplane"
