"""More measurements for flat groups.

A group is flat when all its sequences score the same. Mining tries sequences that its own measurements make likely
to differ, and measures them on that query: no label is ever taken over from another query or made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations

from leverplus.data.types import Demos, Group, ItemId, Member, Score
from leverplus.learn.maths import signal
from leverplus.scores.scorer import Prompt, Scorer

ROUND = 8
"""Sequences tried for a query before its group is looked at again."""


def tie_breaker(score: Score) -> float:
    """What tells sequences of equal accuracy apart: gt_prob, or how near the answer came where none was measured."""
    if score.weighed:
        return score.gt_prob
    return score.relevance


@dataclass(frozen=True)
class Lack:
    """What a flat group lacks: something better, something worse, or both."""

    better: bool
    worse: bool

    def __bool__(self) -> bool:
        return self.better or self.worse


def lack_of(scores: Sequence[Score], value: float) -> Lack:
    """All wrong (value 0): something better. All right (value 1): something worse. In between: both."""
    values = [score.accuracy for score in scores]
    return Lack(
        value < 1.0 and max(values) <= value, value > 0.0 and min(values) >= value
    )


def flat_value(group: Group) -> float | None:
    """The accuracy that all sequences of a group share; None when they differ or there are none."""
    values = [score.accuracy for score in group.scores if score.demos]
    if values and signal.is_flat(values):
        return values[0]
    return None


def mine_flat(
    scorer: Scorer, groups: Sequence[Group], *, shots: int, calls: int
) -> list[Group]:
    """Give flat groups what they lack, with at most `calls` further calls a group; the others stay as they are.

    Candidates are ranked by the mean `tie_breaker` of the measured sequences they stand in. Better ones are sought
    among sequences of the best candidates, worse ones among the worst, growing outwards.
    """
    found = list(groups)
    searches: dict[int, _GroupSearch] = {}
    for row, group in enumerate(groups):
        shared = flat_value(group)
        if shared is not None:
            searches[row] = _GroupSearch(group, shots, shared)
    spent = 0  # calls per group: all open groups are asked in step, so that one request asks for many
    while searches and spent < calls:
        count = min(ROUND, calls - spent)
        tried = {row: search.propose(count) for row, search in searches.items()}
        prompts: list[Prompt] = [
            (groups[row].query, demos) for row, own in tried.items() for demos in own
        ]
        scores = iter(scorer.score(prompts, what="mining flat groups"))
        for row, own in tried.items():
            searches[row].scores += [next(scores) for _ in own]
        spent += count
        for row in [
            row for row, own in tried.items() if not own or not searches[row].lack
        ]:
            found[row] = searches.pop(row).result()
    for row, search in searches.items():
        found[row] = search.result()
    return found


class _GroupSearch:
    """The search of one flat group: what is known, and two orders of sequences to try."""

    def __init__(self, group: Group, shots: int, value: float) -> None:
        self.group = group
        self.value = value
        self.scores: list[Score] = []
        self.known = {score.demos for score in group.scores}
        ranked = _ranked(group)
        self.best, self.worst = (
            sequences_best_first(ranked, shots),
            sequences_best_first(ranked[::-1], shots),
        )

    @property
    def lack(self) -> Lack:
        return lack_of(
            [score for score in (*self.group.scores, *self.scores) if score.demos],
            self.value,
        )

    def propose(self, count: int) -> list[Demos]:
        """Up to `count` new sequences, from both ends when both are lacking."""
        lack = self.lack
        ends = [
            end
            for end, wanted in ((self.best, lack.better), (self.worst, lack.worse))
            if wanted
        ]
        chosen: list[Demos] = []
        for place, end in enumerate(ends):
            share = (count - len(chosen)) // (len(ends) - place)
            fresh = (
                demos
                for demos in end
                if demos not in self.known and demos not in chosen
            )
            chosen += list(islice(fresh, share))
        self.known.update(chosen)
        return chosen

    def result(self) -> Group:
        members = tuple(Member(score.demos, "mined") for score in self.scores)
        return Group(
            self.group.query,
            self.group.pool,
            self.group.members + members,
            self.group.scores + tuple(self.scores),
        )


def _ranked(group: Group) -> list[ItemId]:
    """Candidates, best first, by the mean promise of what they stand in; those never tried count as average."""
    values: dict[ItemId, list[float]] = {}
    for score in group.scores:
        for demo in score.demos:
            values.setdefault(demo, []).append(tie_breaker(score))
    everything = [value for own in values.values() for value in own]
    average = sum(everything) / len(everything)
    means = {}
    for item, own in values.items():
        means[item] = sum(own) / len(own)
    return sorted(group.pool.candidates, key=lambda item: -means.get(item, average))


def sequences_best_first(ranked: Sequence[ItemId], shots: int) -> Iterator[Demos]:
    """Every ordered sequence of `shots` items, those of higher-ranked items first; the better item stands last."""
    for size in range(shots, len(ranked) + 1):
        newest = ranked[size - 1]
        for demos in permutations(reversed(ranked[:size]), shots):
            if newest in demos:
                yield demos
