"""Detectable effects and numbers of items: published anchors, simulation, and the two as inverses."""

import math

import numpy as np
import pytest

from leverplus.errors import EvaluationError
from leverplus.evaluate.stats import (
    Changes,
    mcnemar_test,
    minimum_detectable_effect,
    paired_power,
    plan_n,
    power,
    sign_flip_test,
)
from leverplus.evaluate.stats.paired import Blocks, blocks
from leverplus.evaluate.stats.power import EXACT


def test_the_normal_approximation_gives_the_textbook_numbers() -> None:
    # 2.80 * sqrt(0.1 / n): 3.1 points at 800 items, 1.25 at 5,000
    assert minimum_detectable_effect(800, Changes(0.1, uniform=False)) == pytest.approx(
        0.0313, rel=0.015
    )
    assert minimum_detectable_effect(
        5000, Changes(0.1, uniform=False)
    ) == pytest.approx(0.01253, rel=0.005)
    assert minimum_detectable_effect(800, Changes(0.1)) == pytest.approx(
        0.0313, rel=0.05
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "discordance", "effect"), [(60, 0.2, 0.12), (40, 0.5, 0.3), (300, 0.05, 0.03)]
)
def test_exact_power_is_the_sum_over_all_outcomes(
    n: int, discordance: float, effect: float
) -> None:
    rng = np.random.default_rng(0)
    chances = [(discordance + effect) / 2, (discordance - effect) / 2, 1 - discordance]
    outcomes, times = np.unique(
        rng.multinomial(n, chances, size=200_000)[:, :2], axis=0, return_counts=True
    )
    found = sum(
        int(count)
        for (up, down), count in zip(outcomes, times, strict=True)
        if mcnemar_test(up, down) < 0.05
    )
    assert paired_power(effect, n, Changes(discordance)) == pytest.approx(
        found / 200_000, abs=0.004
    )


@pytest.mark.slow
def test_a_grid_of_changes_costs_the_sign_flip_test_some_power() -> None:
    """Changes of 1 and 2 on 40 of 200 items; the power stated is the power found."""
    sizes, n, discordance, effect = np.array([1.0, 2.0]) / 2, 200, 0.2, 0.07
    size = float(np.sqrt(np.mean(sizes**2)))
    up = 0.5 + effect / discordance / sizes.mean() / 2
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(3000):
        signed = (
            rng.choice(sizes, n)
            * (rng.random(n) < discordance)
            * np.where(rng.random(n) < up, 1, -1)
        )
        found += sign_flip_test(np.maximum(signed, 0), np.maximum(-signed, 0)) < 0.05
    stated = paired_power(
        effect, n, Changes(discordance, size, uniform=False, step=0.5)
    )
    assert stated == pytest.approx(found / 3000, abs=0.03)
    assert stated < paired_power(effect, n, Changes(discordance, size, uniform=False))


def test_power_without_effect_is_at_most_the_level() -> None:
    assert 0.0 < paired_power(0.0, 500, Changes(0.2)) <= 0.05
    assert paired_power(0.0, 500, Changes(0.2, uniform=False)) == pytest.approx(0.05)
    assert paired_power(0.0, 500, Changes(0.0)) == 0.0


def test_arms_that_never_differed_still_have_a_smallest_detectable_effect() -> None:
    effect = minimum_detectable_effect(100, Changes(0.0))
    assert 0.07 < effect < 0.09
    assert minimum_detectable_effect(4, Changes(0.5)) == 1.0


def test_a_smaller_change_scales_the_effect() -> None:
    full = minimum_detectable_effect(500, Changes(0.2))
    assert minimum_detectable_effect(500, Changes(0.2, 0.5)) == pytest.approx(
        0.5 * full, rel=1e-3
    )


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize(
    ("effect", "discordance"), [(0.01, 0.1), (0.05, 0.3), (0.2, 0.1)]
)
def test_the_planned_number_of_items_is_the_first_that_detects_the_effect(
    effect: float, discordance: float, uniform: bool
) -> None:
    changes = Changes(discordance, uniform=uniform)
    n = plan_n(effect, changes)
    assert paired_power(effect, n, changes) >= 0.8
    assert paired_power(effect, round(0.97 * n) - 2, changes) < 0.8
    assert minimum_detectable_effect(n, changes) == pytest.approx(effect, rel=0.03)


def test_a_claim_of_one_point_needs_thousands_of_items() -> None:
    # (1.96 + 0.84)^2 * 0.1 / 0.01^2 = 7,849, a little more for the exact test
    assert plan_n(0.01, Changes(0.1, uniform=False)) == pytest.approx(7849, rel=0.005)
    assert 7849 < plan_n(0.01, Changes(0.1)) < 8200
    assert plan_n(-0.01) == plan_n(0.01)


@pytest.mark.parametrize(
    ("discordance", "within"), [(0.02, 1e-5), (0.2, 1e-5), (0.7, 1e-5), (1.0, 3e-4)]
)
def test_beyond_the_exact_sum_power_goes_on_without_a_jump(
    discordance: float, within: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, n = Changes(discordance), round(EXACT / discordance)
    effects = [z * math.sqrt(discordance / n) for z in (0.0, 0.5, 1.4, 2.8, 3.6, 5.0)]
    exact = [paired_power(effect, n, changes) for effect in effects]
    monkeypatch.setattr(power, "EXACT", 0)
    assert [paired_power(effect, n, changes) for effect in effects] == pytest.approx(
        exact, abs=within
    )


@pytest.mark.parametrize("effect", [0.5, 0.2, 0.05, 0.01])
@pytest.mark.parametrize("discordance", [0.05, 0.2, 0.9])
def test_the_planned_number_of_ordinary_effects_is_that_of_exact_power(
    effect: float, discordance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = plan_n(effect, Changes(discordance))
    monkeypatch.setattr(power, "EXACT", math.inf)
    assert plan_n(effect, Changes(discordance)) == quick


def test_a_tiny_effect_is_planned_at_once() -> None:
    assert plan_n(0.001) == pytest.approx(1_571_762, rel=1e-6)  # by the exact sum
    assert plan_n(0.0001) == pytest.approx(
        156_997_179, rel=1e-6
    )  # by the exact sum, in half a minute
    quantiles = 1.9599640 + 0.8416212
    assert plan_n(1e-6) == pytest.approx(quantiles**2 * 0.2 / 1e-12, rel=1e-5)


def test_requests_without_meaning_are_refused() -> None:
    for effect in (0.0, 1.5):
        with pytest.raises(
            EvaluationError, match=r"difference of accuracies in \(0, 1\]"
        ):
            plan_n(effect)
    with pytest.raises(EvaluationError, match=r"cannot differ by 0\.5"):
        plan_n(0.5, Changes(0.2, 0.3))
    with pytest.raises(EvaluationError, match="discordance is a share"):
        Changes(10.0)
    with pytest.raises(EvaluationError, match="at least 1; got 0"):
        minimum_detectable_effect(0, Changes(0.1))
    with pytest.raises(EvaluationError, match="size of a change must be above 0"):
        Changes(0.1, size=0.0)


def test_changes_are_read_off_paired_differences() -> None:
    graded = Changes.seen_in(blocks(np.array([0.3, -0.6, 0.0, 0.0]), None))
    assert (graded.discordance, graded.uniform, graded.block) == (0.5, False, 1.0)
    assert (graded.size, graded.step) == pytest.approx((np.sqrt(0.45 / 2), 0.3))
    images = Changes.seen_in(
        blocks(np.array([1.0, 1.0, -1.0, 0.0]), ["x", "x", "y", "y"])
    )
    assert images == Changes(
        1.0, float(np.sqrt((1 + 0.25) / 2)), uniform=False, step=0.5, block=2.0
    )
    assert Changes.seen_in(blocks(np.zeros(4), None)) == Changes(0.0)


def test_exact_power_of_few_items_by_enumeration() -> None:
    n, discordance, effect = 14, 0.6, 0.4
    up, down = (discordance + effect) / 2, (discordance - effect) / 2
    total = 0.0
    for helped in range(n + 1):
        for harmed in range(n + 1 - helped):
            ways = math.comb(n, helped) * math.comb(n - helped, harmed)
            if mcnemar_test(helped, harmed) <= 0.05:
                total += (
                    ways
                    * up**helped
                    * down**harmed
                    * (1 - discordance) ** (n - helped - harmed)
                )
    assert paired_power(effect, n, Changes(discordance)) == pytest.approx(
        total, rel=1e-9
    )
    assert paired_power(-effect, n, Changes(discordance)) == pytest.approx(
        total, rel=1e-9
    )
    assert paired_power(effect / 2, n, Changes(discordance, 0.5)) == pytest.approx(
        total, rel=1e-9
    )


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.2])
def test_rejection_limits_are_the_largest_significant_minorities(alpha: float) -> None:
    found = power._rejection_limits(3, 60, alpha)
    for m, limit in zip(range(3, 61), found.tolist(), strict=True):
        significant = [
            k
            for k in range(m // 2 + 1)
            if mcnemar_test(k, m - k) <= alpha and 2 * k < m
        ]
        assert limit == max(significant, default=-1), m


@pytest.mark.parametrize(
    "changes",
    [
        Changes(0.3, 0.5, uniform=False),
        Changes(0.3, 0.5, uniform=False, step=0.1),
        Changes(0.4, 0.7, uniform=False, step=0.1, block=4.0),
    ],
)
def test_the_approximation_by_its_formula(changes: Changes) -> None:
    from scipy.stats import norm

    for effect, n in ((0.0, 100), (0.05, 300), (0.3, 50)):
        share = effect / changes.size
        needed = max(changes.discordance, share)
        squares = needed + share**2 * (1 - 1 / changes.block)
        ratio = share / squares
        spread = math.sqrt(1 - 0.75 * ratio**2 - 0.25 * ratio * share)
        limit = norm.ppf(0.975) + changes.step / changes.size / math.sqrt(n * squares)
        shift = share * math.sqrt(n / squares)
        expected = norm.cdf((shift - limit) / spread) + norm.cdf(
            (-shift - limit) / spread
        )
        assert paired_power(effect, n, changes) == pytest.approx(expected)


def test_the_smallest_effect_has_the_power_asked_for_and_the_plan_is_the_first_n_that_has_it() -> (
    None
):
    changes = Changes(0.2, uniform=False)
    for chance in (0.8, 0.9):
        effect = minimum_detectable_effect(400, changes, power=chance)
        assert paired_power(effect, 400, changes) == pytest.approx(chance, abs=1e-4)
    assert minimum_detectable_effect(400, changes) == minimum_detectable_effect(
        400, changes, power=0.8, alpha=0.05
    )
    for effect in (0.5, 0.2, 0.03):
        n = plan_n(effect, changes)
        assert (
            paired_power(effect, n, changes)
            >= 0.8
            > paired_power(effect, n - 1, changes)
        )
        assert plan_n(effect, changes, alpha=0.01) > n
    assert plan_n(0.05) == plan_n(0.05, Changes(0.2))
    assert plan_n(1.0, Changes(1.0)) == 6, (
        "six of six is the first that a fair coin does not explain"
    )
    assert minimum_detectable_effect(300, Changes(0.2, 2.0)) <= 1.0


def test_the_step_of_a_grid_of_thirtieths() -> None:
    assert power._step(np.array([0.3, -0.6, 0.9])) == pytest.approx(0.3)
    assert power._step(np.array([1 / 30, 0.5])) == pytest.approx(1 / 30)
    assert power._step(np.array([0.3, 0.01])) == 0.0
    assert power._step(np.array([0.3 + 2e-9])) == pytest.approx(0.3), (
        "rounding is no other grid"
    )
    uniform = Changes.seen_in(blocks(np.array([0.3, -0.3, 0.0]), None))
    assert uniform.uniform
    assert (
        Changes(0.1).size,
        Changes(0.1).uniform,
        Changes(0.1).step,
        Changes(0.1).block,
    ) == (1.0, True, 0.0, 1.0)
    assert (Changes(0.0).discordance, Changes(1.0).discordance) == (0.0, 1.0)


def test_power_is_exact_while_few_items_change_however_many_there_are() -> None:
    assert paired_power(0.008, 2000, Changes(0.01)) == power._mcnemar_power(
        0.008, 2000, 0.01, 0.05
    )
    assert (
        Changes.seen_in(Blocks(np.array([1e-9, 1.0]), np.ones(2))).discordance == 0.5
    ), "a billionth is no change"
