from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from leverplus.embedders.base import Vectors
from leverplus.errors import LeverError
from leverplus.pools import similarity as similarity_module
from leverplus.pools.similarity import GRID, cosine, mmr_order, nearest, similarity, top, weighted_similarity


def unit(count, width, seed):
    drawn = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def vectors(count, seed):
    return Vectors(
        image=unit(count, 16, seed), text=unit(count, 24, seed + 1), answer=np.zeros((count, 24), np.float32)
    )


def test_a_similarity_is_the_exact_sum_of_the_rounded_products():
    left, right = unit(1, 300, 0), unit(5, 300, 1)
    found = cosine(left, right)[0]
    for row in range(5):
        exact = sum(
            Fraction(int(np.rint(np.float64(a) * GRID))) * int(np.rint(np.float64(b) * GRID))
            for a, b in zip(left[0], right[row], strict=True)
        )
        assert Fraction(float(found[row])) == exact / Fraction(GRID) ** 2


def test_rounding_to_the_grid_changes_a_cosine_by_less_than_a_millionth():
    left, right = unit(20, 512, 0), unit(30, 512, 1)
    assert np.abs(cosine(left, right) - left.astype(np.float64) @ right.astype(np.float64).T).max() < 1e-6


@pytest.mark.parametrize("width", [3, 64, 513])
def test_a_similarity_has_the_same_bits_in_every_batch(width):
    left, right = unit(37, width, 0), unit(53, width, 1)
    together = cosine(left, right)
    assert all(np.array_equal(cosine(left[i : i + 1], right)[0], together[i]) for i in range(37))
    assert all(np.array_equal(cosine(left, right[j : j + 1])[:, 0], together[:, j]) for j in range(53))
    shuffled = np.random.default_rng(2).permutation(width)
    assert np.array_equal(cosine(left[:, shuffled], right[:, shuffled]), together)


def test_both_similarities_are_weighted_by_hand():
    left = Vectors(np.array([[1, 0]], np.float32), np.array([[0, 1]], np.float32), np.zeros((1, 2), np.float32))
    right = Vectors(np.array([[0.6, 0.8]], np.float32), np.array([[0, 1]], np.float32), np.zeros((1, 2), np.float32))
    assert similarity(left, right, 0.25)[0, 0] == pytest.approx(0.25 * 1.0 + 0.75 * 0.6, abs=1e-7)


def test_pictures_that_are_compared_but_missing_are_refused_with_what_to_set():
    text = np.ones((2, 3))
    assert np.array_equal(weighted_similarity(None, text, 1.0), text)
    with pytest.raises(LeverError, match=r"pictures are compared with weight 0\.5.*nearest_text"):
        weighted_similarity(None, text, 0.5)
    with pytest.raises(LeverError, match="text_weight = 2"):
        weighted_similarity(text, text, 2.0)


@given(arrays(np.float64, (3, 17), elements=st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0])), st.integers(0, 17))
def test_the_top_is_a_stable_sort_even_when_almost_everything_ties(values, count):
    assert np.array_equal(top(values, count), np.argsort(-values, axis=1, kind="stable")[:, :count])


def test_asking_for_more_than_there_is_is_refused():
    with pytest.raises(LeverError, match="the best 4 of 3"):
        top(np.zeros((1, 3)), 4)


@given(
    seed=st.integers(0, 99), count=st.integers(1, 30), weight=st.sampled_from([0.0, 0.3, 1.0]), chunk=st.integers(1, 40)
)
@settings(max_examples=60, deadline=None)
def test_the_search_equals_sorting_all_similarities(seed, count, weight, chunk):
    rng = np.random.default_rng(seed)
    queries, items = vectors(4, seed), vectors(30, seed + 10)
    repeated = rng.integers(0, 30, 30)
    items = Vectors(items.image[repeated], items.text[repeated], items.answer)
    forbidden = [np.sort(rng.choice(30, size, replace=False)) for size in (0, 1, 5, 29)]
    full = similarity(queries, items, weight)
    for row, positions in enumerate(forbidden):
        full[row, positions] = -np.inf
    before, similarity_module.ITEMS_AT_ONCE = similarity_module.ITEMS_AT_ONCE, chunk
    try:
        position, value = nearest(queries, items, forbidden, weight, count)
    finally:
        similarity_module.ITEMS_AT_ONCE = before
    expected = np.argsort(-full, axis=1, kind="stable")[:, :count]
    assert np.array_equal(value, np.take_along_axis(full, expected, axis=1))
    allowed = ~np.isneginf(value)
    assert np.array_equal(position[allowed], expected[allowed])


def test_marginal_relevance_by_hand():
    relevance = np.array([[0.9, 0.85, 0.5, 0.1]])
    likeness = np.array([[1, 0.99, 0.2, 0], [0.99, 1, 0.3, 0], [0.2, 0.3, 1, 0], [0, 0, 0, 1.0]])
    # After 0: 1 has 0.5*0.85 - 0.5*0.99 = -0.07, 2 has 0.25 - 0.1 = 0.15, 3 has 0.05. After 2: 3 has 0.05, 1 has -0.07.
    assert mmr_order(relevance, likeness.__getitem__, 0.5, 4).tolist() == [[0, 2, 3, 1]]
    assert mmr_order(relevance, likeness.__getitem__, 1.0, 4).tolist() == [[0, 1, 2, 3]]


@given(seed=st.integers(0, 199), mmr_lambda=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
@settings(max_examples=60, deadline=None)
def test_marginal_relevance_equals_brute_force(seed, mmr_lambda):
    rng = np.random.default_rng(seed)
    relevance = rng.choice([0.1, 0.2, 0.4, 0.8], (2, 7))
    relevance[0, rng.integers(7)] = -np.inf
    likeness = cosine(unit(7, 3, seed), unit(7, 3, seed))
    order = mmr_order(relevance, likeness.__getitem__, mmr_lambda, 5)
    for row in range(2):
        chosen: list[int] = []
        for step in range(5):
            rest = [k for k in range(7) if k not in chosen and relevance[row, k] > -np.inf]
            gain = [
                relevance[row, k]
                if step == 0
                else mmr_lambda * relevance[row, k] - (1.0 - mmr_lambda) * max(likeness[c, k] for c in chosen)
                for k in rest
            ]
            chosen.append(rest[int(np.argmax(gain))])
        assert order[row].tolist() == chosen
