"""An optional approximate index for very large demonstration sets, built with faiss where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.embedders.base import Vectors
from leverplus.pools.similarity import Positions, missing_vectors, rows
from leverplus.recipe.pools import PoolSection

PROBES = 256  # cells that a query looks into
ITEMS_AT_ONCE = 65536  # items added to the index at a time, so that all are never in memory twice
TRAINING_POINTS = 64  # items per cell that k-means sees; faiss warns below 39


def corpus_share(section: PoolSection, items: Vectors) -> float:
    """The share of the question in the similarity of kind corpus: all of it where items have no pictures."""
    return 1.0 if items.image is None else section.text_weight


def open_pool_index(section: PoolSection, items: Vectors) -> InvertedFile | None:
    """The index a section asks for: kind corpus, more items than `ann_above`, faiss installed; else None (exact)."""
    if section.kind != "corpus" or len(items) <= section.ann_above or find_spec("faiss") is None:
        return None
    return InvertedFile(items, corpus_share(section, items))


class InvertedFile:
    """Items in sqrt(N) cells, half precision; a query looks into the 256 nearest cells.

    The vectors of question and picture are put side by side, scaled by the roots of their weights, so that one inner
    product is the weighted sum of both similarities. Cells come from a seeded k-means and queries are searched one at a
    time, so that the result of a query does not depend on other queries.
    """

    def __init__(self, items: Vectors, text_weight: float) -> None:
        import faiss

        self._text_weight = text_weight
        cells = max(1, min(int(len(items) ** 0.5), len(items) // TRAINING_POINTS))
        shuffled = np.random.default_rng(0).permutation(len(items))
        sample = np.sort(shuffled[: cells * TRAINING_POINTS])
        points = self._join(rows(items, sample))  # (cells * TRAINING_POINTS, D)
        self._coarse = faiss.IndexFlatIP(points.shape[1])
        self._index: Any = faiss.IndexIVFScalarQuantizer(
            self._coarse, points.shape[1], cells, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        self._index.train(points)
        self._index.nprobe = min(PROBES, cells)
        for start in range(0, len(items), ITEMS_AT_ONCE):
            part = rows(items, slice(start, start + ITEMS_AT_ONCE))
            self._index.add(self._join(part))

    def propose(self, query: Vectors, forbidden: Positions, count: int) -> Positions:
        """Up to 2 * count allowed positions that are likely the nearest to one query (1, D), in no order."""
        # twice as many as needed: half precision may order them wrongly, the caller orders them again exactly
        _, found = self._index.search(self._join(query), 2 * count + len(forbidden))
        positions: Positions = found[0][found[0] >= 0].astype(np.int64)  # -1 fills up where the cells held fewer
        return positions[~np.isin(positions, forbidden)]

    def _join(self, vectors: Vectors) -> NDArray[np.float32]:
        """One vector per item (N, D) whose inner product with another is the weighted sum of both similarities."""
        text_weight, image_weight = self._text_weight, 1.0 - self._text_weight
        scaled = []
        if text_weight > 0.0:
            scaled.append(np.float32(text_weight**0.5) * vectors.text)
        if image_weight > 0.0:
            if vectors.image is None:
                raise missing_vectors("pictures", image_weight)
            scaled.append(np.float32(image_weight**0.5) * vectors.image)
        return np.ascontiguousarray(np.concatenate(scaled, axis=1))
