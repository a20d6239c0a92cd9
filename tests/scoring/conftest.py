"""A scorer over a tiny task and a fresh store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_task import TinyBackend, open_scorer

from leverplus.scoring.scorer import Scorer


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
