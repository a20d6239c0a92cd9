"""Every plan of the earlier reports runs from start to end, smaller, mended and in the form of the documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matrix_models import Asked

from leverplus.cli.main import main
from leverplus.run.recipe import load_recipe, recipe_names

PLANS = [
    name
    for name in recipe_names()
    if name.startswith(("baseline", "exp", "plan", "run"))
]

SMALL = (
    "pool.size=8", "score.budget=900", "score.queries=8", "score.dev_queries=2", "score.dev_shots=[1]",
    "select.hidden=16", "eval.items=4", "eval.dev_items=2", "eval.shots=[1]", "eval.diagnostic_items=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all: most plans ask the same."""
    return tmp_path_factory.mktemp("plans") / "scores.db"


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_runs_to_its_end(
    name: str, tmp_path: Path, store: Path, asked: Asked
) -> None:
    stages = load_recipe(name).stages
    short = [f"{stage}.epochs=1" for stage in stages]
    if any(getattr(config, "easy_epochs", 0) for config in stages.values()):
        short += ["score.queries=20"]  # among fewer, none is easy
    words = [
        "run",
        name,
        "--out",
        str(tmp_path / "run"),
        "--store",
        str(store),
        "--ignore-findings",
    ]
    assert main([*words, "--set", *SMALL, *short]) == 0
    found = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert found["n"] == 4
    assert found["arms"]["learned"]["shots"].keys() == {"1"}
    assert [
        stage.name
        for stage in (tmp_path / "run" / "checkpoints").iterdir()
        if stage.name in stages
    ]
    assert "advice" in found


SHORT = (
    "pool.size=8", "score.budget=4000", "score.queries=10", "score.dev_queries=2", "score.dev_shots=[1]",
    "select.hidden=16", "eval.items=4", "eval.shots=[1]", "eval.dev_items=2", "eval.random_draws=1",
)  # fmt: skip


def two_epochs(name: str) -> list[str]:
    """Two epochs of every stage, the first of them on easy queries where a plan begins with those."""
    found = []
    for stage, config in load_recipe(name).stages.items():
        found += [f"{stage}.epochs=2"]
        if getattr(config, "min_positive_ratio", 0.0) > 0.0:
            found += ["score.queries=48"]  # few queries have so many right answers
        if getattr(config, "easy_epochs", 0):
            found += [
                f"{stage}.easy_epochs={min(config.easy_epochs, 2 if config.easy_epochs >= config.epochs else 1)}"
            ]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names("documents"))
def test_a_plan_in_the_form_of_the_documents_runs_to_its_end(
    name: str, tmp_path: Path, store: Path, asked: Asked
) -> None:
    from leverplus.learn.checkpoint import load_checkpoint, tensors_of

    folder = tmp_path / "run"
    words = [
        "run",
        name,
        "--out",
        str(folder),
        "--store",
        str(store),
        "--ignore-findings",
    ]
    assert main([*words, "--set", *SHORT, *two_epochs(name)]) == 0
    assert json.loads((folder / "eval.json").read_text())["arms"]["learned"][
        "shots"
    ].keys() == {"1"}
    for stage, config in load_recipe(name).stages.items():
        if config.keep != "last":
            continue
        kept, last = (
            tensors_of(load_checkpoint(folder / "checkpoints" / n)[0])
            for n in (stage, f"{stage}-epoch002")
        )
        assert all((kept[key] == last[key]).all() for key in last), (
            f"{stage} hands over its last epoch"
        )
