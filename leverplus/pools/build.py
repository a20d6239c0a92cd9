"""Builds the candidate pool of each query: K distinct ids, never the query itself nor an item on its picture.

Training and test call the same function with the same `[pool]` section, and `Pool.builder`, a hash of all that a pool
depends on, lets anybody check that they did.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

import numpy as np

from leverplus import catalog
from leverplus.embedders.base import Vectors
from leverplus.errors import DataError, LeverError, RecipeError
from leverplus.pools.index import open_pool_index
from leverplus.pools.samplers import Search
from leverplus.pools.similarity import Positions, rows
from leverplus.recipe.pools import PoolSection
from leverplus.types import Demos, Item, ItemId, Pool

QUERIES_AT_ONCE = 512  # with 8192 items at a time, 32 MiB of similarities in memory


class Sampler(Protocol):
    """The signature of every function that the catalog's SAMPLERS name: positions (B, K) of demonstrations."""

    def __call__(self, search: Search, section: PoolSection) -> Positions: ...


def build_pools(
    section: PoolSection,
    queries: Sequence[Item],
    query_vectors: Vectors,
    items: Sequence[Item],
    item_vectors: Vectors,
    *,
    seed: int,
    fingerprint: Mapping[str, str],
) -> list[Pool]:
    """One pool per query, out of `items` (the demonstration split): `section.size` distinct ids, best first.

    Randomness follows from (seed, query id), and similarities do not depend on the batch, so a query's pool is the same
    whichever other queries are built with it. `fingerprint` is the embedder's; it goes into `Pool.builder`.
    """
    problems = section.problems()
    if problems:
        raise RecipeError("[pool]", problems)
    sampler: Sampler = catalog.load(catalog.SAMPLERS, section.kind, "pool")
    check_vectors("queries", queries, query_vectors)
    check_vectors("demonstrations", items, item_vectors)
    forbidden = forbidden_positions(queries, items)
    _check_room(section, queries, items, forbidden)
    index = open_pool_index(section, item_vectors)
    builder = builder_hash(section, fingerprint, seed, approximate=index is not None)
    pools = []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        block = slice(start, start + QUERIES_AT_ONCE)
        ids = tuple(query.id for query in queries[block])
        search = Search(ids, rows(query_vectors, block), item_vectors, tuple(forbidden[block]), seed, index)
        chosen = sampler(search, section)  # (B, K)
        for query_id, positions in zip(ids, chosen.tolist(), strict=True):
            candidates = tuple(items[position].id for position in positions)
            pools.append(Pool(query_id, candidates, builder))
    return pools


def recorded_pools(
    section: PoolSection,
    queries: Sequence[Item],
    candidates: Callable[[ItemId], Demos],
    fingerprint: Mapping[str, str],
) -> list[Pool]:
    """The pools of a recorded table: the candidates it holds for each query, in its order; their number may vary."""
    builder = builder_hash(section, fingerprint, 0)
    pools = [Pool(query.id, candidates(query.id), builder) for query in queries]
    for pool in pools:
        if not pool.candidates:
            raise DataError(
                f"the recorded table has no demonstration for query {pool.query}; ask about queries that it holds"
            )
    return pools


def builder_hash(section: PoolSection, fingerprint: Mapping[str, str], seed: int, *, approximate: bool = False) -> str:
    """16 hex digits that change with the kind, any setting, the embedder, the seed, or exact to approximate search."""
    parts = {
        "section": dataclasses.asdict(section),
        "embedder": dict(fingerprint),
        "seed": seed,
        "approximate": approximate,
    }
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake2b(canonical.encode(), digest_size=8, person=b"builder").hexdigest()


def forbidden_positions(queries: Sequence[Item], items: Sequence[Item]) -> list[Positions]:
    """For each query the positions of itself and of every demonstration on its picture, ascending.

    Queries on one picture share one array, so that many questions on a picture take memory once and not each.
    """
    by_id = {item.id: position for position, item in enumerate(items)}
    if len(by_id) < len(items):
        repeated = next(item.id for position, item in enumerate(items) if by_id[item.id] != position)
        raise DataError(f"demonstration id {repeated} occurs twice; give every item of the task its own id")
    by_picture: dict[str, list[int]] = {}  # only of the queries' pictures: a run asks for the pools of a few queries
    for query in queries:
        picture = picture_name(query)
        if picture is not None:
            by_picture[picture] = []
    for position, item in enumerate(items):
        picture = picture_name(item)
        if picture is not None and picture in by_picture:
            by_picture[picture].append(position)
    nothing: Positions = np.empty(0, dtype=np.int64)
    on_picture = {picture: np.array(positions, dtype=np.int64) for picture, positions in by_picture.items()}
    found = []
    for query in queries:
        picture = picture_name(query)
        closed = nothing if picture is None else on_picture.get(picture, nothing)
        own = by_id.get(query.id)  # None where queries and demonstrations are different splits
        if own is not None:
            already_closed = picture is not None and picture_name(items[own]) == picture
            if not already_closed:
                closed = np.union1d(closed, np.array([own], dtype=np.int64))
        found.append(closed)
    return found


def picture_name(item: Item) -> str | None:
    """The name of an item's picture: the dataset's id of it, or its file where there is no id; None without picture."""
    return item.image_id if item.image_id is not None else item.image


def picture_groups(items: Sequence[Item]) -> Positions:
    """A number for every item (N,); items on one picture share it, and an item without a picture stands alone."""
    names = [picture_name(item) or f"of its own {place}" for place, item in enumerate(items)]
    found: Positions = np.unique(names, return_inverse=True)[1].astype(np.int64)
    return found


def check_vectors(what: str, items: Sequence[Item], vectors: Vectors) -> None:
    """Refuses vectors that are not one per item, not finite, or longer than 1."""
    for name, field in (("text", vectors.text), ("image", vectors.image)):
        if field is None:
            continue
        if len(field) != len(items):
            raise DataError(f"there are {len(items)} {what} but {len(field)} {name} vectors; embed the same items")
        longest = float(np.einsum("nd,nd->n", field, field).max(initial=0.0))  # the largest squared length
        # 1.02 leaves room for the rounding of half precision; "not <=" also refuses NaN
        if not longest <= 1.02:
            raise DataError(
                f"the {name} vectors of the {what} must be finite and of length 1, but one has a squared length of "
                f"{longest:g}; normalise what the embedder returns"
            )


def _check_room(
    section: PoolSection, queries: Sequence[Item], items: Sequence[Item], forbidden: Sequence[Positions]
) -> None:
    """Raises when the query with the most forbidden demonstrations has too few left to fill its pool."""
    if not queries:
        return
    tightest = int(np.argmax([len(positions) for positions in forbidden]))
    room = len(items) - len(forbidden[tightest])
    if room < section.size:
        smaller = f"set pool.size to at most {room} or " if room else ""
        raise LeverError(
            f"a pool of {section.size} cannot be filled: of {len(items)} demonstrations only {room} are neither query "
            f"{queries[tightest].id} nor on its picture; {smaller}give more demonstrations (items of split train)"
        )
