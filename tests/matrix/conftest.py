"""The models of the matrix, made and loaded once for all its tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "encode"))  # tiny_networks
sys.path.append(str(Path(__file__).parents[1] / "models" / "hf"))  # tiny_models

from matrix_models import Asked, loaded_once, make_models


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    pytest.importorskip("transformers")
    return make_models(tmp_path_factory.mktemp("matrix-models"))


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    """For one module, since the world is small while it holds."""
    with loaded_once() as count:
        yield count
