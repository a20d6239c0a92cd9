"""Active learning: the selector in training picks which prompts the model is asked to score next.

For a fresh query only one random candidate in fifty is of any use, so a dense table mostly measures what is plainly
useless. Here the selector proposes its best candidates, a few are added by chance, and the truth about them is
measured: where it is right it becomes sharper, where it is wrong it meets its own mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leverplus.data.rundir import read_json, write_json
from leverplus.data.types import Demos, Group, Member, Pool
from leverplus.learn.data.mining import keep_groups
from leverplus.learn.data.rows import Row
from leverplus.learn.data.search import scored_groups
from leverplus.learn.data.sources import source_seed
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.table import ItemTable
from leverplus.scores.scorer import Scorer
from leverplus.scores.settings import ScoreSection

BATCH = 256
"""Pools that the selector reads at once."""

ORIGIN = "acquired"
"""Where a list asked for in a round comes from, as probe.json and exported groups name it since 0.1."""

Turn = tuple[int, int]
"""The place of a pool, and how many demonstrations are shown already when it is asked about."""


@dataclass(frozen=True)
class AskingPlan:
    """How the model is asked in rounds: the settings, the calls for all rounds together, where prompts are kept."""

    section: ScoreSection
    calls: int
    searched: int  # pools at the front that were searched before the first round
    seed: int
    folder: Path

    @property
    def turns_per_round(self) -> int:
        """One turn asks for the list so far, and for it with each proposed candidate behind it."""
        calls_per_turn = self.section.best + self.section.chance + 1
        return self.calls // (self.section.rounds * calls_per_turn)

    @property
    def most_pools(self) -> int:
        """Pools that can have a turn before the calls are spent; more of them would not change any turn."""
        return self.searched + self.section.rounds * self.turns_per_round


class ActiveRows:
    """Rows of the searched groups and of everything that the rounds have asked so far.

    The prompts of a round are written to the plan's folder before the model is asked, so that a run that goes on asks
    for the same ones, whatever the selector has become since.
    """

    def __init__(
        self,
        plan: AskingPlan,
        scorer: Scorer,
        pools: Sequence[Pool],
        table: ItemTable,
        *,
        searched: Sequence[Group],
        make_rows: Callable[[Sequence[Group]], list[Row]],
    ) -> None:
        self.plan, self.scorer, self.make_rows = plan, scorer, make_rows
        self.pools, self.table = pools, table
        self.turns = turns(len(pools), plan.searched, plan.section.depth)
        self.waiting: list[Sequence[Group]] = [searched]
        self.known: list[Row] = []
        self.done = 0  # rounds asked

    def rows(
        self,
        policy: Policy,
        epoch: int,
    ) -> Sequence[Row]:
        """The rows of an epoch (from 0); the model is asked before epochs 1..rounds."""
        while self.done < min(epoch, self.plan.section.rounds):
            self._ask(policy)
        return self.asked_rows()

    def asked_rows(self) -> list[Row]:
        """What was asked so far as rows to learn from; each round's rewards are computed when somebody wants them."""
        for groups in self.waiting:
            kept = keep_groups(groups, self.plan.section.keep, self.plan.section.tiers)
            made = self.make_rows(kept)
            self.known = [*self.known, *[row for row in made if len(row.rewards) > 1]]
        self.waiting = []
        return self.known

    def replay(self, policy: Policy) -> None:
        """Ask again for the rounds that the folder holds, which the store answers."""
        while self._path(self.done + 1).is_file():
            self._ask(policy)

    def _path(self, number: int) -> Path:
        return self.plan.folder / f"round{number:02d}.json"

    def _ask(self, policy: Policy) -> None:
        """One round: let the selector propose prompts unless the folder holds this round's, then have them scored."""
        self.done += 1
        own = list(islice(self.turns, self.plan.turns_per_round))
        path = self._path(self.done)
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            write_json(path, {"prompts": self._proposed(policy, own)})
        members = []
        for prompts in read_json(path)["prompts"]:
            members.append([Member(tuple(demos), ORIGIN) for demos in prompts])
        pools = [self.pools[place] for place, _ in own]
        what = f"round {self.done} of {self.plan.section.rounds}"
        self.waiting.append(scored_groups(self.scorer, pools, members, what))

    def _proposed(
        self,
        policy: Policy,
        own: Sequence[Turn],
    ) -> list[list[Demos]]:
        """The prompts of every turn; turns of the same depth are read together."""
        section = self.plan.section
        by_depth: dict[int, list[Turn]] = {}
        for turn in own:
            by_depth.setdefault(turn[1], []).append(turn)
        found: dict[Turn, list[Demos]] = {}
        for depth, alike in sorted(by_depth.items()):
            prompts = propose(
                policy,
                self.table,
                [self.pools[place] for place, _ in alike],
                depth,
                best=section.best,
                chance=section.chance,
                seed=self.plan.seed,
            )
            found.update(zip(alike, prompts, strict=True))
        return [found[turn] for turn in own]


def turns(
    pools: int,
    first: int,
    depth: int,
) -> Iterator[Turn]:
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


def propose(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
    depth: int,
    *,
    best: int,
    chance: int,
    seed: int,
) -> list[list[Demos]]:
    """For every pool the prompts to be measured: what the selector would show first, each with one more behind it.

    The first `depth` demonstrations are the selector's own; what is tried behind them are its best candidates for that
    place and some by chance. The first prompt of a pool is the beginning alone.
    """
    policy.eval()
    purpose = f"acquire {depth}" if depth else "acquire"
    chosen: list[list[Demos]] = []
    for start in range(0, len(pools), BATCH):
        part = pools[start : start + BATCH]
        beginnings, logits = _read(policy, table, part, depth)
        for pool, beginning, scores in zip(
            part,
            beginnings,
            logits,
            strict=True,
        ):
            own = scores[: len(pool)]  # (K,)
            order = own.argsort(descending=True, stable=True).tolist()
            # what is shown already has a logit of -inf and comes last
            order = order[: len(pool) - depth]
            rest = order[best:]
            rng = np.random.default_rng(source_seed(seed, purpose, pool.query))
            tried = order[:best]
            for place in rng.permutation(len(rest))[:chance]:
                tried.append(rest[int(place)])
            shown = tuple(pool.candidates[k] for k in beginning)
            prompts: list[Demos] = [shown]
            for place in tried:
                prompts.append((*shown, pool.candidates[place]))
            chosen.append(prompts)
    return chosen


@torch.no_grad()
def _read(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
    depth: int,
) -> tuple[list[list[int]], Tensor]:
    """Places of the `depth` demonstrations that the selector shows first; logits (B, K) of what may come behind."""
    queries = [pool.query for pool in pools]
    features = table.features(queries, [pool.candidates for pool in pools])
    encoded = policy.prepare(features)
    state, shown = policy.start(encoded, 1, depth + 1), []
    for _ in range(depth):
        action = policy.step(encoded, state, allow_stop=False).argmax(-1)  # (B, 1)
        shown.append(action[:, 0])
        state = policy.advance(encoded, state, action)
    logits = policy.step(encoded, state, allow_stop=False)[:, 0]  # (B, K)
    beginnings = torch.stack(shown, dim=-1).tolist() if shown else [[] for _ in pools]
    return beginnings, logits
