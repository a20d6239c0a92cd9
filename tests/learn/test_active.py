"""Rounds in which the selector says what to ask next, through a whole tiny run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_world import copy_store

from leverplus.data.types import Pool
from leverplus.learn.checkpoint import load_checkpoint
from leverplus.learn.data.active import propose
from leverplus.learn.policies.items import choose_demos
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import Run, load_run, open_run
from leverplus.run.train import search_groups, train_run
from leverplus_doctor.read import read_run
from leverplus_lab import expected_accuracy

pytestmark = pytest.mark.slow

SETTINGS = [
    "score.budget=1400",
    "score.dev_queries=4",
    "score.dev_shots=[1, 2]",
    "score.rounds=2",
    "score.best=4",
    "listwise.epochs=4",
    "listwise.batch_size=16",
    "label_pretraining.epochs=2",
    "label_pretraining.queries=200",
    "select.hidden=32",
]


@pytest.fixture(scope="module", autouse=True)
def short_lessons() -> Iterator[None]:
    """Labels are read twice, not twenty times: how well they teach is proved in test_expected_accuracy.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expected_accuracy, "EPOCHS", 2)
        patch.setattr(expected_accuracy, "FEWEST_STEPS", 1)
        yield


def opened(
    folder: Path, settings: list[str], recipe: str = "best", like: Run | None = None
) -> Run:
    """A run with a store of its own; the world, its vectors and its model are those of another run, where given."""
    source = find_recipe(recipe)
    store = folder / "scores.db"
    return open_run(
        load_recipe(recipe, settings),
        source,
        folder / "run",
        seed=0,
        store_path=store,
        like=like,
    )


def answered(folder: Path, run: Run) -> Path:
    """The folder with a copy of a run's store in it, so that what was asked there is not asked of the model again."""
    copy_store(run.folder.parent / "scores.db", folder / "scores.db")
    return folder


def trained(folder: Path, settings: list[str], like: Run | None = None) -> Run:
    run = opened(folder, settings, like=like)
    train_run(run)
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("acquired"), SETTINGS)


def asked(run: Run) -> list[tuple[Pool, list[tuple[str, ...]]]]:
    """The pools in the order of their turns, each with the prompts that were asked about it."""
    rounds = sorted((run.folder / "acquired").iterdir())
    prompts = [
        [tuple(one) for one in own]
        for path in rounds
        for own in json.loads(path.read_text())["prompts"]
    ]
    first = len(run.training_queries())
    pools, _ = run.pools(run.shuffled_queries()[first : first + len(prompts)])
    return list(zip(pools, prompts, strict=True))


def test_rounds_ask_about_fresh_queries_and_stay_within_the_budget(
    whole: Run,
) -> None:
    first = {item.id for item in whole.training_queries()}
    later = asked(whole)
    assert later
    assert not first & {pool.query for pool, _ in later}
    assert {len(prompts) for _, prompts in later} == {1 + 4 + 2}
    assert {len(demos) for _, prompts in later for demos in prompts} == {0, 1}
    assert whole.calls() <= whole.recipe.score.budget


def test_prompts_hold_candidates_of_the_querys_own_pool_each_once(whole: Run) -> None:
    for pool, prompts in asked(whole):
        assert len(set(prompts)) == len(prompts)
        for demos in prompts:
            assert len(set(demos)) == len(demos)
            assert set(demos) <= {str(candidate) for candidate in pool.candidates}


def test_proposals_follow_the_selectors_own_scores(whole: Run) -> None:
    pools, table = whole.pools(whole.training_queries()[:3])
    policy = load_checkpoint(whole.folder / "checkpoints" / "listwise")[0]
    own = choose_demos(policy, table, pools, 1)
    proposed = propose(policy, table, pools, best=3, chance=1, seed=0)
    for picks, prompts in zip(own, proposed, strict=True):
        assert prompts[:2] == [(), picks]
        assert len(set(prompts)) == 1 + 3 + 1


def test_a_run_stopped_between_rounds_ends_with_the_same_selector(
    whole: Run, tmp_path: Path
) -> None:
    run = opened(tmp_path, SETTINGS, like=whole)
    seen = 0

    def stop(what: str, done: int, total: int) -> None:
        nonlocal seen
        seen += what.startswith("round 2")
        if seen:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(replace(run, progress=stop))
    again = trained(tmp_path, SETTINGS, whole)
    # a picture seen among others may differ in the last digit, and so may a probability
    weights = [
        load_file(run.folder / "checkpoints" / "listwise" / "model.safetensors")
        for run in (again, whole)
    ]
    assert all(
        torch.allclose(weights[0][name], value, atol=1e-6)
        for name, value in weights[1].items()
    )
    assert again.calls() == whole.calls()


def test_a_run_stopped_while_it_learns_from_labels_ends_with_the_same_selector(
    whole: Run, tmp_path: Path
) -> None:
    run = opened(answered(tmp_path, whole), SETTINGS, like=whole)

    def stop(what: str, done: int, total: int) -> None:
        if what == "training, label_pretraining" and done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(replace(run, progress=stop))
    assert (run.folder / "checkpoints" / "label_pretraining-epoch001").is_dir()
    assert not (run.folder / "checkpoints" / "label_pretraining").exists()
    again = trained(tmp_path, SETTINGS, whole)
    state = read_run(run.folder)
    assert load_run(run.folder, tmp_path / "scores.db").recipe.hash == whole.recipe.hash
    assert [series.stage for series in state.series] == [
        "label_pretraining",
        "listwise",
    ]
    assert list(state.setting("train.stages")) == ["label_pretraining", "listwise"]
    for stage in ("label_pretraining", "listwise"):
        own = load_file(again.folder / "checkpoints" / stage / "model.safetensors")
        other = load_file(whole.folder / "checkpoints" / stage / "model.safetensors")
        assert all(
            torch.allclose(own[name], value, atol=1e-6) for name, value in other.items()
        )


def test_what_is_asked_first_is_what_labels_taught_and_labels_cost_only_the_judging(
    whole: Run, tmp_path: Path
) -> None:
    still = [*SETTINGS, "listwise.lr=1e-12", "score.chance=0"]
    run = trained(answered(tmp_path, whole), still, whole)
    taught = load_checkpoint(run.folder / "checkpoints" / "label_pretraining")[0]
    asked_about = asked(run)
    pools = [pool for pool, _ in asked_about]
    proposed = propose(taught, run.pools([])[1], pools, best=4, chance=0, seed=0)
    assert [prompts for _, prompts in asked_about] == proposed
    log = [
        json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()
    ]
    assert [line["stage"] for line in log] == ["label_pretraining"] * 2 + [
        "listwise"
    ] * 4
    judged = len(run.recipe.score.dev_shots) * run.recipe.score.dev_queries
    assert log[1]["lvlm_calls"] <= 3 * judged


def test_supervised_training_may_follow_labels(whole: Run, tmp_path: Path) -> None:
    small = [
        "score.queries=6",
        "score.dev_queries=2",
        "score.dev_shots=[1]",
        "sft.epochs=1",
        "select.hidden=16",
    ]
    labels = [
        "label_pretraining.epochs=1",
        "label_pretraining.queries=50",
        'train.stages=["label_pretraining", "sft"]',
    ]
    run = opened(tmp_path, [*small, *labels], "world", whole)
    train_run(run)
    assert (run.folder / "checkpoints" / "sft").is_dir()


def test_rewards_that_need_prefixes_reach_supervised_training(
    whole: Run, tmp_path: Path
) -> None:
    settings = [
        "score.queries=6",
        "score.dev_queries=4",
        "score.dev_shots=[1]",
        "sft.epochs=1",
        "rce.epochs=1",
    ]
    run = opened(tmp_path, [*settings, 'train.stages=["sft", "rce"]'], "exp1_1", whole)
    train_run(run)
    assert (run.folder / "checkpoints" / "rce").is_dir()


def test_the_second_stage_learns_from_sequences_drawn_from_the_first(
    whole: Run, tmp_path: Path
) -> None:
    settings = [
        "score.search=mixed",
        "score.random=2",
        "score.retrieved=1",
        "score.samples=2",
        "score.queries=6",
    ]
    small = [
        "score.dev_queries=4",
        "score.dev_shots=[1]",
        "sft.epochs=1",
        "rce.epochs=1",
        "select.hidden=16",
    ]
    run = opened(
        tmp_path,
        [*settings, *small, 'train.stages=["sft", "rce"]'],
        "world",
        whole,
    )
    policy = train_run(run)
    groups = search_groups(run, policy)
    assert {
        member.source.split("@")[0] for group in groups for member in group.members
    } > {"random", "retrieval"}
    assert any(
        member.log_mu is not None for group in groups for member in group.members
    )
