"""Queries and candidates are written one by one, with empty cells where nobody measured."""

from __future__ import annotations

import csv

import pytest

from leverplus.doctor.listing import CANDIDATES, QUERIES, Listing
from leverplus.doctor.quality import Sample
from leverplus.errors import LeverError

SAMPLES = [
    Sample(("a", "b"), 1.0, 0.75, "beam", rank=0),
    Sample(("b",), 0.0, 0.25, "random", estimated=True),
    Sample(("b",), 0.5, None, "random", borrowed=True),
    Sample(("c",), None),
]


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_line_for_every_query_and_every_candidate(tmp_path):
    queries, candidates = tmp_path / "q.csv", tmp_path / "c.csv"
    with Listing(queries, candidates) as listing:
        listing("q1", SAMPLES)
        listing("q2", [Sample(("a",), None)])
    one, two = rows_of(queries)
    assert list(one) == list(QUERIES)
    assert (one["members"], one["distinct"], one["positives"], one["flat"], one["tier"]) == ("4", "3", "2", "0", "low")
    assert [float(one[key]) for key in ("mean_accuracy", "best_accuracy", "worst_accuracy")] == [0.5, 1.0, 0.0]
    assert (float(one["mean_gt_prob"]), float(one["gt_prob_range"])) == (0.5, 0.5)
    assert (float(one["pick_accuracy"]), float(one["behind_best"])) == (1.0, 0.0)
    assert two == {**dict.fromkeys(QUERIES, ""), "query": "q2", "members": "1", "distinct": "1"}
    listed = rows_of(candidates)
    assert list(listed[0]) == list(CANDIDATES)
    assert [row["demos"] for row in listed] == ["a b", "b", "b", "c", "a"]
    assert [row["accuracy"] for row in listed] == ["1.0", "0.0", "0.5", "", ""]
    assert [(row["estimated"], row["borrowed"]) for row in listed[1:3]] == [("1", "0"), ("0", "1")]


def test_nothing_is_left_when_reading_fails_and_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(RuntimeError), Listing(tmp_path / "q.csv") as listing:  # noqa: PT012
        listing("q1", SAMPLES)
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LeverError, match="choose another place"), Listing(tmp_path / "no" / "q.csv"):
        pass
