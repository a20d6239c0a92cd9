"""Tables of an evaluation worked by hand: means, gaps, comparisons, calibration, agreement of picks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from handmade import demos, item_ids, results_from

from leverplus.arms.voting import most_common
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.errors import EvaluationError, NotMeasured
from leverplus.evaluate.evaluate import (
    add_calibrated,
    arm_results,
    calibrate,
    compared_pairs,
    comparisons,
    gap_closed,
    oracle_any,
)
from leverplus.evaluate.predictions import Prediction, Results
from leverplus.evaluate.runs import agreement


def own(text: str, accuracy: float) -> Prediction:
    return Prediction(ItemId("q"), demos(text), "x", accuracy)


def test_a_vote_goes_to_the_most_common_answer_and_a_tie_to_the_nearest() -> None:
    rules = AnswerRules("vqa_accuracy")
    assert most_common(["red", "blue", "Red."], rules) == "Red."
    assert most_common(["red", "blue"], rules) == "blue"
    assert most_common(["red", "red", "blue"], rules) == "red"


def test_an_oracle_that_may_stop_takes_the_shortest_of_the_best() -> None:
    zero, steps = [own("", 0.6)], [[own("a", 0.3), own("ab", 0.6), own("abc", 1.0)]]
    chosen = [oracle_any(zero, steps, n)[0].demos for n in (1, 2, 3)]
    assert chosen == [(), (), demos("abc")]


def test_arms_have_means_over_shots_intervals_and_what_they_close_of_the_gap() -> None:
    results = results_from(
        {
            "zero_shot": {0: [0, 0, 1, 0]},
            "zero_shot_calibrated": {0: [0, 0, 0, 0]},
            "random": {1: [0, 0, 1, 0], 2: [0, 0, 1, 1]},
            "learned": {1: [1, 0, 1, 0], 2: [1, 0, 1, 1]},
            "oracle": {1: [1, 1, 1, 0], 2: [1, 1, 1, 1]},
            "oracle_exhaustive": {1: [1, 1, 1, 0]},
        }
    )
    results.add("random", 1, [Prediction(item, (), "x", 1.0) for item in results.items])
    found = arm_results(results, 7)
    assert (found["learned"].mean, found["zero_shot"].mean) == (0.625, 0.25)
    assert found["oracle_exhaustive"].mean is None
    assert found["random"].shots[1] == 0.625
    assert (found["learned"].training_calls, found["random"].training_calls) == (7, 0)
    low, high = found["learned"].ci95[1] or (1.0, 0.0)
    assert low < 0.5 < high
    closed = gap_closed(found)
    assert set(closed) == {"learned"}
    assert closed["learned"]["2"] == 0.5
    del found["oracle"]
    assert gap_closed(found) == {}


def test_an_arm_without_demonstrations_is_compared_with_every_shot() -> None:
    results = results_from(
        {"zero_shot": {0: [0, 0, 1, 0]}, "learned": {1: [1, 0, 1, 0], 2: [1, 1, 1, 1]}}
    )
    rows = comparisons(results, [("learned", "zero_shot")])
    assert [(row.shots, row.helped, row.harmed) for row in rows] == [
        (1, 1, 0),
        (2, 3, 0),
    ]
    assert all(row.p_adjusted >= row.p_value for row in rows)


class Labelled:
    """A task whose item i has the label of the given list."""

    answers = AnswerRules("label_accuracy")

    def __init__(self, labels: Sequence[str]) -> None:
        self.known = dict(zip(item_ids(len(labels)), labels, strict=True))

    def item(self, item_id: ItemId) -> Item:
        return Item(item_id, "?", (self.known[item_id],), "test")

    def predictions(self, rows: Sequence[dict[str, float]]) -> list[Prediction]:
        """What the model says: the likeliest label."""
        found = []
        for (item, label), row in zip(self.known.items(), rows, strict=True):
            answer = max(row, key=row.__getitem__)
            found.append(Prediction(item, (), answer, float(answer == label), row))
        return found


def test_two_labels_of_four_items_are_calibrated_as_by_hand() -> None:
    task = Labelled(["a", "b", "b", "a"])
    rows = [(-1.0, -4.0), (-2.0, -3.0), (-2.0, -2.5), (-1.0, -2.5)]
    given = task.predictions([{"a": a, "b": b} for a, b in rows])
    assert [own.answer for own in given] == ["a", "a", "a", "a"]
    # means -1.5 and -3: the margins a - b of 3, 1, 0.5, 1.5 lose 1.5
    found = calibrate(given, task)
    assert [own.answer for own in found] == ["a", "b", "b", "a"]
    assert [own.accuracy for own in found] == [1.0, 1.0, 1.0, 1.0]
    with pytest.raises(NotMeasured, match=r"eval\.calibrate = false"):
        calibrate([given[0], Prediction(given[1].item, (), "a", 0.0)], task)


def test_a_bias_that_all_prompts_share_is_undone_exactly() -> None:
    rng = np.random.default_rng(0)
    labels = [("a", "b", "c")[row % 3] for row in range(60)]
    task = Labelled(labels)
    clean, biased = [], []
    for truth in labels:
        row = {name: rng.normal() + 2.0 * (name == truth) - 9.0 for name in "abc"}
        clean.append(row)
        biased.append({**row, "a": row["a"] + 5.0, "c": row["c"] - 1.0})
    undone = calibrate(task.predictions(biased), task)
    expected = calibrate(task.predictions(clean), task)
    assert [own.answer for own in undone] == [own.answer for own in expected]
    assert np.mean([own.accuracy for own in task.predictions(biased)]) < 0.4
    assert np.mean([own.accuracy for own in undone]) > 0.7


def test_every_arm_but_oracles_and_votes_has_a_calibrated_twin_draw_by_draw() -> None:
    task = Labelled(["a", "b"])
    given = task.predictions([{"a": -0.5, "b": -0.9}, {"a": -0.1, "b": -2.3}])
    results = Results(list(task.known), ["x", "y"])
    for arm, shots in (
        ("zero_shot", 0),
        ("random", 1),
        ("random", 1),
        ("learned", 1),
        ("oracle", 1),
        ("label_vote", 0),
    ):
        results.add(arm, shots, given)
    add_calibrated(results, task)
    added = [arm for arm in results.draws if arm.endswith("_calibrated")]
    assert added == ["zero_shot_calibrated", "random_calibrated", "learned_calibrated"]
    assert len(results.draws["random_calibrated"][1]) == 2
    pairs = compared_pairs(results)
    assert ("learned", "random_calibrated") in pairs
    assert ("learned_calibrated", "random_calibrated") in pairs
    assert ("learned_calibrated", "random") not in pairs
    assert not any("oracle" in rival for _, rival in pairs)


def test_agreement_counts_identical_lists_positions_and_overlap() -> None:
    found = agreement(
        [demos("ab"), demos("ab"), demos("a"), demos("")],
        [demos("ab"), demos("ba"), demos("ac"), demos("")],
    )
    assert (found.n, found.identical) == (4, 0.5)
    assert found.by_position == (2 / 3, 0.5)
    assert found.jaccard == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    with pytest.raises(EvaluationError, match="same items"):
        agreement([demos("a")], [])
