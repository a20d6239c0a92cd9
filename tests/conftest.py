"""What tests in several rooms share."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported; test processes share the cores

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browsing
import pytest
from forked import Forker
from tiny_world import TinyRun, run_tiny

from leverplus.ranking import labels

labels.LEARNT_FROM = 400  # time grows with the third power; whoever tests what labels teach sets another

SLOW = {"chromium_browser", "forker"}
"""Fixtures whose tests are slow: a browser, and processes that are killed."""
MEASURED = Path(__file__).with_name("slow.txt")
"""Tests that were measured to be slow, a line each; `python benchmarks/slow_tests.py` writes them."""

LONGEST = (
    "lab/test_lab_gallery.py", "matrix/test_matrix.py", "test_real_runs.py", "matrix/test_plan_recipes.py",
    "view/test_view_browser.py", "test_pages.py", "engine/test_ray.py", "training/test_active.py",
    "report/test_report_browser.py", "backends/test_lever_kills.py", "recipe/test_idle.py", "training/test_loop.py",
    "training/test_expected_accuracy.py", "test_nothing_lost.py", "backends/hf/test_hf_wiring.py", "test_pipeline.py",
    "fitting/test_fit.py", "test_smollm_run.py", "backends/test_faults.py", "test_shipped_recipes.py",
    "selector/test_bundle.py",
)  # fmt: skip
"""Files that take longest, which several workers must begin with: one of them at the end keeps a core alone."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests as slow by their fixtures, and puts the longest files first; the order inside a file stays."""
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(LONGEST)}
    measured = set(MEASURED.read_text(encoding="utf-8").splitlines())
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if {name, name.split("[")[0]} & measured or SLOW.intersection(getattr(item, "fixturenames", ())):
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
