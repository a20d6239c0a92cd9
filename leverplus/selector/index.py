"""Finds the nearest of many vectors: numpy below 20,000, faiss in half precision up to a million, cells above.

An index proposes; `Corpus.nearest` orders what it proposes by exact similarities. The flat ones look at every vector,
so they miss nothing but what half precision confuses. Cells look into a part of them: how many cells a query opens is
chosen on the bundle's own vectors when the index is built, and the recall measured there is written down.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

RowNumbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float32]

FLAT_ABOVE = 20_000
"""More vectors than this are searched by faiss where it is installed."""

CELLS_ABOVE = 1_000_000
"""More vectors than this are searched by cells."""

AT_ONCE = 65_536
"""Vectors that are read from the file together."""

RECALL = 0.99
"""What cells must find of the true neighbours of the bundle's own vectors; else all vectors are searched."""

TRIED = 256
"""Vectors on which this is measured."""

NEIGHBOURS = 64


class Index(Protocol):
    """`propose` gives about `count` open rows that are nearest to one query (D,), in no order."""

    name: str

    def propose(self, query: Floats, open_rows: Mask | None, count: int) -> RowNumbers: ...


class WholeIndex:
    """All vectors in memory, one product a query: exact, with a filter too."""

    name = "numpy"

    def __init__(self, vectors: NDArray[Any]) -> None:
        self.vectors: Floats = np.ascontiguousarray(vectors, dtype=np.float32)

    def propose(self, query: Floats, open_rows: Mask | None, count: int) -> RowNumbers:
        return best_rows(self.vectors @ query, open_rows, count)


class FlatIndex:
    """All vectors in half precision, by faiss: exact but for what 11 bits cannot tell apart."""

    name = "faiss flat fp16"

    def __init__(self, vectors: NDArray[Any]) -> None:
        import faiss

        self._faiss: Any = faiss
        self._index = faiss.IndexScalarQuantizer(
            vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        self._index.train(np.ascontiguousarray(vectors[:1], dtype=np.float32))  # halves need no training; faiss asks
        for part in parts_of(vectors):
            self._index.add(part)

    def propose(self, query: Floats, open_rows: Mask | None, count: int) -> RowNumbers:
        options = None
        if open_rows is not None:
            options = self._faiss.SearchParameters(sel=selector_of(self._faiss, open_rows))
        count = min(count, self._index.ntotal)
        return found_rows(self._index.search(np.ascontiguousarray(query[None], np.float32), count, params=options))


@dataclass(frozen=True)
class CellTable:
    """What was learnt about the vectors: centres (C, D), the cell of every vector (N,), how many cells to open."""

    centres: Floats
    assigned: NDArray[np.int32]
    opened: int
    recall: float


class CellIndex:
    """Vectors in about sqrt(N) cells, half precision; a query looks into the nearest few. A filter goes another way."""

    name = "faiss cells fp16"

    def __init__(self, vectors: NDArray[Any], table: CellTable) -> None:
        import faiss

        self._faiss: Any = faiss
        width = vectors.shape[1]
        self._coarse = faiss.IndexFlatIP(width)
        self._coarse.add(np.ascontiguousarray(table.centres))
        self._index = faiss.IndexIVFScalarQuantizer(
            self._coarse, width, len(table.centres), faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        self._index.by_residual = False  # vectors as they are, not their differences from the centre
        self._index.is_trained = True  # the centres were learnt elsewhere
        self._index.nprobe = table.opened
        start = 0
        for part in parts_of(vectors):
            rows = np.arange(start, start + len(part), dtype=np.int64)
            cells = table.assigned[start : start + len(part)].astype(np.int64)
            pointers = (faiss.swig_ptr(array) for array in (part, rows, cells))
            self._index.add_core(len(part), *pointers)  # the cells are known: nothing is searched for
            start += len(part)

    def propose(self, query: Floats, open_rows: Mask | None, count: int) -> RowNumbers:
        options = self._faiss.SearchParametersIVF(nprobe=self._index.nprobe)
        if open_rows is not None:
            options.sel = selector_of(self._faiss, open_rows)
        return found_rows(self._index.search(np.ascontiguousarray(query[None], np.float32), count, params=options))


def open_index(vectors: NDArray[Any], table: CellTable | None) -> Index:
    """The index that suits so many vectors and what is installed."""
    if len(vectors) <= FLAT_ABOVE or find_spec("faiss") is None:
        return WholeIndex(vectors)
    return FlatIndex(vectors) if table is None else CellIndex(vectors, table)


def learn_cells(vectors: NDArray[Any], *, seed: int = 0) -> CellTable | None:
    """Cells of these vectors; None where faiss is missing, or where no share of the cells finds enough."""
    if find_spec("faiss") is None:
        return None
    import faiss

    rng = np.random.default_rng(seed)
    # sqrt(N) cells balance comparing centres with reading cells; k-means wants tens of vectors for each
    count = max(1, min(int(len(vectors) ** 0.5), len(vectors) // 64))
    sample = np.sort(rng.permutation(len(vectors))[: 64 * count])
    kmeans = faiss.Kmeans(vectors.shape[1], count, niter=10, seed=seed + 1, spherical=True, max_points_per_centroid=64)
    kmeans.train(np.ascontiguousarray(vectors[sample], dtype=np.float32))
    centres: Floats = np.asarray(kmeans.centroids, np.float32)
    coarse = faiss.IndexFlatIP(vectors.shape[1])
    coarse.add(centres)
    assigned = np.concatenate([coarse.search(part, 1)[1][:, 0] for part in parts_of(vectors)]).astype(np.int32)
    opened, recall = _opened(vectors, CellTable(centres, assigned, 1, 0.0), rng)
    return None if recall < RECALL else CellTable(centres, assigned, opened, recall)


def _opened(vectors: NDArray[Any], table: CellTable, rng: np.random.Generator) -> tuple[int, float]:
    """How many cells must be opened to find enough, and what share of the true neighbours that found."""
    cells, flat = CellIndex(vectors, table), FlatIndex(vectors)
    tried = np.sort(rng.permutation(len(vectors))[:TRIED])
    queries = np.ascontiguousarray(vectors[tried], dtype=np.float32)
    truth = [
        set(flat.propose(query, None, NEIGHBOURS + 1).tolist()) - {int(row)}
        for row, query in zip(tried, queries, strict=True)
    ]
    opened, recall, most = 1, 0.0, max(1, len(table.centres) // 4)  # beyond that a flat search is as quick
    while True:
        cells._index.nprobe = opened
        found = [set(cells.propose(query, None, NEIGHBOURS + 1).tolist()) for query in queries]
        recall = float(np.mean([len(own & true) / max(1, len(true)) for own, true in zip(found, truth, strict=True)]))
        if recall >= RECALL or opened >= most:
            return opened, recall
        opened = min(2 * opened, most)


def parts_of(vectors: NDArray[Any]) -> Any:
    """The vectors a part at a time, as faiss takes them."""
    for start in range(0, len(vectors), AT_ONCE):
        yield np.ascontiguousarray(vectors[start : start + AT_ONCE], dtype=np.float32)


def selector_of(faiss: Any, open_rows: Mask) -> Any:
    """Lets faiss look at open rows only."""
    bits = np.packbits(open_rows, bitorder="little")
    chosen = faiss.IDSelectorBitmap(bits)
    chosen.kept_alive = bits  # faiss holds a pointer, not the array
    return chosen


def found_rows(answer: tuple[Any, Any]) -> RowNumbers:
    rows: RowNumbers = answer[1][0]
    return rows[rows >= 0].astype(np.int64)


def best_rows(near: Floats, open_rows: Mask | None, count: int) -> RowNumbers:
    """The rows of the `count` largest values, in no order; closed ones never."""
    if open_rows is not None:
        rows = np.flatnonzero(open_rows)
        return rows[best_rows(near[rows], None, count)]
    if count >= len(near):
        return np.arange(len(near), dtype=np.int64)
    return np.argpartition(-near, count - 1)[:count].astype(np.int64)
