"""Where the sequences of a mixed group come from: a selector at temperatures, retrieval, chance; and with what density.

A source is a name, its sequences for every pool and, where it draws them at random, the log-probability with which it
would have drawn any sequence. Members of a mixed group carry the density of the mixture of all random sources, weighted
by how many sequences each was asked for: an importance weight against it is bounded by that of the best of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from leverplus.data.types import Demos, Group, Member, Pool
from leverplus.errors import ScoringError
from leverplus.learn.data.search import scored_groups
from leverplus.learn.seeds import source_seed
from leverplus.scores.scorer import Prompt, Scorer
from leverplus.scores.settings import ScoreSection

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from leverplus.learn.policies.base import Policy
    from leverplus.learn.policies.table import ItemTable

Lists = Sequence[Sequence[Demos]]
"""For every pool some sequences."""

Density = Callable[[Lists], list[list[float]]]
"""Log-probabilities of given sequences under a source, in the same shape."""


@dataclass(frozen=True)
class MemberSource:
    """Sequences of one kind for every pool; `count` asked for a pool; `density` is None where nothing is random."""

    name: str
    lists: Lists
    count: int
    density: Density | None = None


def from_chance(
    pools: Sequence[Pool], shots: int, count: int, seed: int
) -> MemberSource:
    """`count` uniform draws of distinct candidates in random order; the density is 1 / (K (K-1) ... (K-S+1))."""
    lists = []
    for pool in pools:
        rng = np.random.default_rng(source_seed(seed, "random", pool.query))
        own = []
        for _ in range(count):
            picks = rng.choice(len(pool), shots, replace=False)
            own.append(tuple(pool.candidates[place] for place in picks))
        lists.append(own)

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
    for pool in pools:
        order = np.argsort(-similarity(pool, table), kind="stable")  # (K,)
        own = []
        for first in range(min(count, len(pool) - shots + 1)):
            window = order[first : first + shots][::-1]
            own.append(tuple(pool.candidates[place] for place in window))
        lists.append(own)
    return MemberSource("retrieval", lists, count)


def similarity(pool: Pool, table: ItemTable) -> NDArray[np.float64]:
    """Cosines (K,) of a query with its candidates, mean over question and picture."""
    query = table.row(pool.query)
    rows = [table.row(item) for item in pool.candidates]
    cosines = []
    for name in ("image", "text"):
        if name in table.blocks:
            block = table.blocks[name]  # unit vectors
            cosine = block[rows] @ block[query]
            cosines.append(cosine.double().numpy())
    mean: NDArray[np.float64] = np.mean(cosines, axis=0)
    return mean


def mixed_members(
    pools: Sequence[Pool], sources: Sequence[MemberSource]
) -> list[tuple[Member, ...]]:
    """One list of members a pool, each sequence once under the first source that has it.

    `log_mu` is the log of the mixture density over all random sources; None for members no random source drew.
    """
    chosen: list[dict[Demos, MemberSource]] = []
    drawn: list[list[Demos]] = []
    for row in range(len(pools)):
        found: dict[Demos, MemberSource] = {}
        for source in sources:
            for demos in source.lists[row]:
                found.setdefault(demos, source)
        chosen.append(found)
        with_density = []
        for demos, source in found.items():
            if source.density:
                with_density.append(demos)
        drawn.append(with_density)
    members = []
    for found, known in zip(chosen, _mixture(drawn, sources), strict=True):
        own = []
        for demos, source in found.items():
            own.append(Member(demos, source.name, known.get(demos)))
        members.append(tuple(own))
    return members


def _mixture(
    drawn: Sequence[Sequence[Demos]], sources: Sequence[MemberSource]
) -> list[dict[Demos, float]]:
    """log sum_i (n_i / n) p_i(list) of every drawn list, over random sources asked for n_i lists of n."""
    total = sum(source.count for source in sources if source.density)
    tables = []
    for source in sources:
        if source.density and source.count:
            weight = math.log(source.count / total)
            tables.append((weight, source.density(drawn)))
    found = []
    for row, own in enumerate(drawn):
        densities = {}
        for column, demos in enumerate(own):
            terms = [weight + table[row][column] for weight, table in tables]
            densities[demos] = float(np.logaddexp.reduce(terms))
        found.append(densities)
    return found


def mixed_groups(
    scorer: Scorer,
    pools: Sequence[Pool],
    section: ScoreSection,
    *,
    seed: int,
    table: ItemTable | None,
    policy: Policy | None,
) -> list[Group]:
    """Groups of sequences from several sources, the bare query and, if asked, every prefix of a sequence."""
    members = mixed_members(
        pools, list_sources(pools, section, seed=seed, table=table, policy=policy)
    )
    whole = []
    for pool, own in zip(pools, members, strict=True):
        prompts: list[Prompt] = [(pool.query, member.demos) for member in own]
        known = {member.demos for member in own}
        wanted = prefixes_of(prompts) if section.prefixes else [(pool.query, ())]
        whole.append(
            (
                *(Member(demos, "prefix") for _, demos in wanted if demos not in known),
                *own,
            )
        )
    return scored_groups(scorer, pools, whole, "mixed sources")


def prefixes_of(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Every leading run of every prompt's demonstrations, the bare query and the prompt itself included, each once."""
    runs = (
        (query, demos[:length])
        for query, demos in prompts
        for length in range(len(demos) + 1)
    )
    return list(dict.fromkeys(runs))


def list_sources(
    pools: Sequence[Pool],
    section: ScoreSection,
    *,
    seed: int,
    table: ItemTable | None,
    policy: Policy | None,
) -> list[MemberSource]:
    """The sources of a section in order of precedence: retrieval, the selector, chance."""
    shots = section.shots
    found = []
    if section.retrieved:
        if table is None:
            raise ScoringError(
                "score.retrieved needs vectors of the items; embed them first, or set it to 0"
            )
        found.append(from_retrieval(pools, table, shots, section.retrieved))
    if section.draws_from_selector:
        if policy is None or table is None:
            raise ScoringError(
                "score.samples and score.selector_beams draw from a selector, and none is trained yet; set them to 0, "
                "or search with beam first"
            )
        found += _selector_sources(policy, table, pools, section, seed)
    if section.random:
        found.append(from_chance(pools, shots, section.random, seed))
    if not found:
        raise ScoringError(
            "score.search = 'mixed' without any source; set score.random or score.retrieved above 0"
        )
    return found


def _selector_sources(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
    section: ScoreSection,
    seed: int,
) -> list[MemberSource]:
    from leverplus_lab.search.drawn import from_policy, from_selector_beam

    shots = section.shots
    found = []
    if section.selector_beams:
        count = section.selector_beams
        found.append(from_selector_beam(policy, table, pools, shots, count))
    if section.samples:
        for heat in section.temperatures:
            drawn = from_policy(
                policy,
                table,
                pools,
                shots,
                section.samples,
                temperature=heat,
                seed=seed,
            )
            found.append(drawn)
    return found
