"""A scorer over a tiny task and a fresh store; contexts, keys and scores for the tests of the store."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest
import torch
from tiny_task import TinyBackend, TinyTask, open_scorer
from torch.nn.functional import normalize

from leverplus.data.types import ItemId, Pool, Reference, Score
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.settings import PolicyConfig
from leverplus.learn.policies.table import ItemTable
from leverplus.scores.keys import Context, score_key
from leverplus.scores.scorer import Scorer
from leverplus.scores.store import ScoreStore


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
        Pool(
            ItemId(f"q{row}"),
            tuple(ItemId(f"d{(7 * row + 3 * place) % 20}") for place in range(6)),
            "tiny",
        )
        for row in range(5)
    ]


@pytest.fixture(scope="session")
def table() -> ItemTable:
    """Random unit vectors of every item of the tiny task."""
    ids = [item.id for split in ("train", "dev") for item in TinyTask().items(split)]
    generator = torch.Generator().manual_seed(1)
    names = ("image", "text", "answer")
    return ItemTable(
        ids,
        {
            name: normalize(torch.randn(len(ids), 8, generator=generator), dim=-1)
            for name in names
        },
    )


@pytest.fixture(scope="session")
def policy(table: ItemTable) -> Policy:
    return build_policy(
        PolicyConfig(hidden=16, temperature=0.5), table.dims, seed=2
    ).eval()


class Maker:
    """Makes records in one context; ids stand for their own content."""

    def __init__(self, model: str = "tiny") -> None:
        self.context = Context.of(
            {"model": model, "template": "plain"},
            task="world",
            task_version="1",
            metric="vqa",
            cut="line",
        )

    def digest(self, name: str) -> bytes:
        return blake2b(name.encode(), digest_size=16).digest()

    def key(self, query: str, *demos: str) -> bytes:
        return score_key(
            self.context.digest,
            self.digest(query),
            [self.digest(demo) for demo in demos],
        )

    def score(self, query: str, *demos: str, **changes: object) -> Score:
        values: dict[str, object] = {
            "raw": " red\n",
            "answer": "red",
            "accuracy": 2 / 3,
            "correct": True,
            "references": (Reference("red", 2, -0.1), Reference("blue", 1, -2.5)),
            "token_f1": 1.0,
            "edit_similarity": 0.75,
            "tokens": 120,
            "seconds": 0.02,
        }
        return Score(
            query=ItemId(query), demos=tuple(map(ItemId, demos)), **(values | changes)
        )

    def record(self, query: str, *demos: str, **changes: object) -> tuple[bytes, Score]:
        return self.key(query, *demos), self.score(query, *demos, **changes)

    def records(self, count: int, queries: int = 5) -> list[tuple[bytes, Score]]:
        return [self.record(f"q{i % queries}", f"d{i}") for i in range(count)]


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def other_maker() -> Maker:
    return Maker("other")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ScoreStore]:
    with ScoreStore(tmp_path / "scores.db") as opened:
        yield opened
