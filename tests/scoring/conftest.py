"""A scorer over a tiny task and a fresh store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_task import TinyBackend, TinyTask, open_scorer
from torch.nn.functional import normalize

from leverplus.policies.base import Policy
from leverplus.policies.build import build_policy
from leverplus.policies.items import ItemTable
from leverplus.recipe.selection import PolicyConfig
from leverplus.scoring.scorer import Scorer
from leverplus.types import ItemId, Pool


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "scores.db"


@pytest.fixture
def backend() -> TinyBackend:
    return TinyBackend()


@pytest.fixture
def scorer(store_path: Path, backend: TinyBackend) -> Iterator[Scorer]:
    opened = open_scorer(store_path, backend)
    yield opened
    opened.store.close()


@pytest.fixture
def pools() -> list[Pool]:
    """Six candidates for every one of five queries."""
    return [
        Pool(ItemId(f"q{row}"), tuple(ItemId(f"d{(7 * row + 3 * place) % 20}") for place in range(6)), "tiny")
        for row in range(5)
    ]


@pytest.fixture(scope="session")
def table() -> ItemTable:
    """Random unit vectors of every item of the tiny task."""
    ids = [item.id for split in ("train", "dev") for item in TinyTask().items(split)]
    generator = torch.Generator().manual_seed(1)
    names = ("image", "text", "answer")
    return ItemTable(ids, {name: normalize(torch.randn(len(ids), 8, generator=generator), dim=-1) for name in names})


@pytest.fixture(scope="session")
def policy(table: ItemTable) -> Policy:
    return build_policy(PolicyConfig(hidden=16, head_hidden=8, temperature=0.5), table.dims, seed=2).eval()
