"""Fixtures of the task tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from miniatures import write_vqa

from leverplus.recipe.sections import TaskSection


@pytest.fixture
def vqa_folder(tmp_path: Path) -> Path:
    write_vqa(tmp_path)
    return tmp_path


@pytest.fixture
def section() -> Callable[..., TaskSection]:
    def make(**values: object) -> TaskSection:
        return TaskSection(**{key: str(v) if isinstance(v, Path) else v for key, v in values.items()})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data lie in `shared/data` beside the repository, where somebody put them."""
    folder = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real data sets are not beside the repository")
    return folder
