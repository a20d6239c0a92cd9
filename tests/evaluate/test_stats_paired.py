"""Bad input is refused with a sentence, by every statistic that takes scores."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from leverplus.errors import EvaluationError
from leverplus.evaluate.stats import (
    compare,
    compare_seeds,
    mean_interval,
    paired_bootstrap,
    sign_flip_test,
)
from leverplus.evaluate.stats.paired import (
    Blocks,
    blocks,
    checked_scores,
    paired_differences,
)

GOOD = [0.0, 1.0, 0.3, 0.9]


@pytest.mark.parametrize(
    "statistic", [compare, paired_bootstrap, sign_flip_test, compare_seeds]
)
@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        (GOOD[:3], "same items; got 3 and 4|same items; got 4 and 3"),
        ([0.0, 1.0, float("nan"), 0.9], "values that are not numbers"),
        ([0.0, 1.0, 48.3, 0.9], "range from 0 to 48.3; divide percentages by 100"),
        ([0.0, 1.0, -0.1, 0.9], r"must lie in \[0, 1\]"),
    ],
)
def test_scores_that_mean_nothing_are_refused(
    statistic: Callable[..., Any], scores: list[float], sentence: str
) -> None:
    good: Any = [GOOD, GOOD] if statistic is compare_seeds else GOOD
    bad: Any = [scores, scores] if statistic is compare_seeds else scores
    for a, b in ((good, bad), (bad, good)):
        with pytest.raises(EvaluationError, match=sentence):
            statistic(a, b)


def test_scores_of_another_shape_are_refused() -> None:
    with pytest.raises(EvaluationError, match="one number per item"):
        compare([GOOD], [GOOD])
    with pytest.raises(EvaluationError, match="at least 2 items"):
        mean_interval([1.0])
    with pytest.raises(EvaluationError, match="at least 1 item"):
        compare([], [])


def test_clusters_must_name_the_image_of_every_item() -> None:
    with pytest.raises(EvaluationError, match="4 scores but 1 clusters"):
        compare(GOOD, GOOD, clusters=["i"])
    with pytest.raises(EvaluationError, match="all items are in one cluster"):
        mean_interval(GOOD, clusters=["i"] * 4)


def test_blocks_hold_the_sum_and_the_number_of_each_images_items() -> None:
    data = blocks(np.array([1.0, 2.0, 4.0, 8.0]), ["x", "y", "x", "x"])
    assert data.sums.tolist() == [13.0, 2.0]
    assert data.sizes.tolist() == [3.0, 1.0]
    assert data.mean == 15.0 / 4.0


def test_a_difference_of_the_last_bit_is_no_difference() -> None:
    assert paired_differences([0.1 + 0.2, 1.0], [0.3, 0.0]).tolist() == [0.0, 1.0]


def test_the_ends_of_the_range_are_scores_and_blocks_are_constant_within_a_billionth() -> (
    None
):
    assert checked_scores([0.0, 1.0]).tolist() == [0.0, 1.0]
    assert checked_scores([0.5], least=1).tolist() == [0.5]
    for bad in ([0.0, 1.0 + 1e-6], [-1e-6, 0.5]):
        with pytest.raises(EvaluationError, match="must lie"):
            checked_scores(bad)
    assert paired_differences([0.5, 0.5], [0.5 - 5e-10, 0.4]).tolist() == pytest.approx(
        [0.0, 0.1]
    )
    assert paired_differences([0.5, 0.5], [0.5 - 2e-9, 0.4])[0] > 0.0
    assert Blocks(np.array([1.0, 2.0]), np.array([2.0, 4.0])).is_constant
    assert not Blocks(np.array([1.0, 2.0]), np.array([2.0, 2.0])).is_constant
    assert not Blocks(np.array([0.5, 0.5 + 2e-9]), np.ones(2)).is_constant
    single = blocks(np.array([0.5, 0.25]), None)
    assert (single.sums.tolist(), single.sizes.tolist(), len(single)) == (
        [0.5, 0.25],
        [1.0, 1.0],
        2,
    )
    with pytest.raises(EvaluationError, match=r"\(2 of 3\)"):
        checked_scores([float("nan"), float("inf"), 0.5])
