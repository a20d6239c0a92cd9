"""The linear score: weights by hand, against plain least squares, and known weights found again."""

from __future__ import annotations

import numpy as np
import pytest

from leverplus.errors import DataError
from leverplus.ranking.linear import bends, cross_features, effect_features, fit_ranker


def test_weights_are_ridge_of_differences_within_queries() -> None:
    rng = np.random.default_rng(0)
    x, level = rng.normal(size=(40, 5)), rng.normal(size=(40, 1))
    y = 2.0 * x + level
    used = rng.random((40, 5)) < 0.8
    found = fit_ranker({"x": x}, y, used, np.arange(40))
    centred = [row[mask] - row[mask].mean() for row, mask in zip(x, used, strict=True) if mask.any()]
    flat = np.concatenate(centred)
    scale = flat.std()
    by_hand = 2.0 * (flat**2).sum() / ((flat**2).sum() + found.penalty * scale**2)
    assert found.weights[0] / found.scale[0] == pytest.approx(by_hand)
    assert found.score({"x": x}) == pytest.approx(by_hand * x)


def test_a_feature_of_the_query_alone_gets_no_weight_and_true_weights_are_found() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 2000, 8))
    easy = np.broadcast_to(rng.normal(size=(2000, 1)), (2000, 8))
    y = 0.3 * a - 0.1 * b + easy + rng.normal(size=(2000, 8))
    found = fit_ranker({"a": a, "b": b, "easy": easy}, y, np.ones((2000, 8), bool), np.arange(2000))
    assert found.weights / found.scale == pytest.approx([0.3, -0.1, 0.0], abs=0.03)


def test_noise_is_penalised_most() -> None:
    rng = np.random.default_rng(2)
    features = {str(n): rng.normal(size=(50, 4)) for n in range(30)}
    found = fit_ranker(features, rng.normal(size=(50, 4)), np.ones((50, 4), bool), np.arange(50))
    assert found.penalty == 1e5


def test_effects_as_a_feature_never_hold_the_rows_own_score() -> None:
    """Scores of pure noise: with its own score in it the feature would predict them."""
    rng = np.random.default_rng(3)
    candidates = np.stack([rng.permutation(40)[:6] for _ in range(400)])
    truth = rng.normal(0.0, 0.2, 40)
    scores = truth[candidates] + rng.normal(size=candidates.shape)
    used = np.ones(candidates.shape, bool)
    used[300:] = False
    feature, effects = effect_features("accuracy", candidates, scores, used, 40)
    assert feature[300:] == pytest.approx(effects.effect[candidates[300:]])
    rest = scores - truth[candidates]
    assert abs(np.corrcoef(feature[:300].ravel(), rest[:300].ravel())[0, 1]) < 0.05
    assert np.corrcoef(feature[300:].ravel(), scores[300:].ravel())[0, 1] > 0.1


def test_bends_are_hinges_at_quantiles() -> None:
    similarity = np.linspace(0.0, 1.0, 101).reshape(1, -1)
    found = bends("text", similarity, np.ones_like(similarity, dtype=bool))
    assert list(found)[:3] == ["text", "text above 0.25", "text above 0.50"]
    assert found["text above 0.50"][0, [0, 50, 100]] == pytest.approx([0.0, 0.0, 0.5])


def test_cross_features_are_products_of_axes() -> None:
    rng = np.random.default_rng(4)
    query, demo = rng.normal(size=(30, 8)), rng.normal(size=(20, 8))
    candidates = rng.integers(0, 20, size=(30, 5))
    found = cross_features(query, demo, candidates, rank=2)
    assert list(found) == ["query 0 x demo 0", "query 0 x demo 1", "query 1 x demo 0", "query 1 x demo 1"]
    ratio = (
        found["query 0 x demo 0"] * found["query 1 x demo 1"] - found["query 0 x demo 1"] * found["query 1 x demo 0"]
    )
    assert ratio == pytest.approx(np.zeros_like(ratio), abs=1e-9)


def test_nothing_to_fit_is_said() -> None:
    with pytest.raises(DataError, match="at least one feature"):
        fit_ranker({}, np.zeros((2, 2)), np.ones((2, 2), bool), [0, 1])
    with pytest.raises(DataError, match="effects by accuracy: every query was measured with one"):
        effect_features("accuracy", np.zeros((2, 1), np.int64), np.zeros((2, 1)), np.ones((2, 1), bool), 1)
