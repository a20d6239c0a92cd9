"""How candidates are found: one function per kind of pool, (search, settings) -> positions of demonstrations (B, K).

Each returns K distinct allowed positions for each query of the search, best first where there is a best. What one query
gets depends on that query, the demonstrations, the settings and the seed, never on the other queries of the search.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import numpy as np

from leverplus.embedders.base import Vectors
from leverplus.pools.index import corpus_share
from leverplus.pools.similarity import Floats, Positions, cosine, mmr_order, nearest, rows, similarity, top
from leverplus.recipe.pools import PoolSection
from leverplus.types import ItemId


class SearchIndex(Protocol):
    """An approximate search over all demonstrations: positions that are likely near to one query, and allowed."""

    def propose(self, query: Vectors, forbidden: Positions, count: int) -> Positions: ...


@dataclass(frozen=True)
class Search:
    """Some queries, all demonstrations, the positions each query may not get, and the seed of random draws."""

    ids: tuple[ItemId, ...]
    queries: Vectors
    items: Vectors
    forbidden: tuple[Positions, ...]
    seed: int
    index: SearchIndex | None = None

    def nearest(self, text_weight: float, count: int) -> tuple[Positions, Floats]:
        """The `count` most similar allowed demonstrations of each query and their similarities, (B, count) each."""
        return nearest(self.queries, self.items, self.forbidden, text_weight, count)

    def draw(self, row: int, count: int, taken: Positions) -> Positions:
        """`count` distinct positions at random for one query, none of them forbidden or taken."""
        closed = self.forbidden[row]  # ascending, each once
        if len(taken):
            closed = np.unique(np.concatenate([closed, taken]))
        # Seeded by the search, alike in all runs, and by the query: other queries and their order do not matter.
        digest = blake2b(f"{self.seed}\x1f{self.ids[row]}".encode(), digest_size=16, person=b"pool").digest()
        rng = np.random.default_rng(int.from_bytes(digest, "big"))
        drawn = rng.choice(len(self.items) - len(closed), size=count, replace=False)  # numbers of open positions
        # The n-th open position is n plus the closed positions before it.
        open_before = closed - np.arange(len(closed))  # how many open positions come before each closed one
        return drawn + np.searchsorted(open_before, drawn, side="right")


def random(search: Search, section: PoolSection) -> Positions:
    """Uniform without replacement."""
    nothing = np.empty(0, dtype=np.int64)
    return np.stack([search.draw(row, section.size, nothing) for row in range(len(search.ids))])


def nearest_text(search: Search, section: PoolSection) -> Positions:
    """The most similar questions."""
    return search.nearest(1.0, section.size)[0]


def nearest_image(search: Search, section: PoolSection) -> Positions:
    """The most similar pictures."""
    return search.nearest(0.0, section.size)[0]


def nearest_both(search: Search, section: PoolSection) -> Positions:
    """The largest weighted sum of both similarities."""
    return search.nearest(section.text_weight, section.size)[0]


def mix(search: Search, section: PoolSection) -> Positions:
    """The nearest by question, then the nearest by picture among the others, then random ones among the rest."""
    _, text_count, image_count = mix_counts(section)
    by_text = by_image = np.empty((len(search.ids), 0), dtype=np.int64)
    if text_count:  # without a share, pictures or questions need not have vectors at all
        by_text = search.nearest(1.0, text_count)[0]  # (B, text_count)
    if image_count:
        # all of the first part may be among the nearest pictures as well, so that many more are looked up
        by_image = search.nearest(0.0, text_count + image_count)[0]
    pools = []
    for row in range(len(search.ids)):
        first, pictures = by_text[row], by_image[row]
        others = pictures[~np.isin(pictures, first)][:image_count]
        near = np.concatenate([first, others])
        random_ones = search.draw(row, section.size - len(near), near)
        pools.append(np.concatenate([near, random_ones]))
    return np.stack(pools)


def mix_counts(section: PoolSection) -> tuple[int, int, int]:
    """How many of a mixed pool are random, by question, by picture; they add up to its size (largest remainders)."""
    ratios = np.array([section.mix_random, section.mix_text, section.mix_image])
    shares = section.size * ratios / ratios.sum()
    counts = np.floor(shares).astype(int)
    missing = section.size - int(counts.sum())
    largest_remainders = top((shares - counts)[None], missing)[0]
    counts[largest_remainders] += 1
    return int(counts[0]), int(counts[1]), int(counts[2])


def two_stage(search: Search, section: PoolSection) -> Positions:
    """The `first_stage` most similar pictures, and of those the most similar questions, equal ones by picture."""
    first, value = search.nearest(0.0, section.first_stage)  # (B, first_stage) each
    text = np.empty(first.shape)
    for row, found in enumerate(first):
        query = search.queries.text[row : row + 1]
        text[row] = cosine(query, search.items.text[found])[0]
    text[np.isneginf(value)] = -np.inf  # where a query ran out of allowed items, the rest stays forbidden
    return np.take_along_axis(first, top(text, section.size), axis=1)


def mmr(search: Search, section: PoolSection) -> Positions:
    """Among the `first_stage` nearest by both, candidates that are near to the query and unlike each other."""
    first, value = search.nearest(section.text_weight, section.first_stage)
    pools = []
    for found, relevance in zip(first, value, strict=True):
        shortlist = rows(search.items, found)
        likeness = similarity(shortlist, shortlist, section.text_weight)  # (first_stage, first_stage)
        order = mmr_order(relevance[None], likeness.__getitem__, section.mmr_lambda, section.size)
        pools.append(found[order[0]])
    return np.stack(pools)


def corpus(search: Search, section: PoolSection) -> Positions:
    """The largest weighted sum of both similarities out of any number of demonstrations, through the index if any.

    What an index proposes is ordered by exact similarity; a query for which it proposes too few is searched exactly.
    Where items have no pictures, questions alone are compared.
    """
    share = corpus_share(section, search.items)
    if search.index is None:
        return search.nearest(share, section.size)[0]
    pools = []
    for row, forbidden in enumerate(search.forbidden):
        query = rows(search.queries, slice(row, row + 1))
        found = np.sort(search.index.propose(query, forbidden, section.size))  # ascending: ties go to the first item
        if len(found) < section.size:
            exact, _ = nearest(query, search.items, [forbidden], share, section.size)  # (1, K)
            pools.append(exact[0])
        else:
            value = similarity(query, rows(search.items, found), share)
            pools.append(found[top(value, section.size)[0]])
    return np.stack(pools)
