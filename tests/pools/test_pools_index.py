from __future__ import annotations

import numpy as np
import pytest

from leverplus.errors import LeverError
from leverplus.pools import index as index_module
from leverplus.pools.build import build_pools
from leverplus.pools.index import InvertedFile, open_pool_index
from leverplus.pools.similarity import rows
from leverplus.recipe.pools import PoolSection


def test_small_sets_other_kinds_and_a_missing_library_are_searched_exactly(make_set, monkeypatch):
    _, vectors = make_set(50)
    assert open_pool_index(PoolSection(kind="corpus"), vectors) is None
    assert open_pool_index(PoolSection(kind="nearest_both", ann_above=0), vectors) is None
    monkeypatch.setattr(index_module, "find_spec", lambda name: None)
    assert open_pool_index(PoolSection(kind="corpus", ann_above=10), vectors) is None


def test_an_approximate_pool_is_almost_the_exact_one_and_says_so(make_set):
    pytest.importorskip("faiss")
    items, vectors = make_set(9000, per_image=2)
    queries, query_vectors = items[:40], rows(vectors, slice(40))

    def build(section, chosen=slice(40)):
        vectors_of = rows(query_vectors, chosen)
        return build_pools(section, queries[chosen], vectors_of, items, vectors, seed=0, fingerprint={"model": "m"})

    exact = build(PoolSection(kind="corpus", size=32))
    near = build(PoolSection(kind="corpus", size=32, ann_above=1000))
    assert {pool.builder for pool in exact}.isdisjoint(pool.builder for pool in near)
    shared = [len(set(a.candidates) & set(b.candidates)) / 32 for a, b in zip(exact, near, strict=True)]
    assert np.mean(shared) > 0.9
    by_id = {item.id: item for item in items}
    for pool, query in zip(near, queries, strict=True):
        assert len(set(pool.candidates)) == 32
        assert all(by_id[candidate].image_id != query.image_id for candidate in pool.candidates)
    assert build(PoolSection(kind="corpus", size=32, ann_above=1000), slice(7, 8)) == [near[7]]


def test_an_index_over_items_without_pictures_compares_questions(make_set):
    pytest.importorskip("faiss")
    _, vectors = make_set(50)
    blind = type(vectors)(None, vectors.text, vectors.answer)
    found = open_pool_index(PoolSection(kind="corpus", ann_above=0), blind)
    assert found is not None
    assert 7 in found.propose(rows(blind, slice(7, 8)), np.empty(0, np.int64), 3)
    with pytest.raises(LeverError, match="pictures are compared"):
        InvertedFile(blind, 0.5)
