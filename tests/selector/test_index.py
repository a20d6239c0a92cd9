"""Searching many vectors: exact where it says so, with filters and deletions, and cells whose recall was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from leverplus.embedders.base import Vectors
from leverplus.errors import LeverError
from leverplus.selector import index as indexes
from leverplus.selector.corpus import CorpusRows
from leverplus.selector.index import CellIndex, FlatIndex, WholeIndex, learn_cells

WIDTH = 24


def cloud(count: int, seed: int, centres: int = 50) -> NDArray[np.float32]:
    """Unit vectors in clusters, as those of real texts are."""
    rng = np.random.default_rng(seed)
    middle = rng.standard_normal((centres, WIDTH))
    points = middle[rng.integers(centres, size=count)] + 0.5 * rng.standard_normal((count, WIDTH))
    unit: NDArray[np.float32] = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    return unit


def asked(vector: NDArray[np.float32]) -> Vectors:
    return Vectors(None, vector[None], np.zeros((1, WIDTH), np.float32))


def brute(
    vectors: NDArray[np.float32], query: NDArray[np.float32], open_rows: NDArray[np.bool_], count: int
) -> list[int]:
    near = vectors.astype(np.float64) @ query.astype(np.float64)
    near[~open_rows] = -np.inf
    return [int(row) for row in np.argsort(-near, kind="stable")[: min(count, int(open_rows.sum()))]]


@pytest.mark.parametrize("kind", ["numpy", "flat", "cells"])
def test_the_nearest_are_found_with_a_filter_and_deletions(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind != "numpy":
        pytest.importorskip("faiss")
        monkeypatch.setattr(indexes, "FLAT_ABOVE", 100)
    vectors, queries = np.split(cloud(12_040, 1), [12_000])
    cells = learn_cells(vectors) if kind == "cells" else None
    rows = CorpusRows.of({"text": vectors}, 1.0, cells=cells)
    assert isinstance(rows.index, {"numpy": WholeIndex, "flat": FlatIndex, "cells": CellIndex}[kind])
    extra = cloud(200, 2)
    rows = rows.grown({"text": extra}, np.ones(200, np.bool_)).closed([5, 17, 12_100])
    every = np.concatenate([vectors, extra])
    rng = np.random.default_rng(3)
    hits = total = 0
    for query in queries:
        found = rows.nearest(asked(query), 10)[0].tolist()
        truth = brute(every, query, rows.alive, 10)
        hits, total = hits + len(set(found) & set(truth)), total + len(truth)
        assert not {5, 17, 12_100} & set(found)
        allowed = rng.random(12_200) < 0.01
        near, value = rows.nearest(asked(query), 10, allowed)
        assert near.tolist() == brute(every, query, rows.alive & allowed, 10), "a filter is exact"
        assert np.allclose(value, every[near] @ query, atol=1e-6)
    assert hits == total if kind != "cells" else hits >= 0.95 * total


def test_cells_are_given_up_where_they_miss_too_much() -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    points = rng.standard_normal((4000, 64))
    assert learn_cells((points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)) is None
    table = learn_cells(cloud(12_000, 5))
    assert table is not None
    assert table.recall >= 0.99
    assert table.opened < len(table.centres)


def test_both_fields_are_weighted_and_equal_ones_come_in_order() -> None:
    text, image = cloud(500, 6), cloud(500, 7)
    text[7], image[7] = text[3], image[3]
    rows = CorpusRows.of({"text": text, "image": image}, 0.3)
    query = Vectors(image[3][None], text[3][None], np.zeros((1, WIDTH), np.float32))
    found, value = rows.nearest(query, 5)
    near = 0.3 * text @ text[3] + 0.7 * image @ image[3]
    assert found[:2].tolist() == [3, 7]
    assert np.allclose(value, np.sort(near)[::-1][:5], atol=1e-6)
    with pytest.raises(LeverError, match="sees pictures, and the query has none"):
        rows.nearest(asked(text[0]), 2)


def test_older_rows_see_what_they_saw(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", cloud(50, 8))
    first = CorpusRows.of({"text": np.load(tmp_path / "v.npy", mmap_mode="r")}, 1.0)
    second = first.grown({"text": cloud(1, 9)}, np.ones(1, np.bool_))
    third = second.grown({"text": cloud(300, 10)}, np.ones(300, np.bool_)).closed([50])
    assert (len(first), len(second), len(third), third.count) == (50, 51, 351, 350)
    query = asked(cloud(1, 9)[0])
    assert second.nearest(query, 1)[0].tolist() == [50]
    assert 50 not in third.nearest(query, 350)[0]
    assert 50 not in first.nearest(query, 60)[0]
