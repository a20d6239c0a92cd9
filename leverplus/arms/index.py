"""Proposes the nearest of many vectors: numpy up to 20,000, above that faiss in half precision where it is installed.

An index proposes; `Corpus.nearest` orders what it proposes by exact similarities. Every vector is looked at, so nothing
is missed but what half precision confuses, and as many more are proposed as it may confuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.arms.similarity import Mask

Singles = NDArray[np.float32]
Proposed = tuple[NDArray[np.int64], Singles]

SINGLE = 1e-5
HALF = 4e-3
"""How far a similarity in single or half precision may be from the exact one."""

FLAT_ABOVE = 20_000
"""More vectors than this are searched by faiss where it is installed."""

AT_ONCE = 65_536
"""Vectors that are read from the file together."""

MARGIN = 16
"""faiss is asked for twice as many as are wanted and so many more."""


class Index:
    """Proposes rows for queries (B, D), in no order, with their similarities.

    The `count` nearest of the open rows are among them, and all that cannot be told apart from the last of these at
    this `precision`.
    """

    def __init__(self, vectors: NDArray[Any]) -> None:
        self.flat: Any = None
        self.precision = SINGLE
        if len(vectors) <= FLAT_ABOVE or find_spec("faiss") is None:
            self.vectors: Singles = np.ascontiguousarray(vectors, dtype=np.float32)
            return
        import faiss

        self.faiss: Any = faiss
        width = vectors.shape[1]
        metric = faiss.METRIC_INNER_PRODUCT
        self.flat = faiss.index_factory(width, "SQfp16", metric)
        self.precision = HALF
        for start in range(0, len(vectors), AT_ONCE):
            part = np.ascontiguousarray(vectors[start : start + AT_ONCE], np.float32)
            if not start:
                self.flat.train(part[:1])  # halves need no training; faiss asks
            self.flat.add(part)

    def propose(
        self, queries: Singles, masks: Sequence[Mask], count: int
    ) -> list[Proposed]:
        """Rows for each query among those that its mask (N,) leaves open."""
        found = []
        if self.flat is None:
            for near, mask in zip(queries @ self.vectors.T, masks, strict=True):
                rows = np.flatnonzero(mask)
                found.append((rows, near[rows]))
            return found
        for query, mask in zip(queries, masks, strict=True):
            found.append(self._searched(query[None], mask, count))
        return found

    def _searched(self, query: Singles, mask: Mask, count: int) -> Proposed:
        options = None
        if not mask.all():
            bits = np.packbits(mask, bitorder="little")
            selector = self.faiss.IDSelectorBitmap(bits)
            selector.kept_alive = bits  # faiss holds a pointer, not the array
            options = self.faiss.SearchParameters(sel=selector)
        wanted = 2 * count + MARGIN
        while True:
            wanted = min(wanted, self.flat.ntotal)
            near, rows = self.flat.search(query, wanted, params=options)
            held = rows[0] >= 0
            rows = rows[0][held]
            near = near[0][held]
            whole = len(rows) < wanted or wanted == self.flat.ntotal
            if whole or near[-1] < near[count - 1] - self.precision:
                return rows, near
            wanted *= 4  # more than expected are equally near
