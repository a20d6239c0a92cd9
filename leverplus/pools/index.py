"""The optional approximate index of very large demonstration sets, through faiss where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.embedders.base import Vectors
from leverplus.pools.similarity import Positions, missing_vectors, rows
from leverplus.recipe.pools import PoolSection

PROBES = 256
ITEMS_AT_ONCE = 65536
TRAINING_POINTS = 64


def open_index(section: PoolSection, items: Vectors) -> InvertedFile | None:
    """The index a section asks for: kind corpus, more items than `ann_above`, faiss installed; else None (exact)."""
    if section.kind != "corpus" or len(items) <= section.ann_above or find_spec("faiss") is None:
        return None
    return InvertedFile(items, section.text_weight)


class InvertedFile:
    """Items in sqrt(N) cells, half precision; a query looks into the 256 nearest cells.

    Questions and pictures are joined, scaled by the roots of their weights, so that one inner product is the weighted
    sum of both similarities. Cells come from a seeded k-means and queries are asked one at a time: the same query gets
    the same answer in any company.
    """

    def __init__(self, items: Vectors, text_weight: float) -> None:
        import faiss

        self._text_weight = text_weight
        cells = max(1, min(int(len(items) ** 0.5), len(items) // TRAINING_POINTS))
        sample = np.sort(np.random.default_rng(0).permutation(len(items))[: cells * TRAINING_POINTS])
        points = self._join(rows(items, sample))
        self._coarse = faiss.IndexFlatIP(points.shape[1])
        self._index: Any = faiss.IndexIVFScalarQuantizer(
            self._coarse, points.shape[1], cells, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        self._index.train(points)
        self._index.nprobe = min(PROBES, cells)
        for start in range(0, len(items), ITEMS_AT_ONCE):
            self._index.add(self._join(rows(items, slice(start, start + ITEMS_AT_ONCE))))

    def propose(self, query: Vectors, forbidden: Positions, count: int) -> Positions:
        """Up to 2 * count allowed positions that are likely the nearest to one query (1, D), in no order."""
        _, found = self._index.search(self._join(query), 2 * count + len(forbidden))
        positions: Positions = found[0][found[0] >= 0].astype(np.int64)
        return positions[~np.isin(positions, forbidden)]

    def _join(self, vectors: Vectors) -> NDArray[np.float32]:
        parts = [(self._text_weight, vectors.text), (1.0 - self._text_weight, vectors.image)]
        if parts[1][0] > 0.0 and parts[1][1] is None:
            raise missing_vectors("pictures", parts[1][0])
        scaled = [np.float32(weight**0.5) * part for weight, part in parts if weight > 0.0 and part is not None]
        return np.ascontiguousarray(np.concatenate(scaled, axis=1))
