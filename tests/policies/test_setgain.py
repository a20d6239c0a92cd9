"""Set gain: incremental formulas against their definitions."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from leverplus.policies import setgain


def test_running_redundancy_equals_max_and_mean_over_the_chosen() -> None:
    vectors = normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    gram = vectors @ vectors.T
    largest = mean = torch.zeros(6)
    for count, item in enumerate([2, 5, 0]):
        largest = setgain.redundancy_max(largest, gram[item], first=count == 0)
        mean = setgain.redundancy_mean(mean, gram[item], count)
    assert torch.allclose(largest, gram[[2, 5, 0]].amax(0))
    assert torch.allclose(mean, gram[[2, 5, 0]].mean(0))


def test_coverage_counts_only_needed_topics_that_are_still_open() -> None:
    need, covered = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([1.0, 0.5, 0.0])
    topics = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    assert setgain.coverage_gain(need, covered, topics).tolist() == pytest.approx([0.0, 0.3 * 0.5 * 0.5 + 0.2 * 0.5])


def test_greedy_volume_steps_equal_differences_of_log_determinants() -> None:
    vectors = normalize(torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64), dim=-1)
    gram = vectors @ vectors.mT
    residual, factors = torch.ones(2, 7, dtype=torch.float64), torch.zeros(2, 7, 3, dtype=torch.float64)
    chosen: list[int] = []
    for step, item in enumerate([3, 1, 6]):
        index = torch.full((2,), item)
        row = gram[:, item]
        residual, factors = setgain.volume_step(residual, factors, row, index, step)
        chosen.append(item)
        for batch in range(2):
            base = torch.linalg.slogdet(gram[batch][chosen][:, chosen]).logabsdet
            for other in (0, 2, 4, 5):
                more = [*chosen, other]
                whole = torch.linalg.slogdet(gram[batch][more][:, more]).logabsdet
                assert float(residual[batch, other].log()) == pytest.approx(float(whole - base))


def test_the_pairwise_bound_is_zero_for_orthogonal_and_low_for_equal_items() -> None:
    values = setgain.volume_gain(torch.tensor([0.0, 1.0]))
    assert float(values[0]) == pytest.approx(0.0, abs=1e-5)
    assert float(values[1]) == pytest.approx(-6.9, abs=0.1)


def test_the_pairwise_bound_by_hand() -> None:
    values = setgain.volume_gain(torch.tensor([0.6, -0.8, 1.0], dtype=torch.float64))
    assert values.exp().tolist() == pytest.approx([0.64 + 1e-6, 0.36 + 1e-6, 0.001 + 1e-6])
    assert float(setgain.volume_gain(torch.tensor(1.0), 0.5).exp()) == pytest.approx(0.501)


def test_an_item_that_is_explained_already_changes_no_number_beyond_its_floor() -> None:
    residual, factors = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    row = torch.tensor([0.0, 1e-4], dtype=torch.float64)
    left, column = setgain.volume_step(residual, factors, row, torch.tensor(0), 1)
    assert column[1].tolist() == pytest.approx([0.0, 0.1]), "divided by the root of 1e-6"
    assert left.tolist() == pytest.approx([0.0, 0.99])
