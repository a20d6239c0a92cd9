from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leverplus.errors import DataError, LeverError
from leverplus.pools.build import build_pools
from leverplus.pools.rank import (
    demos_at,
    mmr_demos,
    nearest_demos,
    pool_likeness,
    pool_similarities,
    rank_mmr,
    rank_nearest,
    rank_two_stage,
    two_stage_demos,
)
from leverplus.pools.similarity import rows, similarity, weighted_similarity
from leverplus.recipe.pools import PoolSection
from leverplus.types import ItemId, Pool

POOL = Pool(ItemId("q"), tuple(ItemId(name) for name in "abcd"), "hash")
IMAGE = np.array([0.9, 0.1, 0.5, 0.4])
TEXT = np.array([0.2, 0.8, 0.7, 0.9])


def test_the_nearest_demonstration_comes_last():
    assert nearest_demos(POOL, IMAGE, TEXT, 0.0, 2) == ("c", "a")
    assert nearest_demos(POOL, None, TEXT, 1.0, 3) == ("c", "b", "d")
    # Half and half: a 0.55, b 0.45, c 0.6, d 0.65.
    assert nearest_demos(POOL, IMAGE, TEXT, 0.5, 4) == ("b", "a", "c", "d")
    assert nearest_demos(POOL, IMAGE, TEXT, 0.5, 0) == ()


def test_two_stages_keep_the_half_with_the_nearest_pictures_then_ask_the_text():
    assert two_stage_demos(POOL, IMAGE, TEXT, 2) == ("a", "c")
    assert two_stage_demos(POOL, IMAGE, TEXT, 2, first=3) == ("c", "d")
    # The first stage never leaves fewer than are asked for.
    assert two_stage_demos(POOL, IMAGE, TEXT, 3) == ("a", "c", "d")
    assert two_stage_demos(POOL, IMAGE, TEXT, 4, first=99) == ("a", "c", "b", "d")


def test_equal_questions_are_told_apart_by_picture():
    assert two_stage_demos(POOL, IMAGE, np.ones(4), 2, first=4) == ("c", "a")


def test_marginal_relevance_avoids_a_copy_of_what_is_chosen():
    likeness = np.eye(4)
    likeness[3, 2] = likeness[2, 3] = 1.0
    relevance = weighted_similarity(IMAGE, TEXT, 0.5)
    assert mmr_demos(POOL, relevance, likeness, 0.5, 2) == ("a", "d")
    assert mmr_demos(POOL, relevance, likeness, 1.0, 2) == ("c", "d")


@given(seed=st.integers(0, 999), shots=st.integers(0, 9), weight=st.sampled_from([0.0, 0.4, 1.0]))
def test_ranking_a_batch_is_ranking_each_pool(seed, shots, weight):
    rng = np.random.default_rng(seed)
    image, text = rng.choice([0.1, 0.2, 0.3], (2, 5, 9))
    likeness = rng.random((5, 9, 9))
    pools = [Pool(ItemId(f"q{b}"), tuple(ItemId(f"{b}-{k}") for k in range(9)), "h") for b in range(5)]
    both = weighted_similarity(image, text, weight)
    assert demos_at(pools, rank_nearest(image, text, weight, shots)) == [
        nearest_demos(pool, image[b], text[b], weight, shots) for b, pool in enumerate(pools)
    ]
    assert demos_at(pools, rank_two_stage(image, text, shots, 6)) == [
        two_stage_demos(pool, image[b], text[b], shots, 6) for b, pool in enumerate(pools)
    ]
    assert demos_at(pools, rank_mmr(both, lambda chosen: likeness[range(5), chosen], 0.6, shots)) == [
        mmr_demos(pool, both[b], likeness[b], 0.6, shots) for b, pool in enumerate(pools)
    ]


@given(seed=st.integers(0, 999), shots=st.integers(1, 8))
def test_more_shots_add_demonstrations_in_front(seed, shots):
    rng = np.random.default_rng(seed)
    image, text, likeness = rng.random((3, 9)), rng.random((3, 9)), rng.random((3, 9, 9))
    assert np.array_equal(rank_nearest(image, text, 0.5, shots + 1)[:, 1:], rank_nearest(image, text, 0.5, shots))
    ranked = [rank_mmr(text, lambda chosen: likeness[range(3), chosen], 0.5, count) for count in (shots, shots + 1)]
    assert np.array_equal(ranked[1][:, 1:], ranked[0])


def test_equal_candidates_keep_the_order_of_the_pool():
    assert rank_nearest(None, np.ones((1, 5)), 1.0, 3).tolist() == [[2, 1, 0]]


def test_more_shots_than_candidates_are_refused():
    with pytest.raises(LeverError, match="the best 5 of 4"):
        nearest_demos(POOL, IMAGE, TEXT, 0.5, 5)
    with pytest.raises(LeverError, match="the best 5 of 4"):
        mmr_demos(POOL, IMAGE, np.eye(4), 0.5, 5)
    with pytest.raises(LeverError, match="the best 5 of 4"):
        two_stage_demos(POOL, IMAGE, TEXT, 5)


def test_marginal_relevance_in_large_pools_needs_no_table_of_all_pairs(make_set):
    items, vectors = make_set(1500)
    pools = [Pool(ItemId("q"), tuple(item.id for item in items[:1400]), "h")] * 8
    relevance = np.random.default_rng(0).random((8, 1400))
    tracemalloc.start()
    ranked = rank_mmr(relevance, pool_likeness(pools, items, vectors, 0.5), 0.5, 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ranked.shape == (8, 4)
    assert peak < 1400 * 1400 * 8  # one pool's table; eight were held before


def test_similarities_inside_pools_are_those_of_the_whole_set(make_set):
    items, vectors = make_set(40)
    queries, query_vectors = make_set(6, split="test", seed=4)
    pools = build_pools(PoolSection(size=7), queries, query_vectors, items, vectors, seed=0, fingerprint={"model": "m"})
    inside = pool_similarities(pools, query_vectors, items, vectors)
    likeness = pool_likeness(pools, items, vectors, 0.3)
    position = {item.id: row for row, item in enumerate(items)}
    for row, pool in enumerate(pools):
        where = [position[candidate] for candidate in pool.candidates]
        query = rows(query_vectors, [row])
        assert np.array_equal(inside.text[row], similarity(query, vectors, 1.0)[0, where])
        assert np.array_equal(inside.image[row], similarity(query, vectors, 0.0)[0, where])
        among = similarity(vectors, vectors, 0.3)[np.ix_(where, where)]
        for one in range(7):
            assert np.array_equal(likeness(np.full(6, one))[row], among[one])


def test_the_nearest_of_a_nearest_pool_are_its_first_candidates_reversed(make_set):
    items, vectors = make_set(40)
    section = PoolSection(kind="nearest_both", size=12, text_weight=0.4)
    pools = build_pools(section, items, vectors, items, vectors, seed=0, fingerprint={"model": "m"})
    inside = pool_similarities(pools, vectors, items, vectors)
    ranked = demos_at(pools, rank_nearest(inside.image, inside.text, 0.4, 3))
    assert ranked == [pool.candidates[2::-1] for pool in pools]


def test_a_smaller_pool_is_ranked_beside_a_larger_one_as_if_alone(make_set):
    items, vectors = make_set(40)
    section = PoolSection(kind="random", size=12)
    pools = build_pools(section, items, vectors, items, vectors, seed=0, fingerprint={"model": "m"})
    pools[3] = Pool(pools[3].query, pools[3].candidates[:5], "small")
    together = pool_similarities(pools, vectors, items, vectors)
    alone = pool_similarities(pools[3:4], rows(vectors, slice(3, 4)), items, vectors)
    for weight in (1.0, 0.4):
        own = demos_at(pools[3:4], rank_nearest(alone.image, alone.text, weight, 4))
        assert demos_at(pools, rank_nearest(together.image, together.text, weight, 4))[3] == own[0]
        likeness = pool_likeness(pools, items, vectors, weight)
        found = rank_mmr(weighted_similarity(together.image, together.text, weight), likeness, 0.5, 5)
        assert set(found[3].tolist()) == set(range(5))


def test_pools_that_do_not_fit_the_demonstrations_are_refused(make_set):
    items, vectors = make_set(10)
    with pytest.raises(DataError, match="candidate a of a pool is not among the demonstrations"):
        pool_likeness([POOL], items, vectors, 0.5)
    with pytest.raises(LeverError, match="1 pools but vectors of 10 queries"):
        pool_similarities([POOL], vectors, items, vectors)
    with pytest.raises(LeverError, match="2 pools but positions for 1"):
        demos_at([POOL, POOL], np.array([[0, 1]]))
