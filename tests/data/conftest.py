"""Fixtures of the task tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from miniatures import section_of, write_vqa

from leverplus.data.tasks.settings import TaskSection


@pytest.fixture
def vqa_folder(tmp_path: Path) -> Path:
    write_vqa(tmp_path)
    return tmp_path


@pytest.fixture
def section() -> Callable[..., TaskSection]:
    return section_of
