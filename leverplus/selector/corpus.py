"""All demonstrations that a selector serves from, as vectors: what one choice sees of them, and the nearest to a query.

A choice works on a `CorpusRows`, which never changes: whoever adds or deletes makes the next one and puts it in its
place, so that threads need no lock while they choose. Rows keep their numbers for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.embedders.base import Array, Vectors
from leverplus.errors import LeverError
from leverplus.pools.similarity import Floats, Positions, cosine, top
from leverplus.selector.index import CellIndex, CellTable, Index, Mask, best_rows, open_index

FIELDS = ("text", "answer", "image")
MARGIN = 16
"""An index proposes twice as many as are wanted and so many more; exact similarities then order them."""

EXACT_AT_ONCE = 8192


class Block:
    """One field's vectors (M, D): those of the file, and those that came later."""

    def __init__(self, base: NDArray[Any], tail: Array | None = None, held: int = 0) -> None:
        self.base = base
        self.tail = np.empty((0, base.shape[1]), np.float32) if tail is None else tail
        self.held = held

    def __len__(self) -> int:
        return len(self.base) + self.held

    @property
    def width(self) -> int:
        return int(self.base.shape[1])

    @property
    def late(self) -> Array:
        """The vectors that came later, (held, D)."""
        return self.tail[: self.held]

    def take(self, rows: Positions) -> Array:
        """The vectors of some rows, in single precision."""
        if not self.held:
            return np.asarray(self.base[rows], dtype=np.float32)
        early = rows < len(self.base)
        out = np.empty((len(rows), self.width), np.float32)
        out[early] = self.base[rows[early]]
        out[~early] = self.tail[rows[~early] - len(self.base)]
        return out

    def grown(self, more: Array) -> Block:
        """These and more; older blocks share the memory and see what they saw before."""
        held, tail = self.held + len(more), self.tail
        if held > len(tail):
            # twice as long each time, so that adding one by one copies every row a few times at most
            tail = np.empty((max(held, 2 * len(tail), 256), self.width), np.float32)
            tail[: self.held] = self.late
        tail[self.held : held] = more
        return Block(self.base, tail, held)


@dataclass(frozen=True)
class CorpusRows:
    """What one choice sees: vectors by field, which rows are open, numbers by name (NaN where there is none).

    `search` is what the index searches: one field, or both joined by the roots of their weights, so that one inner
    product is text_weight * cosine of the questions + (1 - text_weight) * cosine of the pictures.
    """

    blocks: Mapping[str, Block]
    alive: Mask
    text_weight: float
    search: Block
    index: Index
    numbers: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        blocks: Mapping[str, NDArray[Any]],
        text_weight: float,
        *,
        cells: CellTable | None = None,
        numbers: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> CorpusRows:
        weight = 1.0 if "image" not in blocks else text_weight
        joined = index_vectors(blocks, weight)
        alive = np.ones(len(blocks["text"]), np.bool_)
        own = {name: Block(block) for name, block in blocks.items()}
        return cls(own, alive, weight, Block(joined), open_index(joined, cells), dict(numbers or {}))

    def __len__(self) -> int:
        return len(self.alive)

    @property
    def count(self) -> int:
        """How many demonstrations are there."""
        return int(self.alive.sum())

    def grown(self, more: Mapping[str, Array], open_rows: Mask) -> CorpusRows:
        """These rows and more."""
        blocks = {name: block.grown(more[name]) for name, block in self.blocks.items()}
        extra = np.full(len(open_rows), np.nan)
        return replace(
            self,
            blocks=blocks,
            search=self.search.grown(index_vectors(more, self.text_weight)),
            alive=np.concatenate([self.alive, open_rows]),
            numbers={name: np.concatenate([values, extra]) for name, values in self.numbers.items()},
        )

    def closed(self, rows: Sequence[int]) -> CorpusRows:
        """The same without some rows."""
        alive = self.alive.copy()
        alive[list(rows)] = False
        return replace(self, alive=alive)

    def similarity(self, query: Vectors, rows: Positions) -> Floats:
        """How near some rows are to one query, exact, (K,)."""
        near = np.zeros(len(rows))
        if self.text_weight > 0.0:
            near += self.text_weight * cosine(query.text, self.blocks["text"].take(rows))[0]
        if self.text_weight < 1.0:
            near += (1.0 - self.text_weight) * cosine(picture_vector(query), self.blocks["image"].take(rows))[0]
        return near

    def nearest(self, query: Vectors, count: int, allowed: Mask | None = None) -> tuple[Positions, Floats]:
        """The open rows that are nearest to one query, best first, and their similarities.

        Equal ones come in the order of their rows. With `allowed` (M,) the search is exact over what it leaves.
        """
        open_rows = self.alive if allowed is None else self.alive & allowed
        left = int(open_rows.sum())
        count = min(count, left)
        if count <= 0:
            return np.empty(0, np.int64), np.empty(0)
        wanted = join_query(query, self.text_weight)
        base = len(self.search.base)
        mask = None if left == len(self) else open_rows
        ask = min(2 * count + MARGIN, left)  # more than wanted: half precision may confuse neighbours
        if allowed is not None and isinstance(self.index, CellIndex):
            found = self._every(wanted, open_rows[:base], ask)
        else:
            found = self.index.propose(wanted, None if mask is None else mask[:base], ask)
        if self.search.held:
            late = best_rows(self.search.late @ wanted, open_rows[base:], ask)
            found = np.concatenate([found, late + base])
        if len(found) < count:  # cells that hold too few open ones
            found = np.concatenate([found, self._every(wanted, open_rows[:base], ask)])
        found = np.unique(found)
        near = self.similarity(query, found)
        best = top(near[None], count)[0]
        return found[best], near[best]

    def _every(self, wanted: Array, open_rows: Mask, count: int) -> Positions:
        """Open rows of the file searched one by one, a part of the file at a time."""
        rows = np.flatnonzero(open_rows)
        near = np.empty(len(rows), np.float32)
        for start in range(0, len(rows), EXACT_AT_ONCE):
            part = rows[start : start + EXACT_AT_ONCE]
            near[start : start + len(part)] = np.asarray(self.search.base[part], np.float32) @ wanted
        return rows[best_rows(near, None, count)]

    def open_rows(self) -> Positions:
        return np.flatnonzero(self.alive)


def index_vectors(blocks: Mapping[str, NDArray[Any]], text_weight: float) -> NDArray[Any]:
    """What an index searches (N, D)."""
    if text_weight == 1.0:
        return blocks["text"]
    if text_weight == 0.0:
        return blocks["image"]
    text = np.float32(text_weight**0.5) * np.asarray(blocks["text"], np.float32)
    image = np.float32((1.0 - text_weight) ** 0.5) * np.asarray(blocks["image"], np.float32)
    return np.concatenate([text, image], axis=1)


def join_query(query: Vectors, text_weight: float) -> Array:
    """One query as the index takes it, (D,)."""
    blocks: dict[str, NDArray[Any]] = {"text": query.text}
    if text_weight < 1.0:
        blocks["image"] = picture_vector(query)
    joined: Array = np.ascontiguousarray(index_vectors(blocks, text_weight)[0], dtype=np.float32)
    return joined


def picture_vector(query: Vectors) -> Array:
    if query.image is None:
        raise LeverError("this selector sees pictures, and the query has none; pass an image")
    return query.image
