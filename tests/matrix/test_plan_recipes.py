"""Every plan of the earlier reports runs from start to end, smaller; tests/test_documents.py runs their other form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matrix_models import Asked

from leverplus.cli.main import main
from leverplus.recipe.recipe import load_recipe, recipe_names

PLANS = [name for name in recipe_names() if name.startswith(("baseline", "exp", "plan", "run"))]

SMALL = (
    "pool.size=8", "score.budget=900", "score.queries=20", "score.dev_queries=2", "score.dev_shots=[1]",
    "select.hidden=16", "eval.items=4", "eval.dev_items=2", "eval.shots=[1]", "eval.diagnostic_items=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all: most plans ask the same."""
    return tmp_path_factory.mktemp("plans") / "scores.db"


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_runs_to_its_end(name: str, tmp_path: Path, store: Path, asked: Asked) -> None:
    stages = load_recipe(name).stages
    short = [f"{stage}.epochs=1" for stage in stages]
    words = ["run", name, "--out", str(tmp_path / "run"), "--store", str(store), "--ignore-findings"]
    assert main([*words, "--set", *SMALL, *short]) == 0
    found = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert found["n"] == 4
    assert found["arms"]["learned"]["shots"].keys() == {"1"}
    assert [stage.name for stage in (tmp_path / "run" / "checkpoints").iterdir() if stage.name in stages]
    assert "advice" in found
