"""The first stage of a trained selector: K candidates for each query, never the query itself nor an item on its picture.

Training, evaluation and use call the same functions with the same `[pool]` section, and `Pool.builder`, a hash of all
that a pool depends on, lets anybody check that they did. What one query gets depends on that query, the examples, the
settings and the seed, never on the other queries.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from leverplus import catalog
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.nearest import diverse, two_stages
from leverplus.arms.settings import RECORDED, PoolSection
from leverplus.arms.similarity import Positions
from leverplus.data.types import Demos, Item, ItemId, Pool
from leverplus.errors import DataError, LeverError, RecipeError


@dataclass(frozen=True)
class Search:
    """What a kind of pool searches: some queries by name, all examples, the settings and the seed of random draws."""

    queries: Queries
    corpus: Corpus
    section: PoolSection
    names: Sequence[str]
    seed: int

    def nearest(self, text_weight: float, count: int) -> list[Positions]:
        """The `count` most similar open examples of each query, best first; fewer where fewer are open."""
        found = self.corpus.nearest(self.queries, text_weight, count)
        return [ranked.rows for ranked in found]

    def draw(self, place: int, count: int, taken: Positions) -> Positions:
        """`count` distinct open examples at random for one query, none of them taken."""
        mask = self.queries.open_mask(place, self.corpus).copy()
        mask[taken] = False
        rows = np.flatnonzero(mask)
        # seeded by the search, alike in all runs, and by the query: other queries and their order do not matter
        name = f"{self.seed}\x1f{self.names[place]}".encode()
        digest = blake2b(name, digest_size=16, person=b"pool").digest()
        rng = np.random.default_rng(int.from_bytes(digest, "big"))
        size = min(count, len(rows))
        drawn = rng.choice(len(rows), size=size, replace=False)
        return np.asarray(rows[drawn], np.int64)


Sampler = Callable[[Search], list[Positions]]
"""The signature of every function that the catalog's SAMPLERS name: the candidates of each query, best first."""


def first_stage(search: Search) -> list[Positions]:
    """The candidates of each query; fewer than the section says where fewer are open."""
    kind = "corpus" if search.section.kind == RECORDED else search.section.kind
    sampler: Sampler = catalog.load(catalog.SAMPLERS, kind, "pool")
    return sampler(search)


def random(search: Search) -> list[Positions]:
    """Uniform without replacement."""
    size = search.section.size
    nothing = np.empty(0, np.int64)
    return [search.draw(place, size, nothing) for place in range(len(search.names))]


def nearest_text(search: Search) -> list[Positions]:
    """The most similar questions."""
    return search.nearest(1.0, search.section.size)


def nearest_image(search: Search) -> list[Positions]:
    """The most similar pictures."""
    return search.nearest(0.0, search.section.size)


def nearest_both(search: Search) -> list[Positions]:
    """The largest weighted sum of both similarities."""
    return search.nearest(search.section.text_weight, search.section.size)


def corpus(search: Search) -> list[Positions]:
    """The same, and by questions alone where items have no pictures."""
    weight = search.corpus.weight(search.section.text_weight)
    return search.nearest(weight, search.section.size)


def mix(search: Search) -> list[Positions]:
    """A quarter nearest by question, then a quarter nearest by picture among the others, then random ones."""
    size = search.section.size
    text_count = (size + 2) // 4
    image_count = (size + 1) // 4
    by_text = search.nearest(1.0, text_count)
    # all of the first part may be among the nearest pictures as well, so that many more are looked up
    by_image = search.nearest(0.0, text_count + image_count)
    pools = []
    for place, (near, pictures) in enumerate(zip(by_text, by_image, strict=True)):
        others = pictures[~np.isin(pictures, near)][:image_count]
        both = np.concatenate([near, others])
        drawn = search.draw(place, size - len(both), both)
        pools.append(np.concatenate([both, drawn]))
    return pools


def two_stage(search: Search) -> list[Positions]:
    """The `first_stage` most similar pictures, and of those the most similar questions, equal ones by picture."""
    first = search.section.first_stage
    size = search.section.size
    found = two_stages(search.queries, search.corpus, first)
    return [ranked.rows[:size] for ranked in found]


def mmr(search: Search) -> list[Positions]:
    """Among the `first_stage` nearest by both, candidates that are near to the query and unlike each other."""
    own = search.section
    found = diverse(
        search.queries, search.corpus, own.text_weight, own.first_stage, own.size
    )
    return [ranked.rows for ranked in found]


def build_pools(
    section: PoolSection,
    queries: Queries,
    corpus: Corpus,
    *,
    seed: int,
    fingerprint: Mapping[str, str],
) -> list[Pool]:
    """One pool per query: `section.size` distinct ids, best first.

    Randomness follows from (seed, query id). `fingerprint` is the embedder's; it goes into `Pool.builder`.
    """
    if problems := section.problems():
        raise RecipeError("[pool]", problems)
    names = [item.id for item in queries.items]
    builder = builder_hash(section, fingerprint, seed)
    pools = []
    for place, rows in enumerate(
        first_stage(Search(queries, corpus, section, names, seed))
    ):
        if len(rows) < section.size:
            room = len(rows)
            smaller = ""
            if room:
                smaller = f"set pool.size to at most {room} or "
            raise LeverError(
                f"a pool of {section.size} cannot be filled: of {corpus.count} demonstrations only {room} are neither "
                f"query {names[place]} nor on its picture; {smaller}give more demonstrations (items of split train)"
            )
        ids = tuple(corpus.every_item[row].id for row in rows.tolist())
        pools.append(Pool(names[place], ids, builder))
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


def builder_hash(
    section: PoolSection, fingerprint: Mapping[str, str], seed: int
) -> str:
    """16 hex digits that change with the kind, any setting, the embedder or the seed."""
    parts = {
        "section": dataclasses.asdict(section),
        "embedder": dict(fingerprint),
        "seed": seed,
    }
    canonical = json.dumps(parts, sort_keys=True, allow_nan=False)
    return blake2b(canonical.encode(), digest_size=8, person=b"builder").hexdigest()
