"""Bootstrap intervals: exact enumeration, the textbook interval, whole images, and what is unseen."""

import math
from itertools import product

import numpy as np
import pytest

from leverplus.evaluate.stats import mean_interval, paired_bootstrap
from leverplus.evaluate.stats.bootstrap import resampled_means
from leverplus.evaluate.stats.paired import Blocks

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("repeat", [1, 3])
def test_drawn_means_have_the_distribution_of_all_samples(repeat: int) -> None:
    """Twelve blocks of two kinds are drawn by kind, four different ones by index; both match full enumeration."""
    data = Blocks(
        np.array([0.0, 1.0, 1.0, 2.0] * repeat), np.array([1.0, 2.0, 2.0, 4.0] * repeat)
    )
    draws = resampled_means(data, 200_000, np.random.default_rng(0))
    n = 4 * repeat
    chances: dict[float, float] = {}
    kinds = [((0.0, 1.0), 1 / 4), ((1.0, 2.0), 1 / 2), ((2.0, 4.0), 1 / 4)]
    for counts in product(range(n + 1), repeat=3):
        if sum(counts) == n:
            ways = math.factorial(n)
            for (_, chance), count in zip(kinds, counts, strict=True):
                ways *= chance**count / math.factorial(count)
            total = sum(
                kind[0] * count for (kind, _), count in zip(kinds, counts, strict=True)
            )
            size = sum(
                kind[1] * count for (kind, _), count in zip(kinds, counts, strict=True)
            )
            chances[round(total / size, 9)] = (
                chances.get(round(total / size, 9), 0.0) + ways
            )
    for value, chance in chances.items():
        assert np.mean(np.abs(draws - value) < 1e-8) == pytest.approx(chance, abs=0.005)


def test_the_interval_of_many_symmetric_scores_is_the_textbook_t_interval() -> None:
    scores = np.clip(RNG.normal(0.5, 0.1, size=400), 0, 1)
    low, high = mean_interval(scores, resamples=40_000)
    reach = 1.966 * scores.std(ddof=1) / np.sqrt(400)
    assert low == pytest.approx(scores.mean() - reach, abs=0.05 * reach)
    assert high == pytest.approx(scores.mean() + reach, abs=0.05 * reach)


def test_where_few_items_differ_the_interval_is_wider_than_the_normal_one() -> None:
    a = np.zeros(200)
    a[:6] = 1.0  # kurtosis 32, so 13 degrees of freedom: t = 2.16
    low, high = paired_bootstrap(a, np.roll(a, 6), resamples=100_000)
    assert high - low == pytest.approx(
        2 * 2.064 * np.sqrt(12 / 199) / np.sqrt(200), rel=0.02
    )


def test_swapping_the_arms_mirrors_the_interval() -> None:
    a, b = (RNG.random(300) < 0.5).astype(float), (RNG.random(300) < 0.4).astype(float)
    low, high = paired_bootstrap(a, b, resamples=20_000)
    mirrored = paired_bootstrap(b, a, resamples=20_000)
    assert (low, high) == pytest.approx((-mirrored[1], -mirrored[0]), abs=0.006)


def test_the_same_seed_gives_the_same_interval() -> None:
    scores = RNG.random(50)
    assert mean_interval(scores, seed=3) == mean_interval(scores, seed=3)
    assert mean_interval(scores, seed=3) != mean_interval(scores, seed=4)


def test_copies_of_an_image_add_nothing_when_images_are_drawn() -> None:
    a, b = (RNG.random(100) < 0.6).astype(float), (RNG.random(100) < 0.5).astype(float)
    clusters = np.repeat(np.arange(100), 5).tolist()
    once = paired_bootstrap(a, b)
    fivefold = paired_bootstrap(np.repeat(a, 5), np.repeat(b, 5), clusters=clusters)
    blind = paired_bootstrap(np.repeat(a, 5), np.repeat(b, 5))
    assert fivefold == pytest.approx(once, abs=0.01)
    assert blind[1] - blind[0] < 0.6 * (once[1] - once[0])


def test_equal_arms_are_not_known_to_be_equal_for_ever() -> None:
    # with 100 items and none that differs, up to 3.6 % could: 0.964^100 = 0.025
    low, high = paired_bootstrap([1.0] * 100, [1.0] * 100)
    assert high == pytest.approx(1 - 0.025 ** (1 / 100))
    assert low == -high
    assert mean_interval([1.0] * 100) == (pytest.approx(1 - 0.0362, abs=1e-4), 1.0)


def test_the_levels_of_the_quantiles_by_their_formula() -> None:
    from scipy.stats import norm, t

    from leverplus.evaluate.stats.bootstrap import _levels

    sums, sizes = (
        np.array([1.0, 0.0, 2.0, 1.0, 5.0]),
        np.array([2.0, 1.0, 3.0, 1.0, 6.0]),
    )
    left_out = [
        (sums.sum() - s) / (sizes.sum() - k) for s, k in zip(sums, sizes, strict=True)
    ]
    pull = [np.mean(left_out) - value for value in left_out]
    kurtosis = 5 * sum(x**4 for x in pull) / sum(x**2 for x in pull) ** 2
    assert kurtosis < 3.0, "the usual case: all n - 1 degrees of freedom"
    reach = t.ppf(0.975, 2 * 4 / 2.0) * math.sqrt(5 / 4)
    found = _levels(Blocks(sums, sizes))
    assert found.tolist() == pytest.approx([norm.cdf(-reach), norm.cdf(reach)])
    few = np.array([0.0] * 29 + [1.0])
    centred = few - few.mean()
    heavy = 30 * (centred**4).sum() / (centred**2).sum() ** 2
    reach = t.ppf(0.975, 2 * 29 / (heavy - 1)) * math.sqrt(30 / 29)
    assert _levels(Blocks(few, np.ones(30))).tolist() == pytest.approx(
        [norm.cdf(-reach), norm.cdf(reach)]
    )


def test_the_levels_leave_out_whole_pictures_of_different_sizes() -> None:
    """By brute force: the mean over the items of all other pictures, where one large picture pulls hardest."""
    from scipy.stats import norm, t

    from leverplus.evaluate.stats.bootstrap import _levels

    pictures = [
        [0.0] * 4,
        [0.0] * 4,
        [1.0, 0.0, 0.0, 0.0],
        [0.0] * 4,
        [0.0, 1.0],
        [0.0] * 4,
        [0.0] * 4,
        [1.0] * 12,
    ]
    others = [
        np.mean(np.concatenate(pictures[:own] + pictures[own + 1 :]))
        for own in range(8)
    ]
    pull = np.mean(others) - np.array(others)
    kurtosis = 8 * (pull**4).sum() / (pull**2).sum() ** 2
    assert kurtosis > 4.0, "fewer than n - 1 degrees of freedom"
    reach = t.ppf(0.975, 2 * 7 / (kurtosis - 1)) * math.sqrt(8 / 7)
    data = Blocks(
        np.array([sum(own) for own in pictures]),
        np.array([float(len(own)) for own in pictures]),
    )
    assert _levels(data).tolist() == pytest.approx([norm.cdf(-reach), norm.cdf(reach)])


def test_quantiles_put_half_the_share_of_a_value_below_it() -> None:
    from leverplus.evaluate.stats.bootstrap import _mid_quantiles

    draws = np.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0])
    # the shares up to the middle of each value are 1/8, 4/8 and 7/8
    assert _mid_quantiles(
        draws, np.array([0.125, 0.5, 0.875, 0.3125])
    ).tolist() == pytest.approx([0.0, 1.0, 2.0, 0.5])
    assert _mid_quantiles(draws, np.array([0.01, 0.99])).tolist() == [0.0, 2.0]


def test_intervals_stay_inside_what_a_score_can_be_and_take_their_defaults() -> None:
    scores = [1.0] * 29 + [0.0]
    low, high = mean_interval(scores)
    assert high == 1.0
    assert mean_interval([0.0] * 29 + [1.0])[0] == 0.0
    assert (low, high) == mean_interval(scores, resamples=10_000, seed=0)
    assert paired_bootstrap(scores, [0.0] * 30) == paired_bootstrap(
        scores, [0.0] * 30, resamples=10_000, seed=0
    )
    assert paired_bootstrap([1.0] * 3, [0.0] * 3)[1] == 1.0
    assert paired_bootstrap([0.0] * 3, [1.0] * 3)[0] == -1.0
    assert mean_interval([0.3] * 3) == (0.0, 1.0)


@pytest.mark.parametrize("distinct", [True, False])
def test_many_draws_are_made_in_parts(
    distinct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leverplus.evaluate.stats.bootstrap._CELLS", 100)
    sums = np.arange(20.0) if distinct else np.array([0.0, 1.0] * 10)
    draws = resampled_means(Blocks(sums, np.ones(20)), 333, np.random.default_rng(0))
    assert len(draws) == 333
    assert draws.mean() == pytest.approx(sums.mean(), rel=0.1)
    assert draws.std() == pytest.approx(sums.std() / math.sqrt(20), rel=0.2)
