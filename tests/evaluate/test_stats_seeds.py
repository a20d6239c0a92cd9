"""Several seeds combined: variance parts by hand, and limits where they must agree with simpler statistics."""

import numpy as np
import pytest

from leverplus.errors import EvaluationError
from leverplus.evaluate.stats import compare_seeds, paired_bootstrap


def _runs(
    rng: np.random.Generator, seeds: int, n: int, level: float, spread: float = 0.0
) -> np.ndarray:
    return (
        rng.random((seeds, n)) < level + rng.normal(0, spread, size=(seeds, 1))
    ).astype(float)


def test_the_difference_is_that_of_the_mean_over_seeds() -> None:
    rng = np.random.default_rng(0)
    a, b = _runs(rng, 4, 300, 0.6), _runs(rng, 3, 300, 0.5)
    result = compare_seeds(a, b)
    assert (result.n, result.seeds) == (300, (4, 3))
    assert result.diff == pytest.approx(a.mean() - b.mean())
    assert result.ci95[0] < result.diff < result.ci95[1]


def test_seeds_that_agree_on_every_item_leave_only_the_spread_of_items() -> None:
    rng = np.random.default_rng(1)
    a, b = _runs(rng, 1, 400, 0.6), _runs(rng, 1, 400, 0.5)
    result = compare_seeds(
        np.repeat(a, 5, axis=0), np.repeat(b, 5, axis=0), resamples=40_000
    )
    assert result.seed_sd == (0.0, 0.0)
    assert result.ci95 == pytest.approx(
        paired_bootstrap(a[0], b[0], resamples=40_000), abs=0.004
    )


def test_seeds_that_differ_widen_the_interval_whatever_the_number_of_items() -> None:
    rng = np.random.default_rng(2)
    steady, uneven = _runs(rng, 3, 5000, 0.5), _runs(rng, 3, 5000, 0.5, spread=0.05)
    baseline = _runs(rng, 1, 5000, 0.5)
    narrow, wide = compare_seeds(steady, baseline), compare_seeds(uneven, baseline)
    assert wide.ci95[1] - wide.ci95[0] > 3 * (narrow.ci95[1] - narrow.ci95[0])
    assert wide.mde80 > 3 * narrow.mde80
    assert wide.seed_sd[0] == pytest.approx(
        np.std(uneven.mean(axis=1), ddof=1), rel=0.05
    )
    assert wide.seed_sd[1] == 0.0


def test_constant_scores_give_an_interval_and_no_claim() -> None:
    result = compare_seeds(np.ones((3, 50)), np.ones((3, 50)))
    assert result.p_value == 1.0
    assert result.ci95[1] == pytest.approx(1 - 0.025 ** (1 / 50))
    assert result.mde80 > 0.0


def test_one_run_an_arm_is_refused() -> None:
    with pytest.raises(
        EvaluationError, match="one run per arm shows no spread over seeds; use compare"
    ):
        compare_seeds([0.0, 1.0, 1.0], [0.0, 0.0, 1.0])


def test_images_copied_fivefold_add_nothing() -> None:
    rng = np.random.default_rng(3)
    a, b = _runs(rng, 3, 200, 0.6, 0.02), _runs(rng, 3, 200, 0.5, 0.02)
    clusters = np.repeat(np.arange(200), 5).tolist()
    once = compare_seeds(a, b)
    copied = compare_seeds(
        np.repeat(a, 5, axis=1), np.repeat(b, 5, axis=1), clusters=clusters
    )
    assert copied.p_value == pytest.approx(once.p_value)
    assert copied.mde80 == pytest.approx(once.mde80)


def test_an_effect_is_stated_when_the_spread_over_seeds_is_hardly_known() -> None:
    from leverplus.evaluate.stats.seeds import _detectable_errors

    assert (
        _detectable_errors(1.0)
        > _detectable_errors(2.0)
        > _detectable_errors(30.0)
        > 2.8
    )


def _parts(arm: np.ndarray) -> tuple[float, float]:
    """Variance of the seed means, and what of it is not the noise of items, by sums over a table of seeds and items."""
    seeds, n = arm.shape
    between = sum((row.mean() - arm.mean()) ** 2 for row in arm) / (seeds - 1)
    rest = sum(
        (arm[s, i] - arm[s].mean() - arm[:, i].mean() + arm.mean()) ** 2
        for s in range(seeds)
        for i in range(n)
    )
    return between, between - rest / ((seeds - 1) * (n - 1)) / n


def test_the_parts_of_the_spread_by_hand() -> None:
    from scipy.stats import t

    from leverplus.evaluate.stats.seeds import _detectable_errors, _Spread

    rng = np.random.default_rng(7)
    for a, b in (
        (rng.random((3, 12)), rng.random((2, 12)) * 0.5),
        (rng.random((4, 9)), rng.random((1, 9))),
    ):
        n = a.shape[1]
        difference = a.mean(axis=0) - b.mean(axis=0)
        items = sum((x - difference.mean()) ** 2 for x in difference) / (n - 1) / n
        seeds, weight = 0.0, items**2 / (n - 1)
        for arm in (a, b):
            if len(arm) > 1:
                between, own = _parts(arm)
                seeds += own / len(arm)
                weight += (between / len(arm)) ** 2 / len(arm)
        variance = items + max(-items / 4, seeds)
        freedom = min(variance**2 / weight, n - 1)
        spread = _Spread.of(a, b)
        assert (spread.error, spread.freedom, spread.pieces) == pytest.approx(
            (variance**0.5, freedom, n)
        )
        result = compare_seeds(a, b, resamples=100)
        assert result.p_value == pytest.approx(
            2 * t.sf(abs(result.diff) / variance**0.5, freedom)
        )
        assert result.seed_sd[0] == pytest.approx(max(_parts(a)[1], 0.0) ** 0.5)
        rounded = max(1.0, float(f"{0.9 * freedom:.2g}"))
        assert result.mde80 == pytest.approx(
            min(1.0, variance**0.5 * _detectable_errors(rounded))
        )


def test_a_very_low_estimate_of_the_seed_part_takes_a_quarter_of_the_item_part_at_most() -> (
    None
):
    from leverplus.evaluate.stats.seeds import _Spread

    checkers = (
        np.indices((2, 40)).sum(axis=0) % 2.0
    )  # seeds differ on every item and agree on average
    baseline = np.repeat([0.0, 1.0], 20)[None]
    items = float(np.var(checkers.mean(axis=0) - baseline[0], ddof=1)) / 40
    assert _Spread.of(checkers, baseline).error == pytest.approx((0.75 * items) ** 0.5)


def test_an_interval_has_the_shape_of_the_draws_and_the_width_of_the_spread() -> None:
    from scipy.stats import norm, t

    from leverplus.evaluate.stats.seeds import _Spread

    draws = np.concatenate([np.linspace(-1.0, 0.0, 500), np.linspace(0.0, 3.0, 501)])
    low, high = (
        np.quantile(draws / draws.std(), (0.025, 0.975))
        * t.ppf(0.975, 6.0)
        / norm.ppf(0.975)
    )
    found = _Spread(0.02, 6.0, 50).interval(0.1, draws)
    assert found == pytest.approx((0.1 + 0.02 * low, 0.1 + 0.02 * high))
    assert _Spread(0.9, 3.0, 50).interval(0.9, draws)[1] == 1.0
    assert _Spread(0.9, 3.0, 50).interval(-0.9, draws)[0] == -1.0
    still = _Spread(0.0, 3.0, 8)
    unseen = 1 - 0.025 ** (1 / 8)
    assert still.interval(0.2, draws) == pytest.approx((0.2 - unseen, 0.2 + unseen))
    assert still.interval(0.9, draws)[1] == 1.0
    assert still.interval(-0.9, draws)[0] == -1.0
    assert (still.p_value(0.0), still.p_value(0.5)) == (1.0, 2.0**-7)
    assert still.detectable() == pytest.approx(1 - 0.2 ** (1 / 8))
    assert _Spread(0.9, 3.0, 50).detectable() == 1.0


def test_the_errors_a_difference_must_have_are_found_four_times_in_five() -> None:
    from scipy.stats import chi2, norm, t

    from leverplus.evaluate.stats.seeds import _detectable_errors

    for freedom in (3.0, 20.0):
        size = _detectable_errors(freedom)
        rng = np.random.default_rng(0)
        stated, next_one = (
            np.sqrt(chi2.rvs(freedom, size=400_000, random_state=rng) / freedom)
            for _ in range(2)
        )
        found = norm.cdf(size * stated - t.ppf(0.975, freedom) * next_one).mean()
        assert found == pytest.approx(0.8, abs=0.006)


def test_drawn_differences_spread_by_items_where_one_seed_is_and_by_seeds_where_items_are_alike() -> (
    None
):
    from leverplus.evaluate.stats.seeds import _drawn_differences

    rng = np.random.default_rng(3)
    a, b = rng.random((1, 30)), rng.random((1, 30))
    draws = _drawn_differences((a, b), 40_000, np.random.default_rng(0))
    assert draws.mean() == pytest.approx((a - b).mean(), abs=0.002)
    assert draws.std() == pytest.approx(((a - b).var() / 30) ** 0.5, rel=0.02)
    seeds, others = np.array([0.2, 0.5, 0.6]), np.array([0.1, 0.4])
    level = (
        np.repeat(seeds[:, None], 30, axis=1),
        np.repeat(others[:, None], 30, axis=1),
    )
    draws = _drawn_differences(level, 40_000, np.random.default_rng(0))
    assert draws.mean() == pytest.approx(seeds.mean() - others.mean(), abs=0.003)
    assert draws.std() == pytest.approx(
        (seeds.var() / 3 + others.var() / 2) ** 0.5, rel=0.02
    )


@pytest.mark.slow
def test_a_table_too_large_for_one_draw_is_drawn_in_parts() -> None:
    from leverplus.evaluate.stats.seeds import _drawn_differences

    rng = np.random.default_rng(3)
    a, b = rng.random((2, 50_000)), rng.random((1, 50_000))
    draws = _drawn_differences(
        (a, b), 163, np.random.default_rng(0)
    )  # 80 samples at once: three parts
    assert len(draws) == 163
    assert np.abs(draws - (a.mean() - b.mean())).max() < 0.02


def test_scores_of_another_shape_and_other_items_are_refused() -> None:
    with pytest.raises(
        EvaluationError,
        match=r"first arm must have shape \(seeds, items >= 2\); got \(2, 1\)",
    ):
        compare_seeds([[0.1], [0.2]], [[0.1], [0.2]])
    with pytest.raises(EvaluationError, match="same items; got 3 and 2"):
        compare_seeds([[0.1, 0.2, 0.3]] * 2, [[0.1, 0.2]] * 2)
    found = compare_seeds([[0.0, 1.0, 0.5]] * 2, [0.0, 0.5, 0.5])
    assert found.seeds == (2, 1)
    again = compare_seeds(
        [[0.0, 1.0, 0.5]] * 2, [0.0, 0.5, 0.5], seed=0, resamples=10_000
    )
    assert again == found, "10,000 draws from seed 0 unless told"
