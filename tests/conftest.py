"""What tests in several rooms share."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported; test processes share the cores

import pytest
from tiny_world import TinyRun, run_tiny


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """One run of the world with seed 0; tests read it and leave it as it is."""
    place = tmp_path_factory.mktemp("tiny")
    return run_tiny(place / "run", place / "scores.db")
