"""Tests of no difference: by hand, by enumeration of all swaps, and against scipy."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import binomtest

from leverplus.errors import EvaluationError
from leverplus.evaluate.stats import holm, mcnemar_test, sign_flip_test
from leverplus.evaluate.stats import significance as module

VALUES = np.array([0.0, 0.3, 0.6, 0.9, 1.0])


def _by_enumeration(differences: np.ndarray) -> float:
    observed = abs(differences.sum()) - 1e-9
    sums = [
        abs(np.dot(signs, differences))
        for signs in product((-1, 1), repeat=len(differences))
    ]
    return float(np.mean([value >= observed for value in sums]))


@pytest.mark.parametrize("seed", range(8))
def test_the_sign_flip_test_equals_the_enumeration_of_all_swaps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = VALUES[rng.integers(0, 5, 11)], VALUES[rng.integers(0, 5, 11)]
    assert sign_flip_test(a, b) == pytest.approx(_by_enumeration(a - b), abs=1e-12)


def test_three_annotators_thirds_lie_on_a_grid_too() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 31, 10) / 30, rng.integers(0, 31, 10) / 30
    assert sign_flip_test(a, b) == pytest.approx(_by_enumeration(a - b), abs=1e-12)


def test_with_clusters_whole_images_are_swapped() -> None:
    rng = np.random.default_rng(2)
    a, b = VALUES[rng.integers(0, 5, 18)], VALUES[rng.integers(0, 5, 18)]
    images = [index // 2 for index in range(18)]
    sums = (a - b).reshape(9, 2).sum(axis=1)
    assert sign_flip_test(a, b, clusters=images) == pytest.approx(
        _by_enumeration(sums), abs=1e-12
    )


def test_on_right_and_wrong_it_is_the_exact_mcnemar_test() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.random(500) < 0.55).astype(float), (rng.random(500) < 0.5).astype(float)
    helped, harmed = int((a > b).sum()), int((a < b).sum())
    assert sign_flip_test(a, b) == pytest.approx(mcnemar_test(helped, harmed), rel=1e-9)
    assert mcnemar_test(helped, harmed) == pytest.approx(
        binomtest(helped, helped + harmed).pvalue, rel=1e-9
    )


def test_random_swaps_agree_with_the_exact_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(4)
    a = VALUES[rng.integers(0, 5, 150)]
    b = np.where(rng.random(150) < 0.3, VALUES[rng.integers(0, 4, 150)], a)
    exact = sign_flip_test(a, b)
    monkeypatch.setattr(module, "_LARGEST_TABLE", 0)
    drawn = sign_flip_test(a, b, flips=100_000)
    assert exact != drawn
    assert drawn == pytest.approx(exact, abs=0.005)


def test_mcnemar_by_hand() -> None:
    assert mcnemar_test(5, 0) == pytest.approx(2 / 32)
    assert mcnemar_test(6, 1) == pytest.approx(2 * (1 + 7) / 128)
    assert mcnemar_test(3, 3) == 1.0
    assert mcnemar_test(0, 0) == 1.0
    with pytest.raises(EvaluationError, match="cannot be negative"):
        mcnemar_test(-1, 2)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
    with pytest.raises(EvaluationError, match=r"in \[0, 1\]"):
        holm([0.1, float("nan")])


def test_chances_of_a_coin_and_the_distribution_of_flips_by_hand() -> None:
    found = module.binomial_chances(np.arange(4), 3, 0.25)
    assert found.tolist() == pytest.approx([27 / 64, 27 / 64, 9 / 64, 1 / 64])
    totals, chances = module._flip_distribution(np.array([1.0, 2.0]), np.array([2, 1]))
    assert dict(zip(totals.tolist(), chances.tolist(), strict=True)) == pytest.approx(
        {-4.0: 1 / 8, -2.0: 1 / 4, 0.0: 1 / 4, 2.0: 1 / 4, 4.0: 1 / 8}
    )


def test_a_table_as_large_as_allowed_is_exact_and_a_larger_one_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LARGEST_TABLE", 6)
    assert (
        module._flip_distribution(np.array([1.0, 2.0]), np.array([1, 2])) is not None
    )  # 2 sums, then 2 * 3
    assert module._flip_distribution(np.array([1.0, 2.0]), np.array([2, 2])) is None


def test_drawn_p_values_count_the_observed_swap_and_never_reach_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LARGEST_TABLE", 0)
    assert sign_flip_test(np.ones(60), np.zeros(60), flips=99) == pytest.approx(1 / 100)
    assert sign_flip_test([0.3, 0.7], [0.7, 0.3], flips=9) == 1.0
    a, b = np.linspace(0.0, 1.0, 12), np.full(12, 0.4)
    assert sign_flip_test(a, b) == sign_flip_test(a, b, flips=20_000, seed=0)


def test_holm_is_checked_at_its_ends() -> None:
    assert holm([0.0, 1.0]) == [0.0, 1.0]
    with pytest.raises(EvaluationError):
        holm([-0.1])
    with pytest.raises(EvaluationError):
        holm([1.1])
    assert mcnemar_test(0, 5) == mcnemar_test(5, 0)
    with pytest.raises(EvaluationError):
        mcnemar_test(2, -1)
