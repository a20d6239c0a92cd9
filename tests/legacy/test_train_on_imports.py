"""Groups of the earlier code train a selector: out of a run as RL JSON, in again, and learnt from without searching."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_world import TINY, TinyRun

from leverplus.cli.main import main
from leverplus.errors import DataError, RecipeError, TrainingError
from leverplus.run.recipe import build_recipe, find_recipe, load_recipe
from leverplus.run.run import open_run
from leverplus.run.train import search_groups, train_run


@pytest.fixture(scope="module")
def imported(tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The groups of a tiny run of the world, written as RL JSON and taken over."""
    place = tmp_path_factory.mktemp("imported")
    store = ["--store", str(tiny_run.store)]
    assert (
        main(
            [
                "export",
                str(tiny_run.folder),
                "--format",
                "rl",
                "--out",
                str(place / "rl.json"),
                *store,
            ]
        )
        == 0
    )
    assert (
        main(["import", str(place / "rl.json"), "--into", str(place / "groups")]) == 0
    )
    return place / "groups"


@pytest.mark.slow
def test_a_selector_is_trained_from_a_file_and_nothing_is_searched(
    imported, tmp_path
) -> None:
    recipe = load_recipe("world", [*TINY, f"score.groups={imported}"])
    said: list[str] = []
    run = open_run(
        recipe,
        find_recipe("world"),
        tmp_path / "run",
        seed=0,
        store_path=tmp_path / "s.db",
        say=said.append,
    )
    groups = search_groups(run)
    assert run.calls() == 0
    assert {group.query for group in groups} == {
        item.id for item in run.training_queries()
    }
    assert groups[0].pool.builder.startswith("imported:")
    train_run(run)
    judged = (
        len(recipe.score.dev_shots)
        * recipe.score.dev_queries
        * (recipe.stages["sft"].epochs + 1)
    )
    assert 0 < run.calls() <= judged
    assert (run.folder / "checkpoints" / "sft" / "model.safetensors").is_file()
    assert any("imported groups" in line for line in said)
    assert any("pool_builder_differs" in line for line in said)


@pytest.mark.slow
def test_items_that_the_task_does_not_have_are_named(imported, tmp_path) -> None:
    value = json.loads((imported / "groups.json").read_text())
    first = next(key for key in value if key.isdecimal())
    value["_meta"]["item_ids"][first] = "nobody"
    (tmp_path / "groups.json").write_text(json.dumps(value))
    recipe = load_recipe("world", [*TINY, f"score.groups={tmp_path}"])
    run = open_run(
        recipe,
        find_recipe("world"),
        tmp_path / "run",
        seed=0,
        store_path=tmp_path / "s.db",
    )
    with pytest.raises(
        DataError,
        match=r"item nobody is not in the training split of world; type `lever import FILE",
    ):
        search_groups(run)


def test_imported_groups_and_a_search_exclude_each_other() -> None:
    with pytest.raises(RecipeError, match=r"score\.groups replaces search"):
        build_recipe(
            "x", {"score": {"groups": "old", "rounds": 2, "search": "dense"}}, "test"
        )


@pytest.fixture(scope="module")
def beams(tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The best lists of a tiny run of the world, written as beam JSON and taken over."""
    place = tmp_path_factory.mktemp("beams")
    words = [
        "--format",
        "beam",
        "--out",
        str(place / "beam.json"),
        "--store",
        str(tiny_run.store),
        "--shots",
        "1",
    ]
    assert main(["export", str(tiny_run.folder), *words]) == 0
    assert (
        main(["import", str(place / "beam.json"), "--into", str(place / "groups")]) == 0
    )
    return place / "groups"


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["all", "weighted"])
def test_beams_are_imitated_without_asking_for_their_accuracy(
    tiny_run, beams, tmp_path, labels
) -> None:
    given = [
        *TINY,
        f"score.groups={beams}",
        "train.imitate=3",
        f"sft.labels={labels}",
        "sft.keep=last",
        "sft.epochs=8",
    ]
    recipe = load_recipe("world", given)
    run = open_run(
        recipe,
        find_recipe("world"),
        tmp_path / "run",
        seed=0,
        store_path=tiny_run.store,
    )
    train_run(run)
    losses = [
        json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()
    ]
    sft = [line["train/loss/total"] for line in losses]
    assert min(sft[1:]) < sft[0], "the lists of the file become likelier"
    counted = json.loads((run.folder / "groups-sft.json").read_text())
    assert counted["all_wrong"] == 0, "nobody judged them"


@pytest.mark.slow
def test_beams_cannot_be_rewarded(tiny_run, beams, tmp_path) -> None:
    recipe = load_recipe(
        "world",
        [*TINY, f"score.groups={beams}", "train.stages=['sft','rce']", "rce.epochs=1"],
    )
    run = open_run(
        recipe,
        find_recipe("world"),
        tmp_path / "run",
        seed=0,
        store_path=tiny_run.store,
    )
    with pytest.raises(
        TrainingError,
        match=r"which only sft can imitate, not rce; add --set train\.stages",
    ):
        train_run(run)
