"""Search for good demonstrations with the frozen model: dense one-shot tables, beams, random and retrieved sequences.

Every function returns prompts' scores as groups; every label is a real measurement of that query. Sequences are stored
in prompt order. On the right, next to the query, all extensions of a sequence share its computation; on the left every
extension changes all that follows, so that nothing is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leverplus.data.types import Demos, Group, Member, Pool, Score
from leverplus.errors import ScoringError
from leverplus.scores.scorer import EVALUATION, TRAINING, Prompt, Scorer

Objective = Callable[[Score], float]

SIDES = ("right", "left")
"""Where search puts a new demonstration: next to the query, or in front of all others."""


def truth_objective(score: Score) -> float:
    """What search maximises by default: the probability of the truth (InfoScore adds up its gains to the same).

    A model that offers no log-probabilities is searched by accuracy, then by how near the answer came.
    """
    return score.gt_prob if score.weighed else oracle_objective(score)


def oracle_objective(score: Score) -> float:
    """What an oracle maximises: accuracy first; among equals the probability of the truth, or how near it came."""
    # the second part is at most 0.001, so it decides among equal accuracies only
    return score.accuracy + 1e-3 * (score.gt_prob if score.weighed else score.relevance)


def dense_groups(
    scorer: Scorer, pools: Sequence[Pool], zero_shot: bool = True
) -> list[Group]:
    """One-shot tables: every candidate of every pool alone, and the query without demonstrations."""
    bare = (Member((), "dense"),) if zero_shot else ()
    members = [
        (*bare, *(Member((candidate,), "dense") for candidate in pool.candidates))
        for pool in pools
    ]
    return scored_groups(scorer, pools, members, "one-shot tables")


def scored_groups(
    scorer: Scorer,
    pools: Sequence[Pool],
    members: Sequence[Sequence[Member]],
    what: str,
) -> list[Group]:
    """Score the members of every pool in one go and hand them back as groups."""
    prompts: list[Prompt] = []
    for pool, own in zip(pools, members, strict=True):
        prompts.extend((pool.query, member.demos) for member in own)
    scores = iter(scorer.score(prompts, TRAINING, what))  # in the order of the prompts
    groups = []
    for pool, own in zip(pools, members, strict=True):
        groups.append(
            Group(pool.query, pool, tuple(own), tuple(next(scores) for _ in own))
        )
    return groups


def join_groups(first: Group, second: Group) -> Group:
    """One group of two over the same pool; a sequence in both stays where the first has it."""
    if (first.query, first.pool) != (second.query, second.pool):
        raise ScoringError(
            f"groups of queries {first.query} and {second.query} cannot be joined: their pools differ"
        )
    known = {member.demos for member in first.members}
    pairs = zip(second.members, second.scores, strict=True)
    extra = [(member, score) for member, score in pairs if member.demos not in known]
    members = first.members + tuple(member for member, _ in extra)
    return Group(
        first.query,
        first.pool,
        members,
        first.scores + tuple(score for _, score in extra),
    )


def beam_groups(
    scorer: Scorer,
    pools: Sequence[Pool],
    *,
    shots: int,
    width: int,
    side: str = "right",
    objective: Objective = truth_objective,
    purpose: str = TRAINING,
    what: str = "beam search",
) -> list[Group]:
    """Beam search: each step tries every unused candidate on one side of every beam and keeps the `width` best.

    The objective is that of the whole sequence, so gains add up over steps. The group of a query holds everything that
    was measured, so its first step is the dense one-shot table.
    """
    if side not in SIDES:
        raise ScoringError(
            f"side = '{side}': new demonstrations go to one of {', '.join(SIDES)}"
        )
    beams: list[list[Demos]] = [
        [()] for _ in pools
    ]  # every pool begins with the empty list
    measured: list[dict[Demos, Score]] = [{} for _ in pools]
    for step in range(1, shots + 1):
        prompts: list[Prompt] = []
        for pool, own in zip(pools, beams, strict=True):
            prompts.extend(
                (
                    pool.query,
                    (*beam, candidate) if side == "right" else (candidate, *beam),
                )
                for beam in own
                for candidate in pool.candidates
                if candidate not in beam
            )
        scores = iter(scorer.score(prompts, purpose, f"{what}, step {step} of {shots}"))
        for place, (pool, own) in enumerate(zip(pools, beams, strict=True)):
            count = sum(len(pool.candidates) - len(beam) for beam in own)
            tried = [next(scores) for _ in range(count)]
            measured[place].update({score.demos: score for score in tried})
            best = sorted(tried, key=lambda score: (-objective(score), score.demos))[
                :width
            ]
            beams[place] = [score.demos for score in best]
    return [
        Group(
            pool.query,
            pool,
            tuple(Member(demos, "beam", front=side == "left") for demos in found),
            tuple(found.values()),
        )
        for pool, found in zip(pools, measured, strict=True)
    ]


def best_of_each_length(
    groups: Sequence[Group], width: int, objective: Objective = truth_objective
) -> list[Group]:
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
            for place in sorted(
                own, key=lambda p: (-objective(group.scores[p]), group.members[p].demos)
            )[:width]
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


def greedy_oracle(
    scorer: Scorer, pools: Sequence[Pool], shots: int
) -> list[list[Score]]:
    """For every pool the scores of the greedy oracle at 1..shots demonstrations; it looks at the answers."""
    groups = beam_groups(
        scorer,
        pools,
        shots=shots,
        width=1,
        objective=oracle_objective,
        purpose=EVALUATION,
        what="greedy oracle",
    )
    out = []
    for group in groups:
        best: dict[int, Score] = {}
        for score in group.scores:
            length = len(score.demos)
            rival = best.get(length)
            if rival is None or (-oracle_objective(score), score.demos) < (
                -oracle_objective(rival),
                rival.demos,
            ):
                best[length] = score
        out.append([best[length] for length in range(1, shots + 1)])
    return out
