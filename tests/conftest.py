"""What tests in several rooms share."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported; test processes share the cores

from collections.abc import Iterator
from typing import Any

import browsing
import pytest
from tiny_world import TinyRun, run_tiny


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """One run of the world with seed 0; tests read it and leave it as it is."""
    place = tmp_path_factory.mktemp("tiny")
    return run_tiny(place / "run", place / "scores.db")


@pytest.fixture(scope="module")
def chromium_browser() -> Iterator[Any]:
    """A Chromium for the tests of one module, so that its event loop is gone before others need theirs."""
    if browsing.LACKING:
        pytest.skip(browsing.LACKING)
    with browsing.chromium() as browser:
        yield browser


@pytest.fixture
def visitor(chromium_browser: Any) -> Iterator[browsing.Visitor]:
    """Somebody who looks at pages; whatever a page did that it should not fails the test."""
    someone = browsing.Visitor(chromium_browser)
    yield someone
    someone.close()
    assert someone.problems == []
