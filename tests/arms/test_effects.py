"""Effects of demonstrations: by hand, by brute force, and from simulated scores whose truth is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from leverplus.arms.audit import (
    audit,
)
from leverplus.arms.effects import (
    LEAST_GAIN,
    Measured,
    MeasuredTable,
    _Design,
    effect_feature,
    estimate_effects,
    fit_ranking,
    fit_weights,
    left_out_effects,
)
from leverplus.errors import DataError

Floats = NDArray[np.float64]


def measured(scores: list[list[float]]) -> Measured:
    """Every query with every demonstration."""
    y = np.array(scores)
    queries, demos = np.indices(y.shape)
    return Measured.of(queries.ravel(), demos.ravel(), y.ravel(), y.shape[1])


def scattered(
    seed: int, sizes: tuple[int, int, int], spread: float, noise: float
) -> tuple[Measured, Floats]:
    """Queries, demonstrations and how many of these each query was measured with, drawn by chance; the true effects."""
    rng = np.random.default_rng(seed)
    queries, demos, each = sizes
    truth = rng.normal(0.0, spread, demos)
    chosen = np.stack([rng.permutation(demos)[:each] for _ in range(queries)])
    scores = rng.random((queries, 1)) + truth[chosen]
    scores = scores + rng.normal(0.0, noise, chosen.shape)
    rows = np.repeat(np.arange(queries), each)
    return Measured.of(rows, chosen.ravel(), scores.ravel(), demos), truth


def test_variances_and_effects_by_hand() -> None:
    """Two demonstrations, four queries: differences 1, 1, 1, 0 between them, so means +-3/8 around each query's mean.

    Within queries: squares 2 x 1/4 for each of three queries, sum 3/2 on 4 degrees of freedom. Between demonstrations:
    sums +-3/2 with information 4 (1 - 1/2) = 2 each, so 9/8 + 9/8 = 9/4. The within matrix is [[2, -2], [-2, 2]]:
    3/2 = 4 noise + 4 spread and 9/4 = 2 noise + 8 spread, so noise = 1/8 and spread = 1/4.
    """
    found = estimate_effects(measured([[1, 0], [1, 0], [1, 0], [0, 0]]))
    assert (found.noise, found.spread) == (pytest.approx(1 / 8), pytest.approx(1 / 4))
    # [[2 + 1/2, -2], [-2, 2 + 1/2]] u = (3/2, -3/2): u = 3/2 / 4.5 = 1/3, shrunk from 3/8
    assert found.effect == pytest.approx([1 / 3, -1 / 3])
    assert found.error == pytest.approx(np.sqrt(1 / (2 * 8 + 4)))
    assert found.counts.tolist() == [4, 4]


def test_effects_solve_the_mixed_model_equations() -> None:
    """Brute force: least squares with a free mean a query and a penalty noise / spread on every effect."""
    data, _ = scattered(0, (30, 12, 4), 0.1, 0.2)
    found = estimate_effects(data)
    x = np.zeros((len(data.scores), 30 + 12))
    x[np.arange(len(x)), data.queries] = 1.0
    x[np.arange(len(x)), 30 + data.demos] = 1.0
    penalty = np.diag([0.0] * 30 + [found.noise / found.spread] * 12)
    solved = np.linalg.solve(x.T @ x + penalty, x.T @ data.scores)[30:]
    assert found.spread > 0
    assert found.effect == pytest.approx(solved, abs=1e-7)


def test_moments_are_unbiased_and_errors_cover_the_truth() -> None:
    noises, spreads, covered = [], [], []
    for seed in range(60):
        data, truth = scattered(seed, (150, 70, 6), 0.1, 0.25)
        found = estimate_effects(data)
        noises.append(found.noise)
        spreads.append(found.spread)
        # effects are against the mean of the others: the truth is known up to a constant
        missed = (found.effect - found.effect.mean()) - (truth - truth.mean())
        covered.append(np.mean(np.abs(missed) < 1.96 * found.error))
    assert np.mean(noises) == pytest.approx(0.25**2, rel=0.03)
    assert np.mean(spreads) == pytest.approx(0.1**2, rel=0.1)
    assert 0.93 < np.mean(covered) < 0.97


def test_shrinking_recovers_more_than_means_do_and_knows_how_much() -> None:
    data, truth = scattered(2, (1500, 600, 8), 0.05, 0.3)
    found, design = estimate_effects(data), _Design(data)
    means = design.sums / design.information
    assert np.mean((found.effect - truth) ** 2) < 0.5 * np.mean((means - truth) ** 2)
    known = np.corrcoef(found.effect, truth)[0, 1] ** 2
    assert found.reliability == pytest.approx(known, abs=0.1)
    spreads = [
        estimate_effects(scattered(seed, (200, 80, 6), 0.0, 0.25)[0]).spread
        for seed in range(20)
    ]
    assert np.mean(spreads) < 0.03**2, "noise gets no effects"


def test_an_effect_without_its_own_row_is_that_of_the_other_rows() -> None:
    data, _ = scattered(5, (200, 20, 10), 0.1, 0.2)
    found = estimate_effects(data)
    out, rest = left_out_effects(data, found), _Design(data).rest
    for row in (0, 77, 1999):
        others = (data.demos == data.demos[row]) & (np.arange(len(data.demos)) != row)
        expected = rest[others].sum() / (others.sum() + found.noise / found.spread)
        assert out[row] == pytest.approx(expected)
    known = np.corrcoef(found.effect[data.demos], rest)[0, 1]
    assert np.corrcoef(out, rest)[0, 1] < known, "its own score must not help"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (([0, 1], [0, 0], [0.0, 1.0], 1), "at least two for each query"),
        (([0, 0], [0, 2], [0.0, 1.0], 2), "numbered from 0 to 1"),
        (([0, 0], [0, 1], [0.0, np.nan], 2), "not a number"),
        (([0], [0, 1], [0.0, 1.0], 2), "the same length"),
    ],
)
def test_what_cannot_be_estimated_is_said(rows: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        estimate_effects(Measured.of(*rows))


def test_weights_are_ridge_of_differences_within_queries() -> None:
    rng = np.random.default_rng(0)
    x, level = rng.normal(size=(40, 5)), rng.normal(size=(40, 1))
    used = rng.random((40, 5)) < 0.8
    found, penalty = fit_weights({"x": x}, 2.0 * x + level, used, np.arange(40))
    centred = []
    for row, mask in zip(x, used, strict=True):
        if mask.any():
            centred.append(row[mask] - row[mask].mean())
    flat = np.concatenate(centred)
    squares = (flat**2).sum()
    by_hand = 2.0 * squares / (squares + penalty * flat.std() ** 2)
    assert found["x"] == pytest.approx(by_hand)
    noise = {str(n): rng.normal(size=(50, 4)) for n in range(30)}
    every = np.ones((50, 4), bool)
    worst = fit_weights(noise, rng.normal(size=(50, 4)), every, np.arange(50))
    assert worst[1] == 1e5, "noise is penalised most"


def test_a_feature_of_the_query_alone_gets_no_weight_and_true_weights_are_found() -> (
    None
):
    rng = np.random.default_rng(1)
    a, b, noise = rng.normal(size=(3, 2000, 8))
    easy = np.broadcast_to(rng.normal(size=(2000, 1)), (2000, 8))
    scores = 0.3 * a - 0.1 * b + easy + noise
    features = {"a": a, "b": b, "easy": easy}
    every = np.ones((2000, 8), bool)
    found, _ = fit_weights(features, scores, every, np.arange(2000))
    assert list(found.values()) == pytest.approx([0.3, -0.1, 0.0], abs=0.03)


EFFECT = 0.15 * np.random.default_rng(7).standard_normal(50)


def planted(
    queries: int = 600, seed: int = 0, noise: float = 0.2
) -> tuple[MeasuredTable, Floats]:
    """Accuracies made of a query's level, 0.04 similarity, 0.4 label and an effect of the demonstration; their sum."""
    rng = np.random.default_rng(seed)
    candidates = np.stack([rng.permutation(50)[:12] for _ in range(queries)])
    near, expected = rng.uniform(size=(2, queries, 12))
    truth = 0.04 * near + 0.4 * expected + EFFECT[candidates]
    level = rng.uniform(size=(queries, 1))
    table = MeasuredTable(
        candidates=candidates,
        used=rng.random((queries, 12)) < 0.8,
        accuracy=level + truth + noise * rng.standard_normal((queries, 12)),
        probability=None,
        near={"text": near},
        fields={"text": 1.0, "image": 0.0},
        expected=expected,
        groups=np.arange(queries) // 2,
        demonstrations=51,
    )
    return table, truth


def test_planted_terms_are_found_again() -> None:
    found = fit_ranking(planted()[0])
    assert found.label == pytest.approx(0.4, abs=0.05)
    assert found.similarity == {"text": pytest.approx(0.04, abs=0.01)}
    assert found.about["gain"] == pytest.approx(0.4, abs=0.06)
    assert np.corrcoef(found.effect[:50], EFFECT)[0, 1] > 0.95
    assert found.effect[50] == 0.0  # never measured
    assert found.about["queries"] == 600
    assert found.about["effect_sd"] == pytest.approx(0.15, abs=0.04)


def test_its_picks_gain_on_queries_it_has_not_seen() -> None:
    found = fit_ranking(planted(noise=0.5)[0])
    fresh, truth = planted(seed=1)
    near = fresh.near["text"]
    assert fresh.expected is not None
    score = found.similarity["text"] * near + found.label * fresh.expected
    gains = []
    for own in (score + found.effect[fresh.candidates], near):
        best = np.where(fresh.used, own, -np.inf).argmax(axis=1)[:, None]
        gains.append(np.take_along_axis(truth, best, axis=1).mean())
    assert gains[0] > gains[1] + 0.12


def test_answers_that_say_nothing_or_the_contrary_do_not_turn_the_start_round() -> None:
    table, _ = planted()
    upside_down = replace(table, accuracy=-table.accuracy)
    assert fit_ranking(upside_down).about["gain"] == LEAST_GAIN
    nothing = {"text": np.zeros_like(table.near["text"])}
    level = fit_ranking(replace(table, near=nothing, expected=None))
    assert (level.about["gain"], level.label) == (LEAST_GAIN, 0.0)
    few, _ = planted(queries=19)
    with pytest.raises(DataError, match=r"19 training queries .* effects need 20"):
        fit_ranking(few)


def test_effects_as_a_feature_never_hold_the_rows_own_score() -> None:
    """Scores of mostly noise: with its own score in it the feature would predict them."""
    rng = np.random.default_rng(3)
    table, _ = planted(400)
    truth = rng.normal(0.0, 0.2, 51)[table.candidates]
    scores = truth + rng.normal(size=truth.shape)
    used = np.ones(truth.shape, bool)
    used[300:] = False
    feature, effects = effect_feature("accuracy", replace(table, used=used), scores)
    assert feature[300:] == pytest.approx(effects.effect[table.candidates[300:]])
    rest = (scores - truth)[:300].ravel()
    assert abs(np.corrcoef(feature[:300].ravel(), rest)[0, 1]) < 0.05
    assert np.corrcoef(feature[300:].ravel(), scores[300:].ravel())[0, 1] > 0.1
    used[:, 1:] = False
    with pytest.raises(DataError, match="by accuracy: every query was measured with"):
        effect_feature("accuracy", replace(table, used=used), scores)


def test_the_most_useful_and_the_most_harmful_are_named_and_luck_is_called_noise() -> (
    None
):
    data, truth = scattered(0, (300, 60, 10), 0.2, 0.2)
    found = audit(data, [f"demo {n}" for n in range(60)])
    lines = found["useful"]
    assert not found["is_noise"]
    assert lines[-1]["demo"] == f"demo {truth.argmin()}"
    assert lines[0]["demo"] in {f"demo {n}" for n in np.argsort(-truth)[:3]}
    assert (found["answers"], found["queries"]) == (3000, 300)
    luck = [scattered(seed, (300, 60, 10), 0.0, 0.2)[0] for seed in range(10)]
    assert sum(audit(own, ["d"] * 60)["is_noise"] for own in luck) >= 4
    rare = Measured.of([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 2], [1, 0, 1, 0, 1, 0], 3)
    assert [line["demo"] for line in audit(rare, "abc")["useful"]] == ["a"]
