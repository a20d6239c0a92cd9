"""A ranking finds again what was planted, its terms add up, and too little is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leverplus.errors import DataError
from leverplus.ranking.ranking import (
    LABEL_SIMILARITY,
    LEAST_GAIN,
    MeasuredTable,
    Ranking,
    by_labels,
    fit_ranking,
    ranked,
)

EFFECT = 0.15 * np.random.default_rng(7).standard_normal(50)


def planted(queries: int = 600, seed: int = 0, noise: float = 0.2) -> tuple[MeasuredTable, np.ndarray]:
    """Accuracies made of a query's level, 0.04 similarity, 0.4 label and an effect of the demonstration; their sum."""
    rng = np.random.default_rng(seed)
    candidates = np.stack([rng.permutation(50)[:12] for _ in range(queries)])
    near = rng.uniform(size=(queries, 12))
    expected = rng.uniform(size=(queries, 12))
    truth = 0.04 * near + 0.4 * expected + EFFECT[candidates]
    accuracy = rng.uniform(size=(queries, 1)) + truth + noise * rng.standard_normal((queries, 12))
    used = rng.random((queries, 12)) < 0.8
    table = MeasuredTable(
        candidates, used, accuracy, None, {"text": near}, {"text": 1.0}, expected, np.arange(queries) // 2, 51
    )
    return table, truth


def test_planted_terms_are_found_again() -> None:
    table, _ = planted()
    found = fit_ranking(table)
    assert found.label == pytest.approx(0.4, abs=0.05)
    assert found.similarity["text"] == pytest.approx(0.04, abs=0.01)
    assert found.about["gain"] == pytest.approx(0.4, abs=0.06)
    assert np.corrcoef(found.effect[:50], EFFECT)[0, 1] > 0.95
    assert found.effect[50] == 0.0  # never measured
    assert found.about["queries"] == 600
    assert found.about["effect_sd"] == pytest.approx(0.15, abs=0.04)


def test_its_picks_gain_on_queries_it_has_not_seen() -> None:
    found = fit_ranking(planted(noise=0.5)[0])
    fresh, truth = planted(seed=1)
    assert fresh.expected is not None
    score = found.score(fresh.near, fresh.expected, found.effect[fresh.candidates])
    best = ranked(score, fresh.used, 1)[:, 0]
    own = np.take_along_axis(truth, best[:, None], axis=1).mean()
    nearest = np.take_along_axis(truth, ranked(fresh.near["text"], fresh.used, 1), axis=1).mean()
    assert own > nearest + 0.12


def test_terms_by_hand() -> None:
    ranking = Ranking({"text": 0.5}, 0.25, np.zeros(2))
    terms = ranking.terms({"text": np.array([0.4, 0.8])}, np.array([1.0, 0.0]), np.array([-0.1, 0.3]))
    assert terms["similarity"].tolist() == pytest.approx([0.2, 0.4])
    assert terms["label"].tolist() == [0.25, 0.0]
    score = ranking.score({"text": np.array([0.4, 0.8])}, np.array([1.0, 0.0]), np.array([-0.1, 0.3]))
    assert score.tolist() == pytest.approx([0.35, 0.7])
    plain = by_labels({"text": 1.0, "image": 0.0}, 3)
    assert set(plain.similarity) == {"text"}
    assert plain.score({"text": np.array([1.0])}, np.array([0.5]), np.zeros(1)).tolist() == [0.5 + LABEL_SIMILARITY]


def test_the_best_stands_last_and_what_is_not_allowed_is_not_chosen() -> None:
    scores = np.array([[0.1, 0.9, 0.5, 0.7]])
    assert ranked(scores, np.array([[True, False, True, True]]), 2).tolist() == [[2, 3]]


def test_what_was_measured_in_a_corner_leaves_the_start_standing() -> None:
    table, truth = planted(noise=1.0)
    near = table.near["text"]
    corner = table.used & (near > 0.75)  # only near ones were asked, and their answers are mostly luck
    few = replace(table, used=corner)
    found = fit_ranking(few)
    assert table.expected is not None
    start = by_labels({"text": 1.0}, 51)
    picks = {}
    for name, own in (("start", start), ("found", found)):
        score = own.score(table.near, table.expected, own.effect[table.candidates])
        picks[name] = np.take_along_axis(truth, ranked(score, table.used, 1), axis=1).mean()
    assert picks["found"] > picks["start"] - 0.02


def test_answers_that_say_nothing_or_the_contrary_do_not_turn_the_start_round() -> None:
    table, _ = planted()
    upside_down = replace(table, accuracy=-table.accuracy)
    found = fit_ranking(upside_down)
    assert found.about["gain"] == LEAST_GAIN
    level = replace(table, near={"text": np.zeros_like(table.near["text"])}, expected=None)
    assert fit_ranking(level).about["gain"] == LEAST_GAIN


def test_too_little_is_refused() -> None:
    table, _ = planted(queries=19)
    with pytest.raises(DataError, match=r"19 training queries .* effects need 20"):
        fit_ranking(table)
