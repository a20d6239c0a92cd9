"""What tests in several rooms share."""

from __future__ import annotations

import gc
import os
import tempfile

# read when torch is first imported; test processes share the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browsing
import pytest
from forked import Forker
from tiny_world import TinyRun, run_tiny

from leverplus.arms import labels

HOME = tempfile.TemporaryDirectory(prefix="leverplus-tests-")
# what a command keeps where nobody names a store: not in the user's own
os.environ.setdefault("LEVERPLUS_STORE", f"{HOME.name}/scores.db")

labels.LEARNT_FROM = (
    400  # time grows with the third power; whoever tests what labels teach sets another
)

SLOW = {"chromium_browser", "forker"}
"""Fixtures whose tests are slow: a browser, and processes that are killed."""
LONGEST = (
    "lab/test_lab_gallery.py", "matrix/test_matrix.py", "test_real_runs.py", "matrix/test_plan_recipes.py",
    "web/test_view_browser.py", "test_pages.py", "models/test_ray.py", "learn/test_active.py",
    "web/test_report_browser.py", "models/test_lever_kills.py", "run/test_idle.py", "learn/test_loop.py",
    "learn/test_expected_accuracy.py", "test_nothing_lost.py", "models/hf/test_hf_wiring.py", "test_pipeline.py",
    "run/test_fit.py", "test_smollm_run.py", "models/test_server_faults.py", "test_shipped_recipes.py",
    "bundle/test_bundle.py",
)  # fmt: skip
"""Files that take longest, which several workers must begin with: one of them at the end keeps a core alone."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests as slow by their fixtures, and puts the longest files first; the order inside a file stays."""
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(LONGEST)}
    for item in items:
        if SLOW.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


def pytest_collection_finish() -> None:
    """Puts what was collected out of the garbage collector's sight, which would look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """One run of the world with seed 0; tests read it and leave it as it is."""
    place = tmp_path_factory.mktemp("tiny")
    return run_tiny(place / "run", place / "scores.db")


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """Starts processes that have their imports already, so that tests can kill many of them."""
    made = Forker()
    yield made
    made.close()


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
