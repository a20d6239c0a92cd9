"""Several seeds combined: variance parts by hand, and limits where they must agree with simpler statistics."""

import numpy as np
import pytest

from leverplus.errors import EvaluationError
from leverplus.stats import compare_seeds, paired_bootstrap


def _runs(rng: np.random.Generator, seeds: int, n: int, level: float, spread: float = 0.0) -> np.ndarray:
    return (rng.random((seeds, n)) < level + rng.normal(0, spread, size=(seeds, 1))).astype(float)


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
    result = compare_seeds(np.repeat(a, 5, axis=0), np.repeat(b, 5, axis=0), resamples=40_000)
    assert result.seed_sd == (0.0, 0.0)
    assert result.ci95 == pytest.approx(paired_bootstrap(a[0], b[0], resamples=40_000), abs=0.004)


def test_seeds_that_differ_widen_the_interval_whatever_the_number_of_items() -> None:
    rng = np.random.default_rng(2)
    steady, uneven = _runs(rng, 3, 5000, 0.5), _runs(rng, 3, 5000, 0.5, spread=0.05)
    baseline = _runs(rng, 1, 5000, 0.5)
    narrow, wide = compare_seeds(steady, baseline), compare_seeds(uneven, baseline)
    assert wide.ci95[1] - wide.ci95[0] > 3 * (narrow.ci95[1] - narrow.ci95[0])
    assert wide.mde80 > 3 * narrow.mde80
    assert wide.seed_sd[0] == pytest.approx(np.std(uneven.mean(axis=1), ddof=1), rel=0.05)
    assert wide.seed_sd[1] == 0.0


def test_constant_scores_give_an_interval_and_no_claim() -> None:
    result = compare_seeds(np.ones((3, 50)), np.ones((3, 50)))
    assert result.p_value == 1.0
    assert result.ci95[1] == pytest.approx(1 - 0.025 ** (1 / 50))
    assert result.mde80 > 0.0


def test_one_run_an_arm_is_refused() -> None:
    with pytest.raises(EvaluationError, match="one run an arm shows no spread over seeds; use compare"):
        compare_seeds([0.0, 1.0, 1.0], [0.0, 0.0, 1.0])


def test_images_copied_fivefold_add_nothing() -> None:
    rng = np.random.default_rng(3)
    a, b = _runs(rng, 3, 200, 0.6, 0.02), _runs(rng, 3, 200, 0.5, 0.02)
    clusters = np.repeat(np.arange(200), 5).tolist()
    once = compare_seeds(a, b)
    copied = compare_seeds(np.repeat(a, 5, axis=1), np.repeat(b, 5, axis=1), clusters=clusters)
    assert copied.p_value == pytest.approx(once.p_value)
    assert copied.mde80 == pytest.approx(once.mde80)


def test_an_effect_is_stated_when_the_spread_over_seeds_is_hardly_known() -> None:
    from leverplus.stats.seeds import _detectable_errors

    assert _detectable_errors(1.0) > _detectable_errors(2.0) > _detectable_errors(30.0) > 2.8
