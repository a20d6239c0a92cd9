"""Effects of demonstrations: by hand, by brute force, and from simulated scores whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from leverplus.effects.estimate import Measured, _Design, estimate_effects, left_out_effects
from leverplus.errors import DataError


def table(scores: list[list[float]]) -> Measured:
    """Every query with every demonstration."""
    y = np.array(scores)
    queries, demos = np.indices(y.shape)
    return Measured.of(queries.ravel(), demos.ravel(), y.ravel(), y.shape[1])


def test_variances_and_effects_by_hand() -> None:
    """Two demonstrations, four queries: differences 1, 1, 1, 0 between them, so means +-3/8 around each query's mean.

    Within queries: squares 2 x 1/4 for each of three queries, sum 3/2 on 4 degrees of freedom. Between demonstrations:
    sums +-3/2 with information 4 (1 - 1/2) = 2 each, so 9/8 + 9/8 = 9/4. The within matrix is [[2, -2], [-2, 2]]:
    3/2 = 4 noise + 4 spread and 9/4 = 2 noise + 8 spread, so noise = 1/8 and spread = 1/4.
    """
    data = table([[1, 0], [1, 0], [1, 0], [0, 0]])
    noise, spread = _Design(data).variances(data.scores)
    assert (noise, spread) == (pytest.approx(1 / 8), pytest.approx(1 / 4))
    # [[2 + 1/2, -2], [-2, 2 + 1/2]] u = (3/2, -3/2): u = 3/2 / 4.5 = 1/3, shrunk from 3/8
    found = estimate_effects(data)
    assert found.effect == pytest.approx([1 / 3, -1 / 3])
    assert found.error == pytest.approx(np.sqrt(1 / (2 * 8 + 4)))
    assert found.counts.tolist() == [4, 4]


def scattered(  # noqa: PLR0917 the sizes of a simulation
    rng: np.random.Generator, queries: int, demos: int, each: int, spread: float, noise: float
) -> tuple[Measured, np.ndarray]:
    """Measured scores with a random few demonstrations a query, and the true effects."""
    truth = rng.normal(0.0, spread, demos)
    level = rng.random(queries)
    chosen = np.stack([rng.permutation(demos)[:each] for _ in range(queries)])
    scores = level[:, None] + truth[chosen] + rng.normal(0.0, noise, chosen.shape)
    rows = np.repeat(np.arange(queries), each)
    return Measured.of(rows, chosen.ravel(), scores.ravel(), demos), truth


def test_effects_solve_the_mixed_model_equations() -> None:
    """Brute force: least squares with a free mean a query and a penalty noise / spread on every effect."""
    data, _ = scattered(np.random.default_rng(0), 30, 12, 4, 0.1, 0.2)
    found = estimate_effects(data)
    x = np.zeros((len(data.scores), 30 + 12))
    x[np.arange(len(x)), data.queries] = 1.0
    x[np.arange(len(x)), 30 + data.demos] = 1.0
    penalty = np.diag([0.0] * 30 + [found.noise / found.spread] * 12)
    solved = np.linalg.solve(x.T @ x + penalty, x.T @ data.scores)[30:]
    assert found.spread > 0
    assert found.effect == pytest.approx(solved, abs=1e-7)


def test_moments_are_unbiased_and_errors_cover_the_truth() -> None:
    rng = np.random.default_rng(1)
    noises, spreads, covered = [], [], []
    for _ in range(60):
        data, truth = scattered(rng, 150, 60, 6, 0.1, 0.25)
        found = estimate_effects(data)
        noises.append(found.noise)
        spreads.append(found.spread)
        if found.spread > 0:
            # effects are against the mean of the others: the truth is known up to a constant
            missed = (found.effect - found.effect.mean()) - (truth - truth.mean())
            covered.append(np.mean(np.abs(missed) < 1.96 * found.error))
    assert np.mean(noises) == pytest.approx(0.25**2, rel=0.03)
    assert np.mean(spreads) == pytest.approx(0.1**2, rel=0.1)
    assert 0.93 < np.mean(covered) < 0.97


def test_shrinking_recovers_more_than_means_do() -> None:
    data, truth = scattered(np.random.default_rng(2), 1500, 600, 8, 0.05, 0.3)
    found = estimate_effects(data)
    design = _Design(data)
    means = design.sums(data.scores) / design.information
    assert np.mean((found.effect - truth) ** 2) < 0.5 * np.mean((means - truth) ** 2)
    assert np.mean((found.effect - truth) ** 2) < np.var(truth)
    measured = np.corrcoef(found.effect, truth)[0, 1] ** 2
    assert found.reliability == pytest.approx(measured, abs=0.1)


def test_features_predict_demonstrations_that_nobody_measured() -> None:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(300, 5))
    data, own = scattered(rng, 500, 300, 8, 0.03, 0.25)
    slope = np.array([0.1, -0.1, 0.0, 0.0, 0.05])
    scores = data.scores + (features @ slope)[data.demos]
    seen = data.demos < 250  # the last fifty were never shown
    data = Measured.of(data.queries[seen], data.demos[seen], scores[seen], 300)
    found = estimate_effects(data, features)
    truth = features @ slope + own
    assert found.counts[250:].sum() == 0
    assert np.corrcoef(found.effect[250:], truth[250:])[0, 1] > 0.85
    assert found.effect[250:] == pytest.approx(found.predict(features[250:]))
    assert found.weights[:5] == pytest.approx(slope, abs=0.03)
    assert (found.error[250:] > found.error[:250].max()).all()


def test_features_that_say_nothing_are_left_out_and_noise_gets_no_effects() -> None:
    rng = np.random.default_rng(4)
    kept = spread = 0
    for _ in range(20):
        data, _ = scattered(rng, 200, 80, 6, 0.0, 0.25)
        found = estimate_effects(data, rng.normal(size=(80, 20)))
        kept += bool(len(found.weights)) and found.predicted.std() > 0.03
        spread += found.spread
    assert kept <= 2
    assert spread / 20 < 0.03**2


def test_an_effect_without_its_own_row_is_that_of_the_other_rows() -> None:
    data, _ = scattered(np.random.default_rng(5), 200, 20, 10, 0.1, 0.2)
    found = estimate_effects(data)
    out = left_out_effects(data, found)
    design = _Design(data)
    rest = design.centred(data.scores)
    for row in (0, 77, 1999):
        others = (data.demos == data.demos[row]) & (np.arange(len(data.demos)) != row)
        expected = rest[others].sum() / (others.sum() + found.noise / found.spread)
        assert out[row] == pytest.approx(expected)
    assert (
        np.corrcoef(out, design.centred(data.scores))[0, 1]
        < np.corrcoef(found.effect[data.demos], design.centred(data.scores))[0, 1]
    ), "a row's own score must not help to predict it"


def test_what_cannot_be_estimated_is_said() -> None:
    with pytest.raises(DataError, match="at least two for each query"):
        estimate_effects(Measured.of([0, 1], [0, 0], [0.0, 1.0], 1))
    with pytest.raises(DataError, match="numbered from 0 to 1"):
        Measured.of([0, 0], [0, 2], [0.0, 1.0], 2)
    with pytest.raises(DataError, match="not a number"):
        Measured.of([0, 0], [0, 1], [0.0, np.nan], 2)
    with pytest.raises(DataError, match="the same length"):
        Measured.of([0], [0, 1], [0.0, 1.0], 2)
    with pytest.raises(DataError, match="one row for each of 2"):
        estimate_effects(table([[1, 0], [1, 0], [1, 0], [0, 0]]), np.zeros((3, 2)))
