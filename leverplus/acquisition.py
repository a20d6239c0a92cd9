"""Rounds of asking while a selector trains: it says what to ask, and learns from what was answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

from leverplus.run import Run
from leverplus.rundir import read_json, write_json

if TYPE_CHECKING:
    from leverplus.policies.base import Policy
    from leverplus.training.groups import ItemTable, Row
    from leverplus.types import Demos, Group


class Acquisition:
    """Rounds in which the selector in training says what to ask next; what was asked is kept in the run folder."""

    def __init__(self, run: Run, groups: Sequence[Group], table: ItemTable) -> None:
        self.run, self.table = run, table
        self.pools = run.pools(run.shuffled_queries())[0]
        section, first = run.recipe.score, len(run.training_queries())
        left = run.affordable_calls() - first * section.cost(run.recipe.pool.size)
        self.per_round = left // (section.rounds * (section.best + section.chance + 1))
        self.turns = turns(len(self.pools), first, section.depth)
        self.waiting: list[Sequence[Group]] = [groups]
        self.known: list[Row] = []
        self.done = 0

    @property
    def rows(self) -> list[Row]:
        """What was asked so far as rows to learn from; made when somebody does."""
        for groups in self.waiting:
            self.known = [*self.known, *self._rows(groups)]
        self.waiting = []
        return self.known

    def __call__(self, policy: Policy, epoch: int) -> Sequence[Row]:
        """The rows of an epoch (from 0); the model is asked before epochs 1..rounds."""
        while self.done < min(epoch, self.run.recipe.score.rounds):
            self.done += 1
            self._ask(policy)
        return self.rows

    def replay(self, policy: Policy) -> None:
        """The rounds that were asked when the stage was trained, from the run folder."""
        while self._path(self.done + 1).is_file():
            self.done += 1
            self._ask(policy)

    def _path(self, number: int) -> Path:
        return self.run.folder / "acquired" / f"round{number:02d}.json"

    def _ask(self, policy: Policy) -> None:
        from leverplus.scoring.search import scored_groups
        from leverplus.types import Member

        turns = list(islice(self.turns, self.per_round))
        path = self._path(self.done)
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            write_json(path, {"prompts": self._proposed(policy, turns)})
        members = [[Member(tuple(demos), "acquired") for demos in prompts] for prompts in read_json(path)["prompts"]]
        what = f"round {self.done} of {self.run.recipe.score.rounds}"
        groups = scored_groups(self.run.scorer, [self.pools[place] for place, _ in turns], members, what)
        self.waiting.append(groups)

    def _proposed(self, policy: Policy, turns: Sequence[tuple[int, int]]) -> list[list[Demos]]:
        from leverplus.scoring.acquire import propose

        section = self.run.recipe.score
        found: dict[tuple[int, int], list[Demos]] = {}
        for depth in sorted({depth for _, depth in turns}):
            own = [turn for turn in turns if turn[1] == depth]
            pools = [self.pools[place] for place, _ in own]
            prompts = propose(
                policy, self.table, pools, depth, best=section.best, chance=section.chance, seed=self.run.seed
            )
            found.update(zip(own, prompts, strict=True))
        return [found[turn] for turn in turns]

    def _rows(self, groups: Sequence[Group]) -> list[Row]:
        from leverplus.scoring.mining import keep_groups
        from leverplus.scoring.search import top_members
        from leverplus.training.groups import rows_from_groups

        recipe = self.run.recipe
        kept = keep_groups(groups, recipe.score.keep, recipe.score.tiers)
        own = top_members(kept, recipe.train.imitate) if recipe.train.asking == "sft" else kept
        select = recipe.select
        rows = rows_from_groups(
            own,
            self.table,
            recipe.reward,
            stop=select.stop,
            max_shots=select.max_shots,
            whole=kept,
            expect=self.run.expectation,
        )
        return [row for row in rows if len(row.rewards) > 1]


def turns(pools: int, first: int, depth: int) -> Iterator[tuple[int, int]]:
    """Which pool is asked about next and how many demonstrations it has by then, from pool `first` on.

    Every other turn is about the first place, the others about the later ones in turn. When all pools have had their
    turn they come round again, for the other kind of turn first; without later places nothing is asked twice.
    """
    for number in count(first):
        lap, place = divmod(number, pools)
        if depth > 1:
            later = (number + lap) % 2
            yield place, later * (1 + (number // 2) % (depth - 1))
        elif lap == 0:
            yield place, 0
        else:
            return
