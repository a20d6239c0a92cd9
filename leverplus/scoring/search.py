"""Search for good demonstrations with the frozen model: dense one-shot tables, beams, random and retrieved sequences.

Every function returns prompts' scores as groups; every label is a real measurement of that query. New demonstrations
are appended on the right, next to the query, so that all extensions of a prefix share its computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from leverplus.scoring.scorer import EVALUATION, TRAINING, Prompt, Scorer
from leverplus.types import Demos, Group, ItemId, Member, Pool, Score

Objective = Callable[[Score], float]


def gain(score: Score) -> float:
    """What search maximises by default: the probability of the truth, the cumulative form of InfoScore."""
    return score.gt_prob


def oracle_objective(score: Score) -> float:
    """What an oracle maximises: accuracy first, the probability of the truth among equals."""
    return score.accuracy + 1e-3 * score.gt_prob


@dataclass(frozen=True)
class Beam:
    """A sequence under construction and its score."""

    demos: Demos
    score: Score | None


def dense_groups(scorer: Scorer, pools: Sequence[Pool], zero_shot: bool = True) -> list[Group]:
    """One-shot tables: every candidate of every pool alone, and the query without demonstrations."""
    prompts: list[list[Prompt]] = []
    for pool in pools:
        own: list[Prompt] = [(pool.query, ())] if zero_shot else []
        prompts.append(own + [(pool.query, (candidate,)) for candidate in pool.candidates])
    return groups_of(scorer, pools, prompts, "dense", "one-shot tables")


def groups_of(
    scorer: Scorer, pools: Sequence[Pool], prompts: Sequence[Sequence[Prompt]], source: str, what: str
) -> list[Group]:
    """Score the prompts of every pool in one go and hand them back as groups."""
    flat = [prompt for own in prompts for prompt in own]
    scores = iter(scorer.score(flat, TRAINING, what))
    groups = []
    for pool, own in zip(pools, prompts, strict=True):
        members = tuple(Member(demos, source) for _, demos in own)
        groups.append(Group(pool.query, pool, members, tuple(next(scores) for _ in own)))
    return groups


def beam_groups(
    scorer: Scorer,
    pools: Sequence[Pool],
    *,
    shots: int,
    width: int,
    objective: Objective = gain,
    purpose: str = TRAINING,
    what: str = "beam search",
) -> list[Group]:
    """Beam search: each step tries every unused candidate after every beam and keeps the `width` best sequences.

    The group of a query holds everything that was measured, so its first step is the dense one-shot table.
    """
    beams: list[list[Beam]] = [[Beam((), None)] for _ in pools]
    measured: list[dict[Demos, Score]] = [{} for _ in pools]
    for step in range(1, shots + 1):
        prompts: list[Prompt] = []
        for pool, own in zip(pools, beams, strict=True):
            prompts.extend(
                (pool.query, (*beam.demos, candidate))
                for beam in own
                for candidate in pool.candidates
                if candidate not in beam.demos
            )
        scores = iter(scorer.score(prompts, purpose, f"{what}, step {step} of {shots}"))
        for place, (pool, own) in enumerate(zip(pools, beams, strict=True)):
            count = sum(len(pool.candidates) - len(beam.demos) for beam in own)
            tried = [next(scores) for _ in range(count)]
            measured[place].update({score.demos: score for score in tried})
            best = sorted(tried, key=lambda score: (-objective(score), score.demos))[:width]
            beams[place] = [Beam(score.demos, score) for score in best]
    return [
        Group(pool.query, pool, tuple(Member(demos, "beam") for demos in found), tuple(found.values()))
        for pool, found in zip(pools, measured, strict=True)
    ]


def top_members(groups: Sequence[Group], width: int, objective: Objective = gain) -> list[Group]:
    """The `width` best sequences of every length of every group: what supervised training imitates."""
    kept = []
    for group in groups:
        by_length: dict[int, list[int]] = {}
        for place, member in enumerate(group.members):
            by_length.setdefault(len(member.demos), []).append(place)
        places = [
            place
            for length, own in sorted(by_length.items())
            if length > 0
            for place in sorted(own, key=lambda p: (-objective(group.scores[p]), group.members[p].demos))[:width]
        ]
        kept.append(
            Group(
                group.query,
                group.pool,
                tuple(group.members[place] for place in places),
                tuple(group.scores[place] for place in places),
            )
        )
    return kept


def greedy_oracle(scorer: Scorer, pools: Sequence[Pool], shots: int) -> list[list[Score]]:
    """For every pool the scores of the greedy oracle at 1..shots demonstrations; it looks at the answers."""
    groups = beam_groups(
        scorer, pools, shots=shots, width=1, objective=oracle_objective, purpose=EVALUATION, what="greedy oracle"
    )
    out = []
    for group in groups:
        best: dict[int, Score] = {}
        for score in group.scores:
            length = len(score.demos)
            rival = best.get(length)
            if rival is None or (-oracle_objective(score), score.demos) < (-oracle_objective(rival), rival.demos):
                best[length] = score
        out.append([best[length] for length in range(1, shots + 1)])
    return out


def random_sequences(pools: Sequence[Pool], shots: int, seed: int) -> Mapping[ItemId, Demos]:
    """For every query `shots` distinct candidates in random order; shorter lists are its last elements."""
    out: dict[ItemId, Demos] = {}
    for pool in pools:
        digest = int.from_bytes(pool.query.encode()[-12:], "big")
        rng = np.random.default_rng([seed, digest])
        picks = rng.choice(len(pool), shots, replace=False)
        out[pool.query] = tuple(pool.candidates[int(pick)] for pick in picks)
    return out
