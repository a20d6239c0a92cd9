from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leverplus.embedders.base import Vectors
from leverplus.pools.samplers import Search, corpus, mix_counts, nearest_both
from leverplus.recipe.pools import PoolSection
from leverplus.types import ItemId


@pytest.mark.parametrize(
    ("ratios", "size", "counts"),
    [
        ((0.5, 0.25, 0.25), 64, (32, 16, 16)),
        ((1, 1, 1), 8, (3, 3, 2)),
        ((0, 0, 2), 5, (0, 0, 5)),
        ((7, 2, 1), 1, (1, 0, 0)),
    ],
)
def test_a_mix_is_divided_by_largest_remainder(ratios, size, counts):
    section = PoolSection(size=size, mix_random=ratios[0], mix_text=ratios[1], mix_image=ratios[2])
    assert mix_counts(section) == counts


@given(
    st.lists(st.floats(0.0, 10.0), min_size=3, max_size=3).filter(lambda ratios: sum(ratios) > 1e-3),
    st.integers(1, 200),
)
def test_the_parts_of_a_mix_add_up_and_differ_by_less_than_one_from_their_share(ratios, size):
    counts = mix_counts(PoolSection(size=size, mix_random=ratios[0], mix_text=ratios[1], mix_image=ratios[2]))
    assert sum(counts) == size
    assert all(abs(count - size * ratio / sum(ratios)) < 1 + 1e-9 for count, ratio in zip(counts, ratios, strict=True))


def a_search(make_set, index=None):
    items, vectors = make_set(40)
    forbidden = tuple(np.arange(row // 3 * 3, min(row // 3 * 3 + 3, 40)) for row in range(40))
    return Search(tuple(item.id for item in items), vectors, vectors, forbidden, 0, index)


@pytest.mark.parametrize("closed", [[], [0], [9], [0, 1, 2], [3, 7, 9], list(range(8))])
def test_draws_reach_every_open_position_and_no_closed_one(closed):
    vectors = Vectors(None, np.zeros((10, 2), np.float32), np.zeros((10, 2), np.float32))
    seen: set[int] = set()
    for query in range(60):
        search = Search((ItemId(str(query)),), vectors, vectors, (np.array(closed[:1], dtype=np.int64),), 3)
        drawn = search.draw(0, min(2, 10 - len(closed)), np.array(closed[1:], dtype=np.int64)).tolist()
        assert len(set(drawn)) == len(drawn) == min(2, 10 - len(closed))
        seen |= set(drawn)
    assert seen == set(range(10)) - set(closed)


class ProposeSome:
    """An index that proposes a fixed number of allowed positions, the last ones first."""

    def __init__(self, count):
        self.count = count

    def propose(self, query, forbidden, count):
        return np.setdiff1d(np.arange(40), forbidden)[::-1][: self.count]


def test_what_an_index_proposes_is_ordered_by_exact_similarity(make_set):
    section = PoolSection(kind="corpus", size=6)
    exact = nearest_both(a_search(make_set), section)
    assert np.array_equal(corpus(a_search(make_set, ProposeSome(40)), section), exact)
    assert not np.array_equal(corpus(a_search(make_set, ProposeSome(20)), section), exact)


def test_a_query_for_which_the_index_proposes_too_few_is_searched_exactly(make_set):
    section = PoolSection(kind="corpus", size=6)
    assert np.array_equal(
        corpus(a_search(make_set, ProposeSome(5)), section), nearest_both(a_search(make_set), section)
    )
