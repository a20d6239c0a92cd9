"""Regret splits into four misses that sum to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from handmade import demos

from leverplus.errors import NotMeasured
from leverplus.evaluate.record import Misses
from leverplus.evaluate.regret import (
    Regret,
    mean_regret,
    orders,
    regret,
    sample_places,
)


def test_the_misses_of_an_item_worked_by_hand() -> None:
    # The best reference would give 1.0. No list gave it: the best was 0.9, with three demonstrations. Among pairs 0.6
    # was the best (cd); the chosen demonstrations a and b got 0.3 as (b, a), and 0.0 as they were shown.
    measured = {
        demos(""): 0.0,
        demos("abc"): 0.9,
        demos("cd"): 0.6,
        demos("ba"): 0.3,
        demos("ab"): 0.0,
    }
    found = regret(1.0, measured, demos("ab"))
    assert math.isclose(found.pool, 0.1)
    assert math.isclose(found.count, 0.3)
    assert math.isclose(found.choice, 0.3)
    assert math.isclose(found.order, 0.3)
    assert math.isclose(found.total, 1.0)


def test_showing_none_would_have_been_better_is_a_count_miss() -> None:
    found = regret(1.0, {demos(""): 1.0, demos("a"): 0.0, demos("b"): 0.0}, demos("a"))
    assert found == Regret(pool=0.0, count=1.0, choice=0.0, order=0.0)


def test_the_misses_are_never_negative_and_sum_to_the_regret() -> None:
    rng = np.random.default_rng(0)
    lists = [
        demos(text) for text in ("", "a", "b", "ab", "ba", "ac", "ca", "abc", "cab")
    ]
    for _ in range(200):
        measured = {own: float(rng.choice([0.0, 0.3, 0.6, 0.9, 1.0])) for own in lists}
        chosen = lists[rng.integers(len(lists))]
        found = regret(1.0, measured, chosen)
        assert min(found.pool, found.count, found.choice, found.order) >= 0.0
        assert math.isclose(found.total, 1.0 - measured[chosen], abs_tol=1e-12)


def test_a_choice_nobody_measured_has_no_regret() -> None:
    with pytest.raises(NotMeasured, match="was not measured"):
        regret(1.0, {demos(""): 0.0}, demos("a"))


def test_mean_regret_averages_each_miss() -> None:
    found = mean_regret([Regret(1.0, 0.0, 0.0, 0.0), Regret(0.0, 0.0, 0.5, 0.5)])
    assert found == Misses(n=2, pool=0.5, count=0.0, choice=0.25, order=0.25, total=1.0)


def test_a_sample_is_fixed_and_without_repetition() -> None:
    assert sample_places(5, 9) == [0, 1, 2, 3, 4]
    first = sample_places(1000, 100)
    assert first == sample_places(1000, 100) == sorted(set(first))
    assert len(first) == 100
    assert first != list(range(100))


def test_all_orders_of_three_are_tried_and_a_few_of_four() -> None:
    assert orders(demos("a")) == []
    assert orders(demos("ab")) == [demos("ba")]
    assert len(orders(demos("abc"))) == 5
    assert orders(demos("abcd")) == [
        demos("bcda"),
        demos("cdab"),
        demos("dabc"),
        demos("dcba"),
    ]
