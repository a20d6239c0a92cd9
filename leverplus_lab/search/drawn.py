"""Lists of demonstrations that a trained selector draws or finds, as sources of a mixed group."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from leverplus.data.types import Demos, Pool
from leverplus.learn.policies.base import PAD, Policy, sequence_logprobs
from leverplus.learn.policies.decode import beam, sample
from leverplus.learn.policies.items import demos_at, read_pools
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.seeds import source_seed
from leverplus_lab.search.mixed import Density, Lists, MemberSource


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
    name = f"policy@{temperature:g}"
    lists: list[list[Demos]] = []
    for part, encoded in read_pools(policy, table, pools):
        seeds = [source_seed(seed, name, pool.query) for pool in part]
        picks = sample(
            policy,
            encoded,
            shots,
            seeds=seeds,
            count=count,
            temperature=temperature,
        )
        for pool, rows in zip(part, picks.positions.tolist(), strict=True):
            lists.append([demos_at(pool, row) for row in rows])
    density = policy_density(policy, table, pools, temperature)
    return MemberSource(name, lists, count, density)


def from_selector_beam(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
    shots: int,
    count: int,
) -> MemberSource:
    """The `count` likeliest sequences that beam search finds under a selector."""
    lists: list[list[Demos]] = []
    for part, encoded in read_pools(policy, table, pools):
        picks = beam(policy, encoded, shots, count)
        for pool, rows in zip(part, picks.positions.tolist(), strict=True):
            # a small pool has fewer than `count` different sequences
            taken = [row for row in rows if row[0] >= 0]
            lists.append([demos_at(pool, row) for row in taken])
    return MemberSource("selector_beam", lists, count)


def policy_density(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
    temperature: float,
) -> Density:
    """Log-probabilities of sequences under a selector at a temperature, without the choice to stop."""

    def density(given: Lists) -> list[list[float]]:
        found: list[list[float]] = []
        for part, encoded in read_pools(policy, table, pools):
            own = given[len(found) : len(found) + len(part)]
            sequences = _places(part, own)  # (B, G, S)
            if not sequences.shape[-1]:
                found += [[0.0] * len(lists) for lists in own]
                continue
            with torch.no_grad():
                total = sequence_logprobs(
                    policy,
                    encoded,
                    sequences,
                    allow_stop=False,
                    temperature=temperature,
                ).total
            for row, lists in zip(total.tolist(), own, strict=True):
                found.append(row[: len(lists)])
        return found

    return density


def _places(pools: Sequence[Pool], given: Lists) -> torch.Tensor:
    """The places of given lists in their pools (B, G, S), filled up with PAD."""
    members = 0
    width = 0
    for lists in given:
        members = max(members, len(lists))
        for demos in lists:
            width = max(width, len(demos))
    places = torch.full((len(pools), members, width), PAD)
    for row, (pool, lists) in enumerate(zip(pools, given, strict=True)):
        for column, demos in enumerate(lists):
            own = [pool.position(demo) for demo in demos]
            places[row, column, : len(own)] = torch.tensor(own)
    return places
