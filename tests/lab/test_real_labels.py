"""What labels alone predict: a training item's own picture takes no part in its prediction."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from real_labels import left_out_residual


def test_leaving_a_picture_out_in_closed_form_is_refitting_without_it() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=(12, 2))
    group = np.array([0, 1, 2, 2, 3, 4, 4, 4, 5, 6, 7, 7])
    kernel = np.exp(-((x[:, None] - x[None]) ** 2).sum(axis=2))
    whole = kernel + 0.3 * np.eye(12)
    inverse = np.linalg.inv(whole)
    found = left_out_residual(inverse.astype(np.float32), (inverse @ y).astype(np.float32), group)
    for own in np.unique(group):
        held = group == own
        weights = np.linalg.solve(whole[np.ix_(~held, ~held)], y[~held])
        assert found[held] == pytest.approx(y[held] - kernel[np.ix_(held, ~held)] @ weights, abs=1e-3)
