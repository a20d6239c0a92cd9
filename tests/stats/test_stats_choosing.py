"""Choosing among arms: equal ground for arms that were measured on fewer items, the cheaper one of equals."""

from __future__ import annotations

import numpy as np
import pytest

from leverplus.errors import EvaluationError
from leverplus.stats.choosing import adjusted_means, best_first


def test_where_all_arms_have_all_items_the_means_are_plain() -> None:
    scores = np.random.default_rng(0).random((30, 4))
    found = adjusted_means(scores)
    assert found.mean == pytest.approx(scores.mean(axis=0))
    assert found.n.tolist() == [30] * 4


def test_an_arm_that_was_asked_the_easy_items_only_is_moved_down_by_how_easy_they_are() -> None:
    nan = np.nan
    # items 0 and 1 are easy: the complete arms have 1 and 0.5 there, 0.25 over all four
    scores = [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, nan], [0.0, 0.0, nan]]
    found = adjusted_means(scores)
    complete = [0.25, 0.5]
    easier = np.mean([1.0, 0.5]) - np.mean([1.0, 0.5, 0.0, 0.0])
    assert found.mean == pytest.approx([*complete, 1.0 - easier])
    assert found.n.tolist() == [4, 4, 2]


def test_arms_that_have_every_item_get_their_plain_means_to_the_last_digit() -> None:
    columns = np.random.default_rng(5).integers(0, 4, size=(30, 200)) / 3.0  # VQA accuracies of 30 arms on 200 items
    found = adjusted_means(np.stack(columns, axis=1)).mean
    assert found.tolist() == [float(column.mean()) for column in columns]


def test_adjusted_means_are_right_on_average_where_a_plain_mean_is_not() -> None:
    rng = np.random.default_rng(1)
    plain, adjusted = [], []
    for _ in range(400):
        hard = rng.random(200)
        scores = (rng.random((200, 3)) < (1.0 - 0.6 * hard)[:, None]).astype(float)
        scores[np.argsort(hard)[60:], 2] = np.nan  # the third arm was asked the 60 easiest only
        plain.append(np.nanmean(scores[:, 2]))
        adjusted.append(adjusted_means(scores).mean[2])
    assert np.mean(adjusted) == pytest.approx(0.7, abs=0.01)
    assert np.mean(plain) > 0.85


def test_more_items_for_some_arms_choose_better_than_the_common_ones_alone() -> None:
    rng = np.random.default_rng(2)
    truth = np.array([0.50, 0.58, 0.50])
    right = {"all": 0, "common": 0}
    for _ in range(300):
        scores = (rng.random((600, 3)) < truth).astype(float)
        scores[80:, 2] = np.nan
        right["all"] += truth[best_first(adjusted_means(scores).mean, [0, 0, 0])[0]] == truth.max()
        right["common"] += truth[best_first(scores[:80].mean(axis=0), [0, 0, 0])[0]] == truth.max()
    assert right["all"] > right["common"] + 30


def test_equals_go_to_the_cheaper_one_and_the_last_bit_decides_nothing() -> None:
    assert best_first([0.3, 0.1 + 0.2, 0.4], ["b", "a", "c"]) == [2, 1, 0]


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ([0.1, 0.2], "one row per item"),
        ([[np.nan, 1.0], [1.0, np.nan]], "no arm was measured on all items"),
        ([[1.0, np.nan], [1.0, np.nan]], "on no item"),
    ],
)
def test_what_cannot_be_set_side_by_side_is_refused(scores: list, said: str) -> None:
    with pytest.raises(EvaluationError, match=said):
        adjusted_means(scores)
