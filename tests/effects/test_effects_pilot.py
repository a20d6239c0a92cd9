"""A pilot's verdict by hand: the most any choice gains, the order of demonstrations, lists with different answers."""

from __future__ import annotations

import numpy as np
import pytest

from leverplus.effects.pilot import by_effect, different_answers_first, judge_pilot, room_to_choose


def test_the_most_that_any_choice_gains_is_the_best_less_the_mean_of_every_query() -> None:
    scores = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    verdict = judge_pilot(scores, corpus=10, candidates=2, calls=100)
    assert verdict.most == pytest.approx((0.5 + 0.5 + 0.0 + 0.0) / 4)
    assert verdict.most_ci95[0] <= verdict.most <= verdict.most_ci95[1]
    assert verdict.worth_training
    assert verdict.by_effect.calls == 100


def test_the_room_to_choose_is_the_best_less_the_mean_of_every_query() -> None:
    assert room_to_choose(np.array([[1.0, 0.0, 0.5], [0.3, 0.3, 0.3]])) == pytest.approx([0.5, 0.0])


def test_no_prediction_goes_beyond_all_right() -> None:
    scores = np.ones((12, 6))
    scores[:, 0] = 0.0  # one demonstration spoils everything: a large effect, but five sixths are right already
    found = judge_pilot(scores, corpus=6, candidates=16, calls=10_000).by_effect
    assert found.gain == pytest.approx(1 / 6)
    assert max(found.ci95) <= 1 / 6 + 1e-12


def test_answers_that_no_demonstration_changes_are_not_worth_training_and_the_interval_stays_honest() -> None:
    scores = np.repeat(np.array([[1.0], [0.0], [1.0]]), 5, axis=1)
    verdict = judge_pilot(np.tile(scores, (10, 1)), corpus=100, candidates=16, calls=1000)
    assert verdict.most == 0.0
    assert not verdict.worth_training
    assert verdict.most_ci95 == (0.0, pytest.approx(3 / 30)), "30 queries do not exclude that one in ten differs"


def test_demonstrations_are_ranked_by_their_mean_then_by_finer_scores_then_by_place() -> None:
    scores = np.array([[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])  # means 0, .5, .5, .5
    assert by_effect(scores).tolist() == [1, 2, 3, 0]
    finer = np.array([[0.9, 0.1, 0.1, 0.3], [0.9, 0.1, 0.2, 0.3]])
    assert by_effect(scores, finer).tolist() == [3, 2, 1, 0]


def test_lists_with_different_answers_take_the_best_of_every_answer_first() -> None:
    assert different_answers_first([3, 1, 0, 2], ["a", "a", "b", "a"]) == [3, 2, 1, 0]
    assert different_answers_first([0, 1, 2], ["x", "y", "z"]) == [0, 1, 2]
