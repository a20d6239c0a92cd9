"""Where the sequences of a mixed group come from: a selector at temperatures, retrieval, chance; and with what density.

A source is a name, its sequences for every pool and, where it draws them at random, the log-probability with which it
would have drawn any sequence. Members of a mixed group carry the density of the mixture of all random sources, weighted
by how many sequences each was asked for: an importance weight against it is bounded by that of the best of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from leverplus.data.types import Demos, ItemId, Member, Pool

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from leverplus.learn.policies.base import Encoded, Policy
    from leverplus.learn.policies.table import ItemTable

Lists = Sequence[Sequence[Demos]]
"""For every pool some sequences."""

Density = Callable[[Lists], list[list[float]]]
"""Log-probabilities of given sequences under a source, in the same shape."""

BATCH = 256
"""Pools that the selector reads at once."""


@dataclass(frozen=True)
class MemberSource:
    """Sequences of one kind for every pool; `count` asked for a pool; `density` is None where nothing is random."""

    name: str
    lists: Lists
    count: int
    density: Density | None = None


def source_seed(seed: int, source: str, query: ItemId) -> int:
    """A seed for one query of one source; the batch a query sits in does not change its draws."""
    digest = blake2b(f"{seed}/{source}/{query}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # below 2^63, which every generator takes


def from_chance(
    pools: Sequence[Pool], shots: int, count: int, seed: int
) -> MemberSource:
    """`count` uniform draws of distinct candidates in random order; the density is 1 / (K (K-1) ... (K-S+1))."""
    lists = []
    for pool in pools:
        rng = np.random.default_rng(source_seed(seed, "random", pool.query))
        drawn = [rng.choice(len(pool), shots, replace=False) for _ in range(count)]
        lists.append(
            [tuple(pool.candidates[int(place)] for place in picks) for picks in drawn]
        )

    def density(given: Lists) -> list[list[float]]:
        found = []
        for pool, own in zip(pools, given, strict=True):
            found.append([-math.log(math.perm(len(pool), len(demos))) for demos in own])
        return found

    return MemberSource("random", lists, count, density)


def from_retrieval(
    pools: Sequence[Pool], table: ItemTable, shots: int, count: int
) -> MemberSource:
    """Neighbours in order of similarity: ranks 1..S, then 2..S+1, and so on; the most similar stands last."""
    lists = []
    for pool, similarity in zip(pools, similarities(pools, table), strict=True):
        order = np.argsort(-similarity, kind="stable")  # (K,) nearest first
        own = []
        for first in range(min(count, len(pool) - shots + 1)):
            window = order[first : first + shots]
            own.append(tuple(pool.candidates[int(place)] for place in reversed(window)))
        lists.append(own)
    return MemberSource("retrieval", lists, count)


def similarities(
    pools: Sequence[Pool], table: ItemTable
) -> Iterator[NDArray[np.float64]]:
    """Cosines (K,) of every query with its candidates, mean over question and picture."""
    blocks = [table.blocks[name] for name in ("image", "text") if name in table.blocks]
    for pool in pools:
        rows, query = (
            [table.row(item) for item in pool.candidates],
            table.row(pool.query),
        )
        cosines = [
            (block[rows] @ block[query]).double().numpy() for block in blocks
        ]  # unit vectors: each (K,)
        yield np.mean(cosines, axis=0)


def from_policy(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
    shots: int,
    count: int,
    *,
    temperature: float,
    seed: int,
) -> MemberSource:
    """`count` independent sequences a pool, drawn from a selector at a temperature."""
    from leverplus.learn.policies.items import sample_members

    name = f"policy@{temperature:g}"
    drawn = sample_members(
        policy,
        table,
        pools,
        shots,
        count,
        seed_of=lambda query: source_seed(seed, name, query),
        temperature=temperature,
        without_replacement=False,
    )
    return MemberSource(
        name, _demos_of(drawn), count, policy_density(policy, table, pools, temperature)
    )


def from_stochastic_beam(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
    shots: int,
    count: int,
    *,
    seed: int,
) -> MemberSource:
    """`count` different sequences a pool, drawn from a selector without replacement.

    The density is that of one draw; that a sequence cannot come twice is not in it.
    """
    from leverplus.learn.policies.items import sample_members

    drawn = sample_members(
        policy,
        table,
        pools,
        shots,
        count,
        seed_of=lambda query: source_seed(seed, "stochastic_beam", query),
    )
    return MemberSource(
        "stochastic_beam",
        _demos_of(drawn),
        count,
        policy_density(policy, table, pools, 1.0),
    )


def from_selector_beam(
    policy: Policy, table: ItemTable, pools: Sequence[Pool], shots: int, count: int
) -> MemberSource:
    """The `count` likeliest sequences that beam search finds under a selector."""
    from leverplus.learn.policies.decode import beam

    lists: list[list[Demos]] = []
    for part, encoded in _encoded(policy, table, pools):
        picks = beam(policy, encoded, shots, count)
        for pool, rows in zip(part, picks.positions.tolist(), strict=True):
            lists.append(
                [
                    tuple(pool.candidates[place] for place in row)
                    for row in rows
                    if min(row) >= 0
                ]
            )
    return MemberSource("selector_beam", lists, count)


def policy_density(
    policy: Policy, table: ItemTable, pools: Sequence[Pool], temperature: float
) -> Density:
    """Log-probabilities of sequences under a selector at a temperature, without the choice to stop."""
    import torch

    from leverplus.learn.policies.base import PAD, sequence_logprobs

    def density(given: Lists) -> list[list[float]]:
        found: list[list[float]] = []
        for part, encoded in _encoded(policy, table, pools):
            own = given[len(found) : len(found) + len(part)]
            places = [
                {item: place for place, item in enumerate(pool.candidates)}
                for pool in part
            ]
            width = max((len(demos) for lists in own for demos in lists), default=0)
            members = max(map(len, own), default=0)
            if not width:
                found += [[0.0] * len(lists) for lists in own]
                continue
            sequences = torch.full((len(part), members, width), PAD)  # (B, G, S)
            for row, lists in enumerate(own):
                for column, demos in enumerate(lists):
                    sequences[row, column, : len(demos)] = torch.tensor(
                        [places[row][demo] for demo in demos]
                    )
            with torch.no_grad():
                total = sequence_logprobs(
                    policy,
                    encoded,
                    sequences,
                    allow_stop=False,
                    temperature=temperature,
                ).total
            found += [
                row[: len(lists)]
                for row, lists in zip(total.tolist(), own, strict=True)
            ]
        return found

    return density


def mixed_members(
    pools: Sequence[Pool], sources: Sequence[MemberSource]
) -> list[tuple[Member, ...]]:
    """One list of members a pool, each sequence once under the first source that has it.

    `log_mu` is the log of the mixture density over all random sources; None for members no random source drew.
    """
    chosen: list[dict[Demos, MemberSource]] = []
    for row in range(len(pools)):
        found: dict[Demos, MemberSource] = {}
        for source in sources:
            for demos in source.lists[row]:
                found.setdefault(demos, source)
        chosen.append(found)
    drawn = [
        [demos for demos, source in found.items() if source.density is not None]
        for found in chosen
    ]
    mixture = _mixture(
        drawn,
        [source for source in sources if source.density is not None and source.count],
    )
    return [
        tuple(
            Member(demos, source.name, known.get(demos))
            for demos, source in found.items()
        )
        for found, known in zip(chosen, mixture, strict=True)
    ]


def _mixture(
    drawn: Sequence[Sequence[Demos]], sources: Sequence[MemberSource]
) -> list[dict[Demos, float]]:
    """log sum_i (n_i / n) p_i(list) of every drawn list, over sources that were asked for n_i lists of n."""
    total = sum(source.count for source in sources)
    tables = [
        (math.log(s.count / total), s.density(drawn))
        for s in sources
        if s.density is not None
    ]
    found = []
    for row, own in enumerate(drawn):
        densities = {}
        for column, demos in enumerate(own):
            terms = [weight + table[row][column] for weight, table in tables]
            densities[demos] = float(np.logaddexp.reduce(terms))
        found.append(densities)
    return found


def _encoded(
    policy: Policy, table: ItemTable, pools: Sequence[Pool]
) -> Iterator[tuple[Sequence[Pool], Encoded]]:
    """The pools in batches, each with what the selector has read of it."""
    import torch

    policy.eval()
    for start in range(0, len(pools), BATCH):
        part = pools[start : start + BATCH]
        with torch.no_grad():
            features = table.features(
                [pool.query for pool in part], [pool.candidates for pool in part]
            )
            encoded = policy.prepare(features)
        yield part, encoded


def _demos_of(drawn: Sequence[Sequence[Member]]) -> Lists:
    return [[member.demos for member in members] for members in drawn]
