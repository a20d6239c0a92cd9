"""Search for good demonstrations with the frozen model: dense one-shot tables, beams, random and retrieved sequences.

Every function returns prompts' scores as groups; every label is a real measurement of that query. Sequences are stored
in prompt order. On the right, next to the query, all extensions of a sequence share its computation; on the left every
extension changes all that follows, so that nothing is shared.
"""

from __future__ import annotations

from collections import Counter
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
    if score.weighed:
        return score.gt_prob
    return oracle_objective(score)


def oracle_objective(score: Score) -> float:
    """What an oracle maximises: accuracy first; among equals the probability of the truth, or how near it came."""
    # the second part is at most 0.001, so it decides among equal accuracies only
    return score.accuracy + 1e-3 * (score.gt_prob if score.weighed else score.relevance)


def dense_groups(scorer: Scorer, pools: Sequence[Pool]) -> list[Group]:
    """One-shot tables: every candidate of every pool alone, and the query without demonstrations."""
    members = []
    for pool in pools:
        own = [Member((), "dense")]
        for candidate in pool.candidates:
            own.append(Member((candidate,), "dense"))
        members.append(own)
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
        found = [next(scores) for _ in own]
        groups.append(Group(pool.query, pool, tuple(own), tuple(found)))
    return groups


def join_groups(first: Group, second: Group) -> Group:
    """One group of two over the same pool; a sequence in both stays where the first has it."""
    if (first.query, first.pool) != (second.query, second.pool):
        raise ScoringError(
            f"groups of queries {first.query} and {second.query} cannot be joined: their pools differ"
        )
    known = {member.demos for member in first.members}
    members = list(first.members)
    scores = list(first.scores)
    for member, score in zip(second.members, second.scores, strict=True):
        if member.demos not in known:
            members.append(member)
            scores.append(score)
    return Group(first.query, first.pool, tuple(members), tuple(scores))


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
    # every pool begins with the empty list
    beams: list[list[Demos]] = [[()] for _ in pools]
    measured: list[dict[Demos, Score]] = [{} for _ in pools]
    for step in range(1, shots + 1):
        tried = []
        for pool, own in zip(pools, beams, strict=True):
            tried.append(_longer(pool, own, side))
        prompts: list[Prompt] = []
        for pool, lists in zip(pools, tried, strict=True):
            prompts += [(pool.query, demos) for demos in lists]
        scores = iter(scorer.score(prompts, purpose, f"{what}, step {step} of {shots}"))
        for place, lists in enumerate(tried):
            found = [next(scores) for _ in lists]
            measured[place].update({score.demos: score for score in found})
            found.sort(key=lambda score: (-objective(score), score.demos))
            beams[place] = [score.demos for score in found[:width]]
    groups = []
    for pool, known in zip(pools, measured, strict=True):
        members = [Member(demos, "beam", front=side == "left") for demos in known]
        groups.append(Group(pool.query, pool, tuple(members), tuple(known.values())))
    return groups


def _longer(pool: Pool, beams: Sequence[Demos], side: str) -> list[Demos]:
    """Every list of a beam with one more candidate on one side."""
    longer: list[Demos] = []
    for beam in beams:
        for candidate in pool.candidates:
            if candidate in beam:
                continue
            new = (candidate,)
            longer.append(beam + new if side == "right" else new + beam)
    return longer


def best_of_each_length(
    groups: Sequence[Group], width: int, objective: Objective = truth_objective
) -> list[Group]:
    """The `width` best sequences of every length of every group: what supervised training imitates."""
    kept = []
    for group in groups:
        ranked = []
        for member, score in zip(group.members, group.scores, strict=True):
            if member.demos:
                key = (len(member.demos), -objective(score), member.demos)
                ranked.append((key, member, score))
        ranked.sort(key=lambda own: own[0])
        taken: Counter[int] = Counter()
        members = []
        scores = []
        for (length, *_), member, score in ranked:
            taken[length] += 1
            if taken[length] <= width:
                members.append(member)
                scores.append(score)
        kept.append(Group(group.query, group.pool, tuple(members), tuple(scores)))
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
    best = best_of_each_length(groups, 1, oracle_objective)
    return [list(group.scores) for group in best]
