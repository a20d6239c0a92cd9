"""Set gain: incremental formulas against their definitions."""

from __future__ import annotations

import pytest
import torch

from leverplus_lab.selectors import setterms


def test_coverage_counts_only_needed_topics_that_are_still_open() -> None:
    need, covered = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([1.0, 0.5, 0.0])
    topics = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    assert setterms.coverage_gain(need, covered, topics).tolist() == pytest.approx(
        [0.0, 0.3 * 0.5 * 0.5 + 0.2 * 0.5]
    )


def test_the_pairwise_bound_is_zero_for_orthogonal_and_low_for_equal_items() -> None:
    values = setterms.volume_gain(torch.tensor([0.0, 1.0]))
    assert float(values[0]) == pytest.approx(0.0, abs=1e-5)
    assert float(values[1]) == pytest.approx(-6.9, abs=0.1)


def test_the_pairwise_bound_by_hand() -> None:
    values = setterms.volume_gain(torch.tensor([0.6, -0.8, 1.0], dtype=torch.float64))
    assert values.exp().tolist() == pytest.approx(
        [0.64 + 1e-6, 0.36 + 1e-6, 0.001 + 1e-6]
    )
    assert float(setterms.volume_gain(torch.tensor(1.0), 0.5).exp()) == pytest.approx(
        0.501
    )
