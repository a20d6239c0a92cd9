"""Rounds in which the selector says what to ask next, through a whole tiny run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leverplus.pipeline import Run, open_run, search_groups, train_run
from leverplus.recipe.recipe import find_recipe, load_recipe

SETTINGS = [
    "score.budget=1400",
    "score.dev_queries=4",
    "score.dev_shots=[1, 2]",
    "score.rounds=2",
    "score.best=4",
    "listwise.epochs=4",
    "listwise.batch_size=16",
    "select.hidden=32",
]


def trained(folder: Path, store: Path, seed: int = 0) -> Run:
    run = open_run(load_recipe("best", SETTINGS), find_recipe("best"), folder, seed=seed, store_path=store)
    train_run(run)
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("acquired")
    return trained(folder / "run", folder / "scores.db")


def asked(run: Run) -> dict[str, list[str]]:
    rounds = sorted((run.folder / "acquired").iterdir())
    return {query: own for path in rounds for query, own in json.loads(path.read_text()).items()}


def test_rounds_ask_about_fresh_queries_and_stay_within_the_budget(whole: Run) -> None:
    first = {item.id for item in whole.training_queries()}
    later = asked(whole)
    assert later
    assert not first & set(later)
    assert {len(own) for own in later.values()} == {4 + 2}
    assert whole.calls() <= whole.recipe.score.budget


def test_candidates_come_from_the_querys_own_pool_each_once(whole: Run) -> None:
    queries = [whole.task.item(query) for query in asked(whole)]  # type: ignore[arg-type]
    pools = {pool.query: pool for pool in whole.pools(queries)[0]}
    for query, own in asked(whole).items():
        assert len(set(own)) == len(own)
        assert set(own) <= set(pools[query].candidates)  # type: ignore[index]


def test_a_run_stopped_between_rounds_ends_with_the_same_weights(whole: Run, tmp_path: Path) -> None:
    run = open_run(
        load_recipe("best", SETTINGS), find_recipe("best"), tmp_path / "run", seed=0, store_path=tmp_path / "scores.db"
    )
    seen = 0

    def stop(what: str, done: int, total: int) -> None:
        nonlocal seen
        seen += what.startswith("round 2")
        if seen:
            raise KeyboardInterrupt

    run.progress = stop
    with pytest.raises(KeyboardInterrupt):
        train_run(run)
    again = trained(tmp_path / "run", tmp_path / "scores.db")
    weights = "checkpoints/listwise/model.safetensors"
    assert (again.folder / weights).read_bytes() == (whole.folder / weights).read_bytes()
    assert again.calls() == whole.calls()


def test_rewards_that_need_prefixes_reach_supervised_training(tmp_path: Path) -> None:
    settings = ["score.queries=6", "score.dev_queries=4", "score.dev_shots=[1]", "sft.epochs=1", "rce.epochs=1"]
    recipe = load_recipe("exp1_1", [*settings, 'train.stages=["sft", "rce"]'])
    run = open_run(recipe, find_recipe("exp1_1"), tmp_path / "run", seed=0, store_path=tmp_path / "scores.db")
    train_run(run)
    assert (run.folder / "checkpoints" / "rce").is_dir()


def test_the_second_stage_learns_from_sequences_drawn_from_the_first(tmp_path: Path) -> None:
    settings = ["score.search=mixed", "score.random=2", "score.retrieved=1", "score.samples=2", "score.queries=6"]
    small = ["score.dev_queries=4", "score.dev_shots=[1]", "sft.epochs=1", "rce.epochs=1", "select.hidden=16"]
    recipe = load_recipe("world", [*settings, *small, 'train.stages=["sft", "rce"]'])
    run = open_run(recipe, find_recipe("world"), tmp_path / "run", seed=0, store_path=tmp_path / "scores.db")
    policy = train_run(run)
    groups = search_groups(run, policy)
    assert {member.source.split("@")[0] for group in groups for member in group.members} > {"random", "retrieval"}
    assert any(member.log_mu is not None for group in groups for member in group.members)
