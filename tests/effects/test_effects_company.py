"""Effects in company: against the textbook equations, on drawn data, and what is refused."""

import numpy as np
import pytest

from leverplus.effects.company import NOBODY, ListScores, estimate_company
from leverplus.errors import DataError


def drawn(*, queries: int, each: int, demos: int, shots: int, spread: float, seed: int = 0):
    """Lists at random, with known effects and one feature of weight 0.5."""
    rng = np.random.default_rng(seed)
    effect = spread * rng.normal(size=demos)
    query = np.repeat(np.arange(queries), each)
    lists = np.stack([rng.permutation(demos)[:shots] for _ in query])
    feature = rng.normal(size=(len(query), 1))
    level = rng.normal(size=queries)
    scores = level[query] + 0.5 * feature[:, 0] + effect[lists].sum(axis=1) + 0.3 * rng.normal(size=len(query))
    return ListScores.of(query, lists, scores, feature, demos), effect


def test_effects_solve_the_mixed_model_equations_written_out_in_full():
    data, _ = drawn(queries=6, each=5, demos=9, shots=3, spread=0.4)
    found = estimate_company(data)
    # Henderson's equations with a column for every query, the feature and every demonstration
    queries = np.eye(6)[data.queries]
    members = np.zeros((30, 9))
    for row, own in enumerate(data.lists):
        members[row, own] += 1
    fixed = np.hstack([queries, data.features])
    both = np.hstack([fixed, members])
    left = both.T @ both
    left[7:, 7:] += found.noise / found.spread * np.eye(9)
    # every list has three members, so that the sum of effects is left to the means of queries: shrinkage settles it
    solved = np.linalg.solve(left, both.T @ data.scores)
    assert found.spread > 0
    assert np.allclose(found.effect, solved[7:])
    assert np.allclose(found.weights, solved[6:7])
    errors = np.sqrt(found.noise * np.diag(np.linalg.inv(left))[7:])
    assert np.allclose(found.error, errors)


def test_variances_and_effects_are_found_again_in_many_lists():
    data, effect = drawn(queries=300, each=8, demos=60, shots=4, spread=0.2)
    found = estimate_company(data)
    assert found.noise == pytest.approx(0.09, rel=0.1)
    assert found.spread == pytest.approx(0.04, rel=0.4)
    assert np.corrcoef(found.effect, effect)[0, 1] > 0.95
    assert found.weights == pytest.approx([0.5], abs=0.03)
    assert found.reliability > 0.8


def test_variances_are_right_on_average():
    found = [
        estimate_company(drawn(queries=40, each=4, demos=30, shots=3, spread=0.3, seed=seed)[0]) for seed in range(40)
    ]
    assert np.mean([own.spread for own in found]) == pytest.approx(0.09, rel=0.15)
    assert np.mean([own.noise for own in found]) == pytest.approx(0.09, rel=0.15)


def test_where_nobody_matters_effects_are_next_to_nothing():
    data, _ = drawn(queries=200, each=6, demos=40, shots=4, spread=0.0)
    assert np.abs(estimate_company(data).effect).max() < 0.05


def test_what_a_demonstration_adds_to_one_query_alone_is_no_effect_of_its_own():
    """Lists of one query share members, so that their worth for this query shows again and again."""
    spreads, effects = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        query = np.repeat(np.arange(100), 6)
        near = np.stack([rng.permutation(120)[:10] for _ in range(100)])  # who may be shown to each query
        lists = np.stack([rng.permutation(near[q])[:4] for q in query])
        here = rng.normal(size=(100, 120))  # what everybody adds to each query, drawn anew for every query
        scores = here[query[:, None], lists].sum(axis=1) + 0.3 * rng.normal(size=len(query))
        found = estimate_company(ListScores.of(query, lists, scores, None, 120))
        spreads.append(found.spread)
        effects.append(float(np.abs(found.effect).max()))
    assert np.mean(spreads) < 0.05  # 1.0 is what they add to their own query
    assert np.median(effects) < 0.3


def test_the_spread_is_that_of_all_pairs_of_rows_of_different_queries_taken_one_by_one():
    data, _ = drawn(queries=8, each=4, demos=10, shots=3, spread=0.4)
    plain = ListScores.of(data.queries, data.lists, data.scores, None, 10)
    members = np.stack([np.bincount(own, minlength=10) for own in data.lists]).astype(float)
    scores = data.scores.copy()
    for query in range(8):
        own = data.queries == query
        members[own] -= members[own].mean(axis=0)
        scores[own] -= scores[own].mean()
    above = below = 0.0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if data.queries[i] != data.queries[j]:
                alike = float(members[i] @ members[j])
                above += scores[i] * scores[j] * alike
                below += alike**2
    found = estimate_company(plain)
    assert found.spread == pytest.approx(above / below)
    left = float(scores @ scores) - found.spread * float((members**2).sum())
    assert found.noise == pytest.approx(left / (len(scores) - 8))


def test_lists_may_differ_in_length_and_a_demonstration_never_shown_has_no_effect():
    data, _ = drawn(queries=30, each=5, demos=12, shots=4, spread=0.3)
    lists = data.lists.copy()
    lists[::3, 0] = NOBODY
    shorter = ListScores.of(data.queries, lists, data.scores, None, 13)
    found = estimate_company(shorter)
    assert found.effect[12] == 0.0
    assert found.counts[12] == 0
    assert found.counts.sum() == (lists != NOBODY).sum()


def test_one_list_a_query_is_refused():
    with pytest.raises(DataError, match="at least two lists for a query"):
        estimate_company(ListScores.of([0, 1], [[0], [1]], [0.0, 1.0], None, 2))


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(DataError, match="not a number"):
        ListScores.of([0, 0], [[0], [1]], [0.0, np.nan], None, 2)
