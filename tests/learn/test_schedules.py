"""Schedules: end points, monotony, and controllers that stay inside their limits."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from leverplus.learn.maths.schedules import (
    BetaRule,
    decay,
    interpolate,
    learning_rate,
    warm_up,
)


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_decay_runs_from_one_to_zero_without_rising(shape: str) -> None:
    values = [decay(shape, step, 11) for step in range(11)]
    assert values[0] == 1.0
    assert values[-1] == pytest.approx(0.0)
    assert all(a >= b for a, b in pairwise(values))
    assert values[5] == pytest.approx(0.5)


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="cosine"):
        decay("cubic", 0, 1)


def test_warm_up_rises_linearly_and_then_decays() -> None:
    rates = [learning_rate(1.0, "cosine", step, 10, warmup=4) for step in range(10)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[-1] == pytest.approx(0.0)


def test_temperature_goes_from_two_to_one_half() -> None:
    assert [interpolate(2.0, 0.5, step, 4) for step in (0, 1, 3, 9)] == [
        2.0,
        1.5,
        0.5,
        0.5,
    ]


def test_beta_rises_above_its_range_falls_below_and_never_leaves_its_limits() -> None:
    rule = BetaRule(low=0.01, high=0.1, factor=1.5, minimum=0.001, maximum=10.0)
    assert rule.next(0.1, 0.05) == 0.1
    assert rule.next(0.1, 0.2) == pytest.approx(0.15)
    assert rule.next(0.15, 0.001) == pytest.approx(0.1)
    beta = 0.1
    for _ in range(12):
        beta = rule.next(beta, 1.0)
    assert beta == 10.0


def test_warm_up_ends_at_one_and_none_is_one() -> None:
    assert [warm_up(step, 4) for step in (0, 1, 3, 4, 9)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert warm_up(0, 0) == warm_up(5, 0) == warm_up(0, 1) == 1.0


def test_decay_stays_at_its_ends_outside_of_its_steps() -> None:
    assert decay("constant", 7, 10) == 1.0
    assert decay("linear", -3, 5) == 1.0
    assert decay("linear", 99, 5) == 0.0
    assert decay("linear", 1, 5) == pytest.approx(0.75)
    assert decay("cosine", 1, 5) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert decay("linear", 0, 1) == 1.0
    assert decay("linear", 1, 1) == 0.0
    assert decay("linear", 1, 2) == 0.0
    assert decay("linear", 4, 5) == 0.0


def test_the_rate_after_the_warm_up_decays_over_the_steps_that_remain() -> None:
    rates = [learning_rate(2.0, "linear", step, 9, warmup=4) for step in range(9)]
    assert rates == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0])
    assert learning_rate(2.0, "linear", 8, 9, warmup=4) == 0.0


def test_a_single_step_has_the_first_value() -> None:
    assert interpolate(2.0, 0.5, 0, 1) == 2.0
    assert interpolate(2.0, 0.5, 1, 3) == 1.25
    assert interpolate(2.0, 0.5, 1, 2) == 0.5


def test_beta_keeps_still_on_the_edges_and_has_a_lowest_value() -> None:
    rule = BetaRule(low=0.01, high=0.1, factor=2.0, minimum=0.05, maximum=1.0)
    assert rule.next(0.4, 0.1) == rule.next(0.4, 0.01) == 0.4
    assert rule.next(0.08, 0.0) == 0.05
    assert rule.next(0.2, 0.0) == 0.1
