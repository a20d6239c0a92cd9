"""Help and harm, copying, use of demonstrations and agreement, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from handmade import results_from

from leverplus.errors import EvaluationError
from leverplus.evaluation.behaviour import agreement, copied, copied_table, harm_table, help_and_harm, usage
from leverplus.evaluation.predictions import Prediction
from leverplus.types import Demos, ItemId


def demos(text: str) -> Demos:
    return tuple(ItemId(letter) for letter in text)


def test_help_and_harm_count_changes_and_of_these_the_mended_and_the_broken() -> None:
    own, base = np.array([1.0, 0.3, 0.0, 0.6, 0.9, 0.0]), np.array([0.0, 0.0, 0.3, 0.9, 0.9, 0.0])
    assert help_and_harm(own, base) == {
        "n": 6, "helped": 2, "harmed": 2, "unchanged": 2, "mended": 2, "broken": 1,
    }  # fmt: skip


def test_the_harm_table_sets_every_arm_against_zero_shot_and_the_selector_against_every_baseline() -> None:
    results = results_from(
        {
            "zero_shot": {0: [1, 0, 0, 1]},
            "random": {1: [0, 0, 0, 1], 2: [1, 1, 0, 1]},
            "learned": {1: [1, 1, 0, 0], 2: [1, 1, 1, 1]},
            "oracle": {1: [1, 1, 1, 1]},
        }
    )
    rows = {(row["arm"], row["baseline"], row["shots"]): (row["helped"], row["harmed"]) for row in harm_table(results)}
    assert rows == {
        ("random", "zero_shot", 1): (0, 1),
        ("random", "zero_shot", 2): (1, 0),
        ("learned", "zero_shot", 1): (1, 1),
        ("learned", "zero_shot", 2): (2, 0),
        ("oracle", "zero_shot", 1): (2, 0),
        ("learned", "random", 1): (2, 1),
        ("learned", "random", 2): (1, 0),
    }


def test_copies_are_counted_by_position_right_and_wrong() -> None:
    shown = {ItemId("a"): "red", ItemId("b"): "The Blue", ItemId("c"): "red"}
    predictions = [
        Prediction(ItemId("1"), demos("ab"), "blue", 0.0),  # copied from position 2, wrong; spelling normalised
        Prediction(ItemId("2"), demos("ac"), "red", 1.0),  # copied, shown at both positions
        Prediction(ItemId("3"), demos("ba"), "green", 1.0),
        Prediction(ItemId("4"), demos("ab"), "red", 0.3),  # copied from position 1, partly right
    ]
    assert copied(predictions, shown.__getitem__) == {
        "copied": 0.75,
        "right": 0.5,
        "wrong": 0.25,
        "by_position": [
            {"position": 1, "copied": 0.5, "right": 0.5, "wrong": 0.0},
            {"position": 2, "copied": 0.5, "right": 0.25, "wrong": 0.25},
        ],
    }


def test_arms_that_ask_no_model_copy_by_design_and_are_left_out() -> None:
    results = results_from({"zero_shot": {0: [0, 1]}, "majority": {1: [0, 1]}, "learned": {1: [1, 1]}})
    assert list(copied_table(results, lambda _: "x")) == ["learned"]


def test_usage_counts_distinct_demonstrations_and_how_evenly_they_are_used() -> None:
    even = usage([demos("ab"), demos("cd")])
    assert (even["distinct"], even["top_share"]) == (4, 0.5)
    assert math.isclose(even["effective"], 4.0)
    hub = usage([demos("a"), demos("a"), demos("a"), demos("")])
    assert (hub["distinct"], hub["top_share"], hub["mean_length"], hub["none_share"]) == (1, 0.75, 0.75, 0.25)
    assert math.isclose(hub["effective"], 1.0)
    half = usage([demos("a"), demos("a"), demos("b"), demos("c")])
    assert math.isclose(half["effective"], math.exp(0.5 * math.log(2) + 0.5 * math.log(4)))


def test_agreement_counts_identical_lists_positions_and_overlap() -> None:
    found = agreement(
        [demos("ab"), demos("ab"), demos("a"), demos("")], [demos("ab"), demos("ba"), demos("ac"), demos("")]
    )
    assert found.identical == 0.5
    assert found.by_position == (2 / 3, 0.5)
    assert math.isclose(found.jaccard, (1 + 1 + 0.5 + 1) / 4)


def test_agreement_needs_the_same_items() -> None:
    with pytest.raises(EvaluationError, match="same items"):
        agreement([demos("a")], [])
