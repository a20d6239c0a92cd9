"""Accuracies corrected for choosing the best of many: against a known truth, and where nothing is to be corrected."""

from __future__ import annotations

import numpy as np
import pytest

from leverplus.evaluate.stats.choosing import PRIORS, Way, correct, in_race


def draw(rng, n, truths, shared=0.5):
    """Scores (n, K) of ways that are right as often as `truths` says; `shared` of the luck belongs to the item."""
    common = rng.random(n)[:, None]
    own = rng.random((n, len(truths)))
    luck = np.where(rng.random((n, len(truths))) < shared, common, own)
    return (luck < truths).astype(float)


def simulate(truths, ways, n, times=150, seed=0):
    """How often the interval of the chosen one holds its truth, and the mean excess of its plain and its corrected figure."""
    rng = np.random.default_rng(seed)
    held, plain, excess = [], [], []
    for _ in range(times):
        found = correct(draw(rng, n, truths), ways)
        best = max(range(len(ways)), key=lambda place: found[place].estimate)
        low, high = found[best].ci95
        held.append(low <= truths[best] <= high)
        plain.append(max(own.raw for own in found) - truths[best])
        excess.append(found[best].estimate - truths[best])
    return np.mean(held), np.mean(plain), np.mean(excess)


def test_the_chosen_figure_is_hardly_too_good_and_its_interval_holds_the_truth() -> (
    None
):
    ways = [Way(arm, shots) for arm in "abcd" for shots in (1, 4, 8)]
    for truths in (
        np.full(12, 0.4),
        np.repeat([0.3, 0.35, 0.4, 0.45], 3) + np.tile([0, 0.05, 0.06], 4),
    ):
        for n in (20, 60):
            held, plain, excess = simulate(truths, ways, n)
            assert held >= 0.93
            assert abs(excess) < 0.6 * plain
            if n == 20:
                assert plain > 0.1  # uncorrected


def test_one_that_is_far_ahead_is_hardly_pulled_back() -> None:
    rng = np.random.default_rng(1)
    truths = np.array([0.1, 0.15, 0.12, 0.9])
    scores = draw(rng, 100, truths)
    ways = [Way(arm, 1) for arm in "abcd"]
    found = correct(scores, ways)
    assert in_race(scores).tolist() == [3]
    for place, own in enumerate(found):
        assert own.estimate == pytest.approx(scores[:, place].mean())


def test_the_mean_over_priors_is_the_formula_written_out() -> None:
    """By the joint normal distribution of ways and figures, with a level of great variance."""
    rng = np.random.default_rng(2)
    scores = draw(rng, 50, np.array([0.5, 0.45, 0.55]))
    ways = [Way("a", 1), Way("a", 3), Way("b", 1, alone=True)]
    assert in_race(scores).tolist() == [0, 1, 2]
    raw = scores.mean(axis=0)
    left = scores - scores.mean(axis=1, keepdims=True)
    left = left - left.mean(axis=0)
    noise = ((left**2).sum() / 2 + 0.25) / 50
    logs, means = [], []
    for own, near, rest in PRIORS:
        alike = own**2 + near**2 * np.exp(-0.5 * (1 / 2) ** 2)
        same = own**2 + near**2 + rest**2
        prior = np.array([[same, alike, 0], [alike, same, 0], [0, 0, same + 0.01]])
        loose = prior + 1e4  # the level may be anything
        total = loose + noise / 50 * np.eye(3)
        means.append(loose @ np.linalg.solve(total, raw))
        _, size = np.linalg.slogdet(total)
        logs.append(-0.5 * (size + raw @ np.linalg.solve(total, raw)))
    share = np.exp(np.array(logs) - max(logs))
    expected = share @ np.array(means) / share.sum()
    found = [own.estimate for own in correct(scores, ways)]
    assert found == pytest.approx(expected, abs=1e-5)


def test_items_of_a_picture_count_as_one() -> None:
    rng = np.random.default_rng(3)
    scores = draw(rng, 40, np.array([0.5, 0.4]))
    ways = [Way("a", 1), Way("b", 1)]
    alone = correct(scores, ways)
    twice = correct(
        np.repeat(scores, 2, axis=0), ways, np.repeat(np.arange(40), 2).tolist()
    )
    assert twice == alone
    together = correct(scores, ways, np.zeros(40).tolist())
    assert together[0].ci95 == (0.0, 1.0)


def test_one_item_says_nothing() -> None:
    found = correct(np.array([[1.0, 0.0]]), [Way("a", 1), Way("b", 1)])
    assert [own.estimate for own in found] == [1.0, 0.0]
    assert found[0].ci95 == (0.0, 1.0)
