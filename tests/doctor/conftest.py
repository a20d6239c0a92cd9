"""Small real trainings: a demonstration is worth how much its picture resembles the query's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from leverplus.data.types import Group, ItemId, Member, Pool, Reference, Score
from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.data.rows import FixedRows, Row
from leverplus.learn.loop import StageInputs, run_stage
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.settings import SECTIONS
from leverplus.learn.stages import frozen_copy
from leverplus.run.recipe import Recipe, build_recipe

QUERIES, POOL, SHOTS, MEMBERS = 32, 10, 2, 12


class Planted:
    """Queries with pools of random items, groups of random pairs, and a recipe that trains on them."""

    def __init__(self, **values: Mapping[str, Any]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids = [ItemId(f"i{n}") for n in range(QUERIES + 60)]
        blocks = {
            k: normalize(torch.randn(len(self.ids), 8, generator=generator), dim=-1)
            for k in ("image", "text")
        }
        self.table = ItemTable(self.ids, {**blocks, "answer": blocks["text"]})
        select = {
            "hidden": 16,
            "dropout": 0.3,
            "attention_dropout": 0.0,
            "max_shots": 4,
            "temperature": 0.5,
        }
        base = {
            "train": {"stages": ["sft", "rce", "grpo"]},
            "select": select,
            "sft": {"epochs": 4, "batch_size": 8, "labels": "top", "lr": 5e-3},
            "rce": {"epochs": 3, "batch_size": 16},
            "grpo": {"epochs": 4, "batch_size": 16},
        }
        merged = {
            key: {**base.get(key, {}), **values.get(key, {})}
            for key in {**base, **values}
        }
        stages = merged["train"]["stages"]
        merged = {
            key: table
            for key, table in merged.items()
            if key not in SECTIONS or key in stages
        }
        self.recipe: Recipe = build_recipe("planted", merged, "planted")
        self.pools = [self._pool(query, generator) for query in self.ids[:QUERIES]]
        self.groups = [self._group(pool, generator) for pool in self.pools]

    def _pool(self, query: ItemId, generator: torch.Generator) -> Pool:
        places = torch.randperm(60, generator=generator)[:POOL].tolist()
        return Pool(
            query, tuple(self.ids[QUERIES + place] for place in places), "planted"
        )

    def _group(self, pool: Pool, generator: torch.Generator) -> Group:
        found: dict[tuple[ItemId, ...], None] = {}
        while len(found) < MEMBERS:
            order = torch.randperm(POOL, generator=generator)[:SHOTS].tolist()
            found[tuple(pool.candidates[place] for place in order)] = None
        members = tuple(Member(demos, "random") for demos in found)
        return Group(
            pool.query,
            pool,
            members,
            tuple(self.score(pool.query, demos) for demos in found),
        )

    def score(self, query: ItemId, demos: tuple[ItemId, ...]) -> Score:
        image = self.table.blocks["image"]
        rows = torch.tensor([self.table.row(demo) for demo in demos])
        p = float(
            torch.sigmoid(4.0 * (image[rows] @ image[self.table.row(query)]).mean())
        )
        right = p > 0.55
        references = (Reference("x", 3, math.log(p)),)
        return Score(
            query,
            demos,
            "x",
            "x" if right else "y",
            float(right),
            right,
            references,
            p,
            0.0,
            1,
            0.0,
        )

    def policy(self) -> Policy:
        return build_policy(self.recipe.select, self.table.dims, seed=0).eval()

    def rows(self) -> list[Row]:
        return rows_from_groups(
            self.groups, self.table, self.recipe.reward, max_shots=4
        )

    def train(self, folder: Path) -> Path:
        """Every stage of the recipe; writes what a run folder holds."""
        import tomli_w

        folder.mkdir(parents=True, exist_ok=True)
        values = {
            k: {n: v for n, v in s.items() if v is not None}
            for k, s in self.recipe.values().items()
        }
        (folder / "resolved.toml").write_text(tomli_w.dumps(values))
        policy, anchors = self.policy(), {}
        for name, config in self.recipe.stages.items():
            run_stage(
                policy,
                FixedRows(self.rows()),
                StageInputs(
                    name, config, self.table, folder=folder, anchors=dict(anchors)
                ),
            )
            anchors[name] = frozen_copy(policy)
        return folder


@pytest.fixture
def plant() -> Callable[..., Planted]:
    return Planted
