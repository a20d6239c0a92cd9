"""Variance shares and predicted gains: by hand, against published order statistics, and on simulated tables."""

from __future__ import annotations

import numpy as np
import pytest

from leverplus.effects.shares import expected_largest, predicted_gain, variance_shares
from leverplus.errors import DataError


def test_shares_by_hand() -> None:
    """Rows (1, 0), (1, 0), (0, 0): means by query 1/2, 1/2, 0, by demonstration 2/3, 0, in all 1/3.

    Residuals are +-1/6, +-1/6, -+1/3: their squares sum to 1/3 on 2 degrees of freedom, so rest = 1/6.
    Demonstrations: variance 2/9 less 1/18 is 1/6. Queries: variance 1/12 less 1/12 is 0.
    """
    found = variance_shares([[1, 0], [1, 0], [0, 0]])
    assert (found.rest, found.demonstration, found.query) == (
        pytest.approx(1 / 6),
        pytest.approx(1 / 6),
        pytest.approx(0.0),
    )
    assert found.as_json()["interaction_and_luck"] == pytest.approx(0.5)


@pytest.mark.parametrize(("count", "expected"), [(1, 0.0), (2, 0.56419), (10, 1.53875), (64, 2.3437)])
def test_the_largest_of_normal_numbers_is_as_published(count: int, expected: float) -> None:
    assert expected_largest(count) == pytest.approx(expected, abs=2e-3)


def test_intervals_of_the_predicted_gain_hold_what_is_then_gained() -> None:
    """Effects of 400 demonstrations are measured with 12 noisy scores each; the best of 20 is taken for new queries."""
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(100):
        effect = rng.normal(0.0, 0.05, 400)
        level = rng.normal(0.5, 0.3, 60)
        pilot = level[:, None] + effect[:10] + rng.normal(0.0, 0.25, (60, 10))
        predicted = predicted_gain(variance_shares(pilot), corpus=400, candidates=20, calls=4800, seed=trial)
        means = effect + rng.normal(0.0, 0.25 / np.sqrt(12), 400)
        pools = np.stack([rng.permutation(400)[:20] for _ in range(500)])
        gained = effect[pools[np.arange(500), means[pools].argmax(axis=1)]].mean() - effect.mean()
        inside += predicted.ci95[0] <= gained <= predicted.ci95[1]
    assert inside >= 88


def test_more_calls_promise_more_up_to_the_effects_themselves() -> None:
    shares = variance_shares(np.random.default_rng(1).normal(0, 0.3, (50, 8)) + np.linspace(-0.2, 0.2, 8))
    gains = [predicted_gain(shares, corpus=1000, candidates=64, calls=calls).gain for calls in (1000, 16000, 10**9)]
    assert gains[0] < gains[1] < gains[2]
    assert gains[2] == pytest.approx(np.sqrt(shares.demonstration) * expected_largest(64), rel=1e-3)


def test_a_pilot_with_holes_or_of_one_row_is_refused() -> None:
    with pytest.raises(DataError, match="at least two queries"):
        variance_shares([[1.0, 0.0]])
    with pytest.raises(DataError, match="a score is missing"):
        variance_shares([[1.0, np.nan], [0.0, 1.0]])
    with pytest.raises(DataError, match="at least one candidate"):
        expected_largest(0)
