"""Active learning: the selector in training picks which prompts the model is asked to score next.

For a fresh query only one random candidate in fifty is of any use, so a dense table mostly measures what is plainly
useless. Here the selector proposes its best candidates, a few are added by chance, and the truth about them is
measured: where it is right it becomes sharper, where it is wrong it meets its own mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from leverplus.data.rundir import read_json, write_json
from leverplus.data.types import Demos, Group, Member, Pool
from leverplus.learn.data.plan import keep_groups
from leverplus.learn.data.rows import Row
from leverplus.learn.data.search import scored_groups
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.items import read_pools
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.seeds import source_seed
from leverplus.scores.scorer import Scorer
from leverplus.scores.settings import ScoreSection

ORIGIN = "acquired"
"""Where a list asked for in a round comes from, as probe.json and exported groups name it since 0.1."""


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
        """One turn asks about a pool: without demonstrations, and with each proposed one."""
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
        self.plan = plan
        self.scorer = scorer
        self.make_rows = make_rows
        self.pools = pools
        self.table = table
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
            self.known = self.known + [row for row in made if len(row.rewards) > 1]
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
        plan = self.plan
        size = self.plan.turns_per_round
        start = plan.searched + self.done * size
        pools = self.pools[start : start + size]
        self.done += 1
        path = self._path(self.done)
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            prompts = propose(
                policy,
                self.table,
                pools,
                best=plan.section.best,
                chance=plan.section.chance,
                seed=plan.seed,
            )
            write_json(path, {"prompts": prompts})
        members = []
        for prompts in read_json(path)["prompts"]:
            members.append([Member(tuple(demos), ORIGIN) for demos in prompts])
        what = f"round {self.done} of {plan.section.rounds}"
        self.waiting.append(scored_groups(self.scorer, pools, members, what))


def propose(
    policy: Policy,
    table: ItemTable,
    pools: Sequence[Pool],
    *,
    best: int,
    chance: int,
    seed: int,
) -> list[list[Demos]]:
    """For every pool the prompts to be measured: no demonstration, then one each: the selector's best, and some by
    chance."""
    chosen: list[list[Demos]] = []
    for part, encoded in read_pools(policy, table, pools):
        with torch.no_grad():
            state = policy.start(encoded, 1, 1)
            logits = policy.step(encoded, state, allow_stop=False)[:, 0]  # (B, K)
        for pool, scores in zip(part, logits, strict=True):
            own = scores[: len(pool)]  # (K,)
            order = own.argsort(descending=True, stable=True).tolist()
            tried = order[:best]
            rest = order[best:]
            rng = np.random.default_rng(source_seed(seed, "acquire", pool.query))
            for place in rng.permutation(len(rest))[:chance]:
                tried.append(rest[place])
            prompts: list[Demos] = [()]
            for place in tried:
                prompts.append((pool.candidates[place],))
            chosen.append(prompts)
    return chosen
