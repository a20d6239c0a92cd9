"""Contexts, keys and scores for the tests of the store."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from leverplus.store.db import ScoreStore
from leverplus.store.keys import Context, score_key
from leverplus.types import ItemId, Reference, Score


class Maker:
    """Makes records in one context; ids stand for their own content."""

    def __init__(self, model: str = "tiny") -> None:
        self.context = Context.of(
            {"model": model, "template": "plain"}, task="world", task_version="1", metric="vqa", postprocess="line"
        )

    def digest(self, name: str) -> bytes:
        return blake2b(name.encode(), digest_size=16).digest()

    def key(self, query: str, *demos: str) -> bytes:
        return score_key(self.context.digest, self.digest(query), [self.digest(demo) for demo in demos])

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
        return Score(query=ItemId(query), demos=tuple(map(ItemId, demos)), **(values | changes))

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
