"""Run folders that hold handmade predictions, and one tiny run of the embedded world."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from handmade import context

from leverplus.data.types import Pool
from leverplus.evaluate.conditions import conditions_of
from leverplus.evaluate.predictions import Results, write_predictions
from leverplus.run.evaluate import run_all
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import Run, open_run

TINY = (
    "pool.size=6", "score.budget=700", "score.dev_queries=6", "score.queries=24", "score.search=dense",
    "score.shots=1", "sft.epochs=2", "eval.items=14", "eval.dev_items=6", "eval.diagnostic_items=6",
    "eval.random_draws=2", "select.preset=stopping",
)  # fmt: skip


MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a folder as an evaluated run leaves it."""

    def make(
        name: str,
        results: Results,
        *,
        recipe: str = "plain",
        recipe_hash: str = "0" * 12,
        seed: int = 0,
        template: str = "plain",
        builder: str = "b",
        chosen_on_test: bool = False,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        manifest = {"recipe": recipe, "recipe_hash": recipe_hash, "seed": seed}
        (folder / "run.json").write_text(json.dumps(manifest))
        pools = [Pool(item, (), builder) for item in results.items]
        conditions = conditions_of(context(template), "test", results.items, pools)
        arms = {}
        for arm in results.draws:
            arms[arm] = {"shots": dict.fromkeys(results.shots(arm), 0.5)}
        report = {
            "n": len(results.items),
            "arms": arms,
            "split": "test",
            "conditions": conditions,
            "chosen_on_test": chosen_on_test,
            "checkpoint": "sft",
        }
        (folder / "eval.json").write_text(json.dumps(report))
        write_predictions(results, folder / "predictions.parquet")
        return folder

    return make


@pytest.fixture(scope="session")
def world_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A whole run of the world with tiny sizes, evaluated on test."""
    folder = tmp_path_factory.mktemp("world")
    recipe = load_recipe("world", TINY)
    run = open_run(
        recipe,
        find_recipe("world"),
        folder / "run",
        seed=0,
        store_path=folder / "scores.db",
    )
    run_all(run)
    return run
