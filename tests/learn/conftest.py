"""A small planted world: a demonstration helps as much as its picture resembles the query's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
from torch.nn.functional import normalize

from leverplus.data.types import Group, ItemId, Member, Pool, Reference, Score
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.decode import greedy
from leverplus.learn.policies.settings import PolicyConfig
from leverplus.learn.policies.table import ItemTable

SIZE, WIDTH = 10, 8


def score_of(query: ItemId, demos: tuple[ItemId, ...], p: float) -> Score:
    return Score(
        query=query,
        demos=demos,
        raw="x",
        answer="x",
        accuracy=1.0 if p > 0.5 else 0.0,
        correct=p > 0.5,
        references=(Reference("x", 3, math.log(p)),),
        token_f1=p,
        edit_similarity=0.0,
        tokens=1,
        seconds=0.0,
    )


@dataclass
class Planted:
    """Items with random vectors; gt_prob of a prompt is sigmoid(4 * mean cosine of pictures)."""

    seed: int = 0
    count: int = 60
    table: ItemTable = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.ids = [ItemId(f"i{index}") for index in range(3 * self.count)]
        names = ("image", "text", "answer")
        blocks = {
            name: normalize(
                torch.randn(len(self.ids), WIDTH, generator=generator), dim=-1
            )
            for name in names
        }
        self.table = ItemTable(self.ids, blocks)
        self.generator = generator

    def worth(self, query: ItemId, demos: tuple[ItemId, ...]) -> float:
        if not demos:
            return 0.3
        image = self.table.blocks["image"]
        rows = torch.tensor([self.table.row(demo) for demo in demos])
        return float(
            torch.sigmoid(4.0 * (image[rows] @ image[self.table.row(query)]).mean())
        )

    def pool(self, query: ItemId, size: int = SIZE) -> Pool:
        order = torch.randperm(
            2 * self.count,
            generator=torch.Generator().manual_seed(self.table.row(query)),
        )
        return Pool(
            query,
            tuple(self.ids[self.count + place] for place in order[:size].tolist()),
            "planted",
        )

    def queries(self, held_out: bool = False) -> list[ItemId]:
        return (
            self.ids[self.count - 20 : self.count]
            if held_out
            else self.ids[: self.count - 20]
        )

    def group(
        self,
        query: ItemId,
        lists: list[tuple[ItemId, ...]],
        log_mu: float | None = None,
    ) -> Group:
        members = tuple(Member(demos, "random", log_mu) for demos in lists)
        scores = tuple(
            score_of(query, demos, self.worth(query, demos)) for demos in lists
        )
        return Group(query, self.pool(query), members, scores)

    def groups(self, members: int = 8, shots: tuple[int, ...] = (2,)) -> list[Group]:
        made = []
        for query in self.queries():
            pool = self.pool(query).candidates
            lists = []
            for length in shots:
                for _ in range(members):
                    order = torch.randperm(SIZE, generator=self.generator)[
                        :length
                    ].tolist()
                    lists.append(tuple(pool[place] for place in order))
            log_mu = -math.log(math.perm(SIZE, 2))
            made.append(self.group(query, list(dict.fromkeys(lists)), log_mu))
        return made

    def evaluate(self, policy: Policy) -> Mapping[str, float]:
        """Mean worth of greedy picks for held-out queries."""
        queries = self.queries(held_out=True)
        pools = [self.pool(query) for query in queries]
        with torch.no_grad():
            encoded = policy.prepare(
                self.table.features(queries, [pool.candidates for pool in pools])
            )
            picks = greedy(policy, encoded, 2).positions[:, 0].tolist()
        worth = [
            self.worth(query, tuple(pool.candidates[place] for place in places))
            for query, pool, places in zip(queries, pools, picks, strict=True)
        ]
        return {"reward": sum(worth) / len(worth)}

    def policy(self, seed: int = 0, **changes: object) -> Policy:
        values = {
            "hidden": 16,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "max_shots": 4,
            **changes,
        }
        return build_policy(PolicyConfig(**values), self.table.dims, seed=seed).eval()  # type: ignore[arg-type]


@pytest.fixture
def planted() -> Planted:
    return Planted()
