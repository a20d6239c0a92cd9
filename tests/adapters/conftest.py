"""Bundles that the tests of all adapters use."""

from __future__ import annotations

from pathlib import Path

import pytest
from adapted import animals, make_bundle, png

from leverplus.bundle.bundle import TRUST
from leverplus.bundle.selector import Selector


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundles of these tests name an embedder of their own."""
    monkeypatch.setenv(TRUST, "plain_words")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle of six questions with a picture each."""
    return make_bundle(tmp_path / "bundle", animals())


@pytest.fixture
def selector(folder: Path) -> Selector:
    return Selector.load(folder)


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """A bundle of the same questions without pictures."""
    return make_bundle(tmp_path / "text-bundle", animals(pictures=False))


@pytest.fixture
def text_selector(text_folder: Path) -> Selector:
    return Selector.load(text_folder)


@pytest.fixture
def mixed_selector(tmp_path: Path) -> Selector:
    """The same questions, every second one with a picture."""
    rows = [
        row if place % 2 else {**row, "image": None}
        for place, row in enumerate(animals())
    ]
    return Selector.load(make_bundle(tmp_path / "mixed-bundle", rows))


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader of an adapter's page stands: a bundle, and a photograph."""
    make_bundle(tmp_path / "bundles" / "mine", animals())
    (tmp_path / "photo.png").write_bytes(png("yellow"))
    monkeypatch.chdir(tmp_path)
    return tmp_path
