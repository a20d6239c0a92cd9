"""What a choice works on: the queries, the corpus of all examples that may be chosen, and what each query may be shown.

Evaluation, training and use make both the same way, so that the lists are the same. A `Corpus` never changes: whoever
adds or deletes makes the next one and puts it in its place, so that threads need no lock while they choose. Rows keep
their numbers for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from leverplus.arms.index import FLAT_ABOVE, Index
from leverplus.arms.similarity import (
    GRID,
    Floats,
    Mask,
    Positions,
    cosine,
    rows,
    snap,
    top,
)
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item
from leverplus.encode.base import Array, Vectors
from leverplus.errors import DataError, LeverError

if TYPE_CHECKING:
    from PIL import Image

Made = TypeVar("Made")
ItemsOf = Callable[[Sequence[int]], Mapping[int, Item]]
"""The examples of some rows; deleted ones are missing."""

FIELDS = ("text", "answer", "image")
COMPARED_AT_ONCE = 1 << 23
"""Similarities that are in memory together."""


@dataclass(frozen=True)
class Queries:
    """B queries.

    `items` hold their words; in use they have no answers and an id of their own. `vectors` are (B, D) by field, of
    width 0 where no arm compares them. `closed` are rows that a query is never shown (itself, other questions on its
    picture), `only` the rows it is limited to (None: no limit). `digest_of` names a query by its words and pixels.
    """

    items: Sequence[Item]
    vectors: Vectors
    closed: Sequence[Positions | None] = ()
    only: Sequence[Positions | None] = ()
    digest_of: Callable[[Item], str] = field(default=lambda item: item.question)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, part: slice) -> Queries:
        return self.take(range(len(self))[part])

    def take(self, places: Sequence[int]) -> Queries:
        """Some of the queries, in this order."""
        return Queries(
            [self.items[place] for place in places],
            rows(self.vectors, list(places)),
            [self.closed[place] for place in places] if self.closed else (),
            [self.only[place] for place in places] if self.only else (),
            self.digest_of,
        )

    @cached_property
    def digests(self) -> list[str]:
        """Names each query by its words and pixels: the same query has the same digest everywhere."""
        return [self.digest_of(item) for item in self.items]

    @property
    def words(self) -> list[str]:
        """The question of each query; several named inputs stand in it one after the other."""
        return [item.question for item in self.items]

    def open_mask(self, place: int, corpus: Corpus) -> Mask:
        """Which rows of the corpus a query may be shown, (N,)."""
        closed = self.closed[place] if self.closed else None
        only = self.only[place] if self.only else None
        if closed is None and only is None:
            return corpus.alive
        mask = corpus.alive.copy()
        if only is not None:
            mask[:] = False
            mask[only] = corpus.alive[only]
        if closed is not None:
            mask[closed] = False
        return mask


def words_digest(words: str, picture: Image.Image | None) -> str:
    """Names a query by its words, white space apart, and its pixels."""
    content = hashlib.sha256(" ".join(words.split()).encode())
    if picture is not None:
        content.update(repr(picture.size).encode() + picture.tobytes())
    return content.hexdigest()


class Ranked(NamedTuple):
    """Rows for one query, best first, by what score, and the parts of the score by name, (K,) each."""

    rows: Positions
    score: Floats
    terms: Mapping[str, Floats] = {}


class Block:
    """One field's vectors (M, D): those of the file, and those that came later."""

    def __init__(
        self, base: NDArray[Any], tail: Array | None = None, held: int = 0
    ) -> None:
        self.base, self.held, self.width = base, held, int(base.shape[1])
        self.tail = np.empty((0, self.width), np.float32) if tail is None else tail

    def __len__(self) -> int:
        return len(self.base) + self.held

    @property
    def late(self) -> Array:
        """The vectors that came later, (held, D)."""
        return self.tail[: self.held]

    def take(self, rows: Positions) -> Array:
        """The vectors of some rows, in single precision."""
        early = rows < len(self.base)
        if early.all():
            return np.asarray(self.base[rows], dtype=np.float32)
        out = np.empty((len(rows), self.width), np.float32)
        out[early] = self.base[rows[early]]
        out[~early] = self.tail[rows[~early] - len(self.base)]
        return out

    def grown(self, more: Array) -> Block:
        """These and more; older blocks share the memory and see what they saw before."""
        held = self.held + len(more)
        tail = self.tail
        if held > len(tail):
            # twice as long each time, so that adding one by one copies every row a few times at most
            room = max(held, 2 * len(tail), 256)
            tail = np.empty((room, self.width), np.float32)
            tail[: self.held] = self.late
        tail[self.held : held] = more
        return Block(self.base, tail, held)


@dataclass(frozen=True)
class Corpus:
    """All examples by row: vectors by field, which rows are there, and their words."""

    blocks: Mapping[str, Block]
    alive: Mask
    items_of: ItemsOf
    rules: AnswerRules
    _of_file: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """What was computed of the first rows, which all that grows out of this corpus shares."""
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    _lock: Any = field(default_factory=RLock, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        blocks: Mapping[str, NDArray[Any]],
        items_of: ItemsOf,
        rules: AnswerRules,
    ) -> Corpus:
        own = {name: Block(block) for name, block in blocks.items()}
        alive = np.ones(len(blocks["text"]), np.bool_)
        return cls(own, alive, items_of, rules)

    @classmethod
    def of_items(
        cls, items: Sequence[Item], vectors: Vectors, rules: AnswerRules
    ) -> Corpus:
        """Labelled examples with their vectors; DataError where these do not fit or are no unit vectors."""
        blocks = {}
        for name in FIELDS:
            block = getattr(vectors, name)
            if block is not None:
                check_vectors(name, block, len(items))
                blocks[name] = block

        def items_of(rows: Sequence[int]) -> dict[int, Item]:
            return {row: items[row] for row in rows}

        return cls.of(blocks, items_of, rules)

    def __len__(self) -> int:
        """How many rows there are, deleted ones included."""
        return len(self.alive)

    @property
    def count(self) -> int:
        """How many examples are there."""
        return int(self.alive.sum())

    @property
    def has_images(self) -> bool:
        return "image" in self.blocks

    @property
    def compared_fields(self) -> tuple[str, ...]:
        """The fields with vectors of queries, too."""
        return tuple(
            name
            for name in ("text", "image")
            if name in self.blocks and self.blocks[name].width
        )

    def open_rows(self) -> Positions:
        """The rows that are there."""
        return np.flatnonzero(self.alive)

    def items(self, rows: Sequence[int] | Positions) -> Mapping[int, Item]:
        """The examples of some rows."""
        return self.items_of([int(row) for row in rows])

    @property
    def every_item(self) -> Mapping[int, Item]:
        """All examples that are there, read once."""
        return self.derive("items", lambda own: own.items(own.open_rows()))

    def derive(self, key: Any, make: Callable[[Corpus], Made]) -> Made:
        """What `make` computes of this corpus, once: an index of words, features of answers."""
        return self._once(self._kept, key, lambda: make(self))

    def _once(self, kept: dict[Any, Any], key: Any, make: Callable[[], Made]) -> Made:
        with self._lock:
            if key not in kept:
                kept[key] = make()
            made: Made = kept[key]
            return made

    def grown(self, more: Mapping[str, Array], open_rows: Mask) -> Corpus:
        """These rows and more."""
        blocks = {}
        for name, block in self.blocks.items():
            blocks[name] = block.grown(more[name])
        alive = np.concatenate([self.alive, open_rows])
        return replace(self, blocks=blocks, alive=alive, _kept={})

    def closed(self, rows: Sequence[int]) -> Corpus:
        """The same without some rows."""
        alive = self.alive.copy()
        alive[list(rows)] = False
        return replace(self, alive=alive, _kept={})

    def weight(self, text_weight: float) -> float:
        """The share of the question that can be used: all of it where there are no pictures."""
        if self.has_images:
            return text_weight
        return 1.0

    def near(self, queries: Queries, name: str, rows: Positions) -> Floats:
        """How near some rows are to all queries by one field, (B, K); the same for one query as for many."""
        block = self._compared(name)
        asked = field_vectors(queries.vectors, name)
        whole = len(self) <= FLAT_ABOVE and np.array_equal(rows, np.arange(len(self)))
        if not whole:
            return cosine(asked, block.take(rows))
        base: Floats = self._once(
            self._of_file, name, lambda: snap(np.asarray(block.base, np.float32))
        )
        snapped = snap(asked)
        products = [snapped @ base.T]
        if block.held:
            products.append(snapped @ snap(block.late).T)
        found: Floats = np.concatenate(products, axis=1) / GRID**2
        return found

    def _compared(self, name: str) -> Block:
        if name not in self.blocks:
            raise LeverError(
                "pictures are compared, and these items have no vectors of pictures; compare questions alone, such as "
                'by pool.kind = "corpus" or "nearest_text"'
            )
        return self.blocks[name]

    def similarity(
        self, queries: Queries, rows: Positions, text_weight: float
    ) -> Floats:
        """text_weight * cosine of the questions + (1 - text_weight) * cosine of the pictures, exact, (B, K)."""
        total = np.zeros((len(queries), len(rows)))
        for name, share in (("text", text_weight), ("image", 1.0 - text_weight)):
            if share > 0.0:
                total += share * self.near(queries, name, rows)
        return total

    def likeness(self, rows: Positions, text_weight: float) -> Floats:
        """How similar some rows are to each other, weighted the same way, (K, K)."""
        total = np.zeros((len(rows), len(rows)))
        for name, share in (("text", text_weight), ("image", 1.0 - text_weight)):
            if share > 0.0:
                block = self._compared(name).take(rows)
                total += share * cosine(block, block)
        return total

    def nearest(self, queries: Queries, text_weight: float, count: int) -> list[Ranked]:
        """For each query the open rows that are nearest to it by `similarity`, best first.

        Equal ones come in the order of their rows. What is closed for a query is never among them, however few remain.
        """
        found = []
        at_once = max(1, COMPARED_AT_ONCE // max(1, len(self)))
        for start in range(0, len(queries), at_once):
            part = queries[start : start + at_once]
            for place, proposed in enumerate(self._proposed(part, text_weight, count)):
                one = part[place : place + 1]
                near = self.similarity(one, proposed, text_weight)
                best = top(near, min(count, len(proposed)))[0]
                found.append(Ranked(proposed[best], near[0][best]))
        return found

    def _proposed(self, queries: Queries, weight: float, count: int) -> list[Positions]:
        """Open rows of each query among which the nearest ones certainly are, ascending."""
        masks = [queries.open_mask(place, self) for place in range(len(queries))]
        if count <= 0:
            return [np.empty(0, np.int64) for _ in masks]
        index: Index = self._once(
            self._of_file, weight, lambda: Index(self._joined(weight, "base"))
        )
        base = len(self.blocks["text"].base)
        asked = join_vectors(queries.vectors, weight)
        late = asked @ self._joined(weight, "late").T
        proposed = index.propose(asked, [mask[:base] for mask in masks], count)
        found = []
        for of_file, added, mask in zip(proposed, late, masks, strict=True):
            more = np.flatnonzero(mask[base:])
            every = np.concatenate([of_file[0], more + base])
            near = np.concatenate([of_file[1], added[more]])
            if len(every) > count:
                rest = len(every) - count
                least = np.partition(near, rest)[rest]
                every = every[near >= least - index.precision]
            found.append(np.sort(every))
        return found

    def _joined(self, weight: float, part: str) -> NDArray[Any]:
        """The vectors of the file ("base") or those that came later ("late"), as an index searches them."""
        self._compared("image" if weight < 1.0 else "text")
        blocks = {}
        for name, block in self.blocks.items():
            blocks[name] = getattr(block, part)
        return join_blocks(blocks["text"], blocks.get("image"), weight)


def join_vectors(vectors: Vectors, text_weight: float) -> Array:
    """Queries as an index takes them, (B, D)."""
    image = None if text_weight == 1.0 else field_vectors(vectors, "image")
    joined = join_blocks(vectors.text, image, text_weight)
    return np.ascontiguousarray(joined, dtype=np.float32)


def join_blocks(
    text: NDArray[Any], image: NDArray[Any] | None, text_weight: float
) -> NDArray[Any]:
    """Vectors whose inner product is the weighted sum of both similarities (N, D)."""
    if text_weight == 1.0 or image is None:
        return text
    if text_weight == 0.0:
        return image
    scaled = [
        np.float32(text_weight**0.5) * np.asarray(text, np.float32),
        np.float32((1.0 - text_weight) ** 0.5) * np.asarray(image, np.float32),
    ]
    return np.concatenate(scaled, axis=1)


def field_vectors(vectors: Vectors, name: str) -> Array:
    """The vectors of one field of queries, (B, D)."""
    if name == "text":
        return vectors.text
    if vectors.image is None:
        raise LeverError(
            "this selector sees pictures, and the query has none; pass an image"
        )
    return vectors.image


def check_vectors(name: str, block: NDArray[Any], count: int) -> None:
    """Refuses vectors that are not one per item, not finite, or longer than 1."""
    if len(block) != count:
        raise DataError(
            f"there are {count} items but {len(block)} {name} vectors; embed the same items"
        )
    longest = float(np.einsum("nd,nd->n", block, block).max(initial=0.0))
    # 1.02 leaves room for the rounding of half precision; "not <=" also refuses NaN
    if not longest <= 1.02:
        raise DataError(
            f"{name} vectors must be finite and of length 1, but one has a squared length of {longest:g}; normalise "
            "what the embedder returns"
        )


def forbidden_positions(
    queries: Sequence[Item], items: Sequence[Item]
) -> list[Positions]:
    """For each query the positions of itself and of every example on its picture, ascending.

    Queries on one picture share one array, so that many questions on a picture take memory once and not each.
    """
    by_id: dict[str, int] = {}
    by_picture: dict[str, list[int]] = {}
    for position, item in enumerate(items):
        if by_id.setdefault(item.id, position) != position:
            raise DataError(
                f"demonstration id {item.id} occurs twice; give every item of the task its own id"
            )
        if picture := picture_name(item):
            by_picture.setdefault(picture, []).append(position)
    nothing: Positions = np.empty(0, dtype=np.int64)
    on_picture: dict[str, Positions] = {}
    found = []
    for query in queries:
        closed = nothing
        picture = picture_name(query)
        if picture is not None and picture in by_picture:
            if picture not in on_picture:
                on_picture[picture] = np.array(by_picture[picture], dtype=np.int64)
            closed = on_picture[picture]
        own = by_id.get(query.id)  # None where queries are of another split
        if own is not None and own not in closed:
            closed = np.union1d(closed, [own]).astype(np.int64)
        found.append(closed)
    return found


def picture_name(item: Item) -> str | None:
    """The name of an item's picture: the dataset's id of it, or its file where there is no id; None without picture."""
    if item.image_id is not None:
        return item.image_id
    return item.image


def picture_groups(items: Sequence[Item]) -> Positions:
    """A number for every item (N,); items on one picture share it, and an item without a picture stands alone."""
    names = []
    for place, item in enumerate(items):
        names.append(picture_name(item) or f"of its own {place}")
    return np.unique(names, return_inverse=True)[1].astype(np.int64)
