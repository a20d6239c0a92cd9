"""Comparing and searching vectors: the same bits in any batch, exact with filters and deletions, ties in order."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from leverplus.arms import index as indexes
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.similarity import GRID, cosine, mmr_order, top
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.encode.base import Vectors
from leverplus.errors import LeverError

WIDTH = 24


def cloud(count: int, seed: int, width: int = WIDTH) -> NDArray[np.float32]:
    """Unit vectors in clusters, as those of real texts are."""
    rng = np.random.default_rng(seed)
    middle = rng.standard_normal((50, width))
    points = middle[rng.integers(50, size=count)]
    points = points + 0.5 * rng.standard_normal((count, width))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def asked(
    text: NDArray[np.float32],
    image: NDArray[np.float32] | None = None,
    only: NDArray[np.int64] | None = None,
) -> Queries:
    """Queries by their vectors; `only` limits them to some rows."""
    text = np.atleast_2d(text)
    picture = None if image is None else np.atleast_2d(image)
    items = [Item(ItemId(f"q{n}"), "q", (), "query") for n in range(len(text))]
    limits = () if only is None else [only] * len(items)
    return Queries(items, Vectors(picture, text, np.zeros_like(text)), (), limits)


def corpus_of(**blocks: NDArray[np.float32]) -> Corpus:
    return Corpus.of(blocks, lambda rows: {}, AnswerRules("exact"))


def test_a_similarity_is_the_exact_sum_of_the_rounded_products_in_every_batch() -> None:
    left, right = cloud(37, 0, 300), cloud(53, 1, 300)
    found = cosine(left, right)
    exact = Fraction(0)
    for a, b in zip(left[0], right[5], strict=True):
        a_grid, b_grid = (int(np.rint(np.float64(x) * GRID)) for x in (a, b))
        exact += Fraction(a_grid * b_grid)
    assert Fraction(float(found[0, 5])) == exact / Fraction(GRID) ** 2
    assert np.abs(found - left.astype(np.float64) @ right.T).max() < 1e-6
    for row in range(37):
        assert np.array_equal(cosine(left[row : row + 1], right)[0], found[row])
    shuffled = np.random.default_rng(2).permutation(300)
    assert np.array_equal(cosine(left[:, shuffled], right[:, shuffled]), found)


VALUES = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0])


@given(arrays(np.float64, (3, 17), elements=VALUES), st.integers(0, 17))
@settings(max_examples=40, deadline=None)
def test_the_top_is_a_stable_sort_even_when_almost_everything_ties(
    values: NDArray[np.float64], count: int
) -> None:
    expected = np.argsort(-values, axis=1, kind="stable")[:, :count]
    assert np.array_equal(top(values, count), expected)


def test_marginal_relevance_by_hand() -> None:
    near = np.array([0.9, 0.85, 0.5, 0.1])
    like = np.array(
        [[1, 0.99, 0.2, 0], [0.99, 1, 0.3, 0], [0.2, 0.3, 1, 0], [0, 0, 0, 1.0]]
    )
    # After 0: 1 has 0.5*0.85 - 0.5*0.99 = -0.07, 2 has 0.25 - 0.1 = 0.15, 3 has 0.05. After 2: 3 has 0.05, 1 has -0.07.
    assert mmr_order(near, like, 4, 0.5).tolist() == [0, 2, 3, 1]
    assert mmr_order(near, like, 2, 1.0).tolist() == [0, 1]
    assert mmr_order(near[:0], like[:0, :0], 3).tolist() == []


@pytest.mark.parametrize("kind", ["numpy", "faiss"])
def test_the_nearest_are_found_with_a_filter_and_deletions(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "faiss":
        pytest.importorskip("faiss")
        monkeypatch.setattr(indexes, "FLAT_ABOVE", 100)
    vectors, queries = np.split(cloud(12_040, 1), [12_000])
    extra = cloud(200, 2)
    rows = corpus_of(text=vectors).grown({"text": extra}, np.ones(200, np.bool_))
    rows = rows.closed([5, 17, 12_100])
    every = np.concatenate([vectors, extra])
    allowed = np.flatnonzero(np.random.default_rng(3).random(12_200) < 0.01)
    for only in (None, allowed):
        for query, found in zip(
            queries, rows.nearest(asked(queries, only=only), 1.0, 10), strict=True
        ):
            mask = rows.alive.copy()
            if only is not None:
                mask &= np.isin(np.arange(12_200), only)
            near = np.where(mask, every.astype(np.float64) @ query, -np.inf)
            assert found.rows.tolist() == np.argsort(-near, kind="stable")[:10].tolist()
            assert np.allclose(found.score, near[found.rows], atol=1e-6)
            alone = rows.nearest(asked(query, only=only), 1.0, 10)[0]
            assert alone.rows.tolist() == found.rows.tolist()
    assert (rows._of_file[1.0].flat is None) == (kind == "numpy")


def test_both_fields_are_weighted_and_equal_ones_come_in_order() -> None:
    text, image = cloud(500, 6), cloud(500, 7)
    text[7], image[7] = text[3], image[3]
    rows = corpus_of(text=text, image=image)
    query = asked(text[3], image[3])
    found = rows.nearest(query, 0.3, 5)[0]
    near = 0.3 * text @ text[3] + 0.7 * image @ image[3]
    assert found.rows[:2].tolist() == [3, 7]
    assert np.allclose(found.score, np.sort(near)[::-1][:5], atol=1e-6)
    every = rows.similarity(query, np.arange(500), 0.3)[0]
    assert np.array_equal(every[found.rows], found.score)
    like = rows.likeness(np.array([3, 9]), 0.3)
    assert like[0, 1] == every[9]
    with pytest.raises(LeverError, match="sees pictures, and the query has none"):
        rows.nearest(asked(text[0]), 0.3, 2)


def test_older_rows_see_what_they_saw(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", cloud(50, 8))
    first = corpus_of(text=np.load(tmp_path / "v.npy", mmap_mode="r"))
    second = first.grown({"text": cloud(1, 9)}, np.ones(1, np.bool_))
    third = second.grown({"text": cloud(300, 10)}, np.ones(300, np.bool_)).closed([50])
    assert (len(first), len(second), len(third), third.count) == (50, 51, 351, 350)
    query = asked(cloud(1, 9))
    assert second.nearest(query, 1.0, 1)[0].rows.tolist() == [50]
    assert 50 not in third.nearest(query, 1.0, 350)[0].rows
    assert 50 not in first.nearest(query, 1.0, 60)[0].rows
    for own in (first, second, third):
        near = own.near(query, "text", np.arange(len(own)))
        some = own.near(query, "text", np.arange(1, len(own)))
        assert np.array_equal(near[:, 1:], some)
        turned = own.near(query, "text", np.arange(len(own))[::-1])
        assert np.array_equal(near[:, ::-1], turned)


def test_of_many_equal_ones_the_first_are_found() -> None:
    """However an index orders them: twins are told apart by their rows, in a batch and alone."""
    vectors = np.repeat(cloud(20, 11), 100, axis=0)
    rows = corpus_of(text=vectors)
    for found, start in zip(
        rows.nearest(asked(vectors[[950, 150]]), 1.0, 30), (900, 100), strict=True
    ):
        assert found.rows.tolist() == list(range(start, start + 30))
