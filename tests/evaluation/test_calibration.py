"""Batch calibration: worked by hand, undoes a known bias, and leaves what it cannot calibrate alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from handmade import item_ids, results_from

from leverplus.errors import NotMeasured
from leverplus.evaluation.calibration import add_calibrated, calibrate
from leverplus.evaluation.evaluate import compared_pairs, gap_closed, summary
from leverplus.evaluation.predictions import Prediction, Results
from leverplus.types import Item, ItemId


class Labelled:
    """A task whose item i has the label of the given list."""

    metric = "label_accuracy"

    def __init__(self, labels: Sequence[str]) -> None:
        self.known = dict(zip(item_ids(len(labels)), labels, strict=True))

    def item(self, item_id: ItemId) -> Item:
        return Item(item_id, "?", (self.known[item_id],), "test")


def predictions(rows: Sequence[dict[str, float]], task: Labelled) -> list[Prediction]:
    """What the model says: the likeliest label."""
    found = []
    for item, choices in zip(task.known, rows, strict=True):
        answer = max(choices, key=choices.__getitem__)
        found.append(Prediction(item, (), answer, float(answer == task.known[item]), choices=choices))
    return found


def test_two_labels_of_four_items_are_calibrated_as_by_hand() -> None:
    task = Labelled(["a", "b", "b", "a"])
    given = predictions(
        [{"a": -1.0, "b": -4.0}, {"a": -2.0, "b": -3.0}, {"a": -2.0, "b": -2.5}, {"a": -1.0, "b": -2.5}], task
    )
    assert [own.answer for own in given] == ["a", "a", "a", "a"]
    # means -1.5 and -3: the margins a - b of 3, 1, 0.5, 1.5 lose 1.5
    found = calibrate(given, task)
    assert [own.answer for own in found] == ["a", "b", "b", "a"]
    assert [own.accuracy for own in found] == [1.0, 1.0, 1.0, 1.0]
    assert [own.item for own in found] == [own.item for own in given]


def test_a_bias_that_all_prompts_share_is_undone_exactly() -> None:
    rng = np.random.default_rng(0)
    labels = [("a", "b", "c")[row % 3] for row in range(60)]
    task = Labelled(labels)
    clean = [{label: rng.normal() + 2.0 * (label == truth) - 9.0 for label in "abc"} for truth in labels]
    biased = [{"a": row["a"] + 5.0, "b": row["b"], "c": row["c"] - 1.0} for row in clean]
    undone = calibrate(predictions(biased, task), task)
    assert [own.answer for own in undone] == [own.answer for own in calibrate(predictions(clean, task), task)]
    before = np.mean([own.accuracy for own in predictions(biased, task)])
    assert before < 0.4
    assert np.mean([own.accuracy for own in undone]) > 0.7


def test_every_arm_but_oracles_and_votes_has_a_calibrated_twin_draw_by_draw() -> None:
    task = Labelled(["a", "b"])
    given = predictions([{"a": math.log(0.6), "b": math.log(0.4)}, {"a": math.log(0.9), "b": math.log(0.1)}], task)
    plain = [Prediction(own.item, (), own.answer, own.accuracy) for own in given]
    results = Results(list(task.known), ["x", "y"])
    for arm, shots in (("zero_shot", 0), ("random", 1), ("random", 1), ("learned", 1), ("oracle", 1)):
        results.add(arm, shots, given)
    results.add("label_vote", 0, plain)
    add_calibrated(results, task)
    added = [arm for arm in results.draws if arm.endswith("_calibrated")]
    assert added == ["zero_shot_calibrated", "random_calibrated", "learned_calibrated"]
    assert len(results.draws["random_calibrated"][1]) == 2
    pairs = compared_pairs(results)
    assert ("learned", "random_calibrated") in pairs
    assert ("learned_calibrated", "random_calibrated") in pairs
    assert ("learned_calibrated", "random") not in pairs


def test_arms_without_a_number_of_shots_close_no_gap() -> None:
    table = results_from(
        {
            "zero_shot_calibrated": {0: [0, 0, 0, 0]},
            "random": {1: [0, 0, 0, 0]},
            "learned": {1: [1, 0, 1, 0]},
            "oracle": {1: [1, 1, 1, 1]},
        }
    )
    assert gap_closed(summary(table)["arms"]) == {"learned": {"1": 0.5, "mean": 0.5}}


def test_answers_without_log_probabilities_cannot_be_calibrated() -> None:
    task = Labelled(["a", "b"])
    whole = predictions([{"a": -1.0, "b": -2.0}, {"a": -1.0, "b": -2.0}], task)
    with pytest.raises(NotMeasured, match=r"eval\.calibrate = false"):
        calibrate([whole[0], Prediction(whole[1].item, (), "a", 0.0)], task)
