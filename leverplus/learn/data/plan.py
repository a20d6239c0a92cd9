"""From a `[score]` section to groups: search, mining and filters in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from leverplus.data.types import Group, Member, Pool
from leverplus.errors import ScoringError
from leverplus.learn.data import sources
from leverplus.learn.data.mining import keep_groups, mine_flat
from leverplus.learn.data.search import (
    beam_groups,
    dense_groups,
    join_groups,
    scored_groups,
)
from leverplus.scores.scorer import Prompt, Scorer
from leverplus.scores.settings import ScoreSection

if TYPE_CHECKING:
    from leverplus.learn.policies.base import Policy
    from leverplus.learn.policies.table import ItemTable


def find_groups(
    scorer: Scorer,
    pools: Sequence[Pool],
    section: ScoreSection,
    *,
    seed: int = 0,
    table: ItemTable | None = None,
    policy: Policy | None = None,
) -> list[Group]:
    """The groups a `[score]` section asks for, measured or from the store; groups that its filters refuse are left out.

    `table` holds the vectors that retrieval needs, `policy` the selector that is sampled from (`search = "mixed"`).
    """
    if section.search == "mixed":
        groups = mixed_groups(
            scorer, pools, section, seed=seed, table=table, policy=policy
        )
    else:
        groups = dense_groups(scorer, pools)
        if section.search == "beam" and section.shots > 1:
            deeper = beam_groups(
                scorer,
                pools,
                shots=section.shots,
                width=section.beam,
                side=section.side,
            )
            groups = [join_groups(*pair) for pair in zip(groups, deeper, strict=True)]
    if section.mine:
        shots = 1 if section.search == "dense" else section.shots
        groups = mine_flat(scorer, groups, shots=shots, calls=section.mine)
    return keep_groups(groups, section.keep, section.tiers)


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
    members = sources.mixed_members(
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
) -> list[sources.MemberSource]:
    """The sources of a section in order of precedence: retrieval, the selector, chance."""
    shots, found = section.shots, []
    if section.retrieved:
        if table is None:
            raise ScoringError(
                "score.retrieved needs vectors of the items; embed them first, or set it to 0"
            )
        found.append(sources.from_retrieval(pools, table, shots, section.retrieved))
    if section.draws_from_selector:
        if policy is None or table is None:
            raise ScoringError(
                "score.samples and score.selector_beams draw from a selector, and none is trained yet; set them to 0, "
                "or search with beam first"
            )
        found += _selector_sources(policy, table, pools, section, seed)
    if section.random:
        found.append(sources.from_chance(pools, shots, section.random, seed))
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
) -> list[sources.MemberSource]:
    from leverplus.learn.data.drawn import from_policy, from_selector_beam

    shots, found = section.shots, []
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
