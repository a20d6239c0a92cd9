"""Whole runs: every file is there, the same seed gives the same bytes, and killing a run loses nothing."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from forked import LEVER, Forker
from tiny_world import TINY, TinyRun, run_tiny, tiny_arguments

from leverplus.data.rundir import read_json
from leverplus.errors import LeverError, MissingFile
from leverplus.run.evaluate import run_all
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import load_run, open_run
from leverplus.run.train import train_run
from leverplus.scores.store import ScoreStore

KILLED = -9
ARMS = (
    "learned",
    "zero_shot",
    "random",
    "nearest_image",
    "nearest_text",
    "nearest_both",
    "two_stage",
    "mmr",
    "oracle",
)
COMPARED = {
    "arm",
    "baseline",
    "shots",
    "n",
    "diff",
    "ci95",
    "p_value",
    "p_adjusted",
    "mde80",
    "helped",
    "harmed",
}


@pytest.mark.slow
def test_a_run_folder_holds_everything_that_was_promised(tiny_run: TinyRun) -> None:
    files = "recipe.toml resolved.toml run.json log.jsonl predictions.parquet eval.json findings.json report.html"
    for name in files.split():
        assert (tiny_run.folder / name).stat().st_size > 0, name
    for name in ("model.safetensors", "config.json"):
        assert (tiny_run.folder / "checkpoints" / "sft" / name).is_file()
    assert not list(tiny_run.folder.glob(".*")), "half-written files are gone"


def test_the_run_folder_says_what_was_run(tiny_run: TinyRun) -> None:
    recipe = load_recipe("world", TINY)
    manifest = read_json(tiny_run.folder / "run.json")
    assert (manifest["recipe"], manifest["recipe_hash"], manifest["seed"]) == (
        "world",
        recipe.hash,
        0,
    )
    assert {"leverplus", "torch", "numpy"} <= set(manifest["versions"])
    assert (tiny_run.folder / "recipe.toml").read_text() == find_recipe(
        "world"
    ).read_text()
    resolved = tomllib.loads((tiny_run.folder / "resolved.toml").read_text())
    assert resolved["pool"]["size"] == 16
    assert load_run(tiny_run.folder).recipe.hash == recipe.hash


def test_the_log_has_a_line_an_epoch_and_the_findings_their_fields(
    tiny_run: TinyRun,
) -> None:
    lines = [
        json.loads(line)
        for line in (tiny_run.folder / "log.jsonl").read_text().splitlines()
    ]
    assert {(line["stage"], line["epoch"]) for line in lines} >= {
        ("sft", 1),
        ("sft", 2),
        ("sft", 3),
    }
    for finding in read_json(tiny_run.folder / "findings.json")["findings"]:
        assert {
            "code",
            "severity",
            "title",
            "evidence",
            "cause",
            "try",
            "consequences",
            "fix",
        } <= set(finding)


def test_predictions_have_a_row_per_item_arm_and_shots(tiny_run: TinyRun) -> None:
    rows = pq.read_table(tiny_run.folder / "predictions.parquet").to_pylist()
    learned = [row for row in rows if row["arm"] == "learned"]
    assert len({row["item"] for row in rows}) == 10
    assert len(learned) == 2 * 10
    assert all(len(row["demos"]) == row["shots"] for row in learned)
    mean = np.mean([row["score"] for row in learned if row["shots"] == 2])
    assert mean == pytest.approx(tiny_run.report["arms"]["learned"]["shots"]["2"])


def test_eval_json_has_the_promised_shape(tiny_run: TinyRun) -> None:
    report = read_json(tiny_run.folder / "eval.json")
    assert report == tiny_run.report
    assert (report["task"], report["split"], report["n"]) == ("world", "test", 10)
    for arm in ARMS:
        shots = report["arms"][arm]["shots"]
        assert set(shots) == ({"0"} if arm == "zero_shot" else {"1", "2"})
        assert all(0.0 <= accuracy <= 1.0 for accuracy in shots.values())
        assert report["arms"][arm]["mean"] == pytest.approx(
            np.mean(list(shots.values()))
        )
    assert report["comparisons"]
    for row in report["comparisons"]:
        assert set(row) >= COMPARED
        low, high = row["ci95"]
        assert low <= row["diff"] <= high
        assert row["p_value"] <= row["p_adjusted"] + 1e-12


def test_the_gap_that_is_closed_is_measured_from_random_to_the_oracle(
    tiny_run: TinyRun,
) -> None:
    arms, closed = tiny_run.report["arms"], tiny_run.report["gap_closed"]["learned"]
    assert closed
    for shots, share in closed.items():
        own, low, high = (
            arms[arm]["mean"] if shots == "mean" else arms[arm]["shots"][shots]
            for arm in ("learned", "random", "oracle")
        )
        assert share == pytest.approx((own - low) / (high - low))


def texts_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [
            text for key, part in value.items() for text in (str(key), *texts_of(part))
        ]
    if isinstance(value, list):
        return [text for part in value for text in texts_of(part)]
    return [value] if isinstance(value, str) else []


def test_eval_json_holds_no_times_dates_or_paths(tiny_run: TinyRun) -> None:
    texts = texts_of(tiny_run.report)
    assert not [
        text
        for text in texts
        if "/" in text or re.search(r"\d{4}-\d\d-\d\d|\d\d:\d\d", text)
    ]
    assert not [text for text in texts if re.search("second|time|date|path", text)]


def test_training_stays_within_its_budget(tiny_run: TinyRun) -> None:
    assert 0 < tiny_run.report["model_calls"] <= 1300


@pytest.mark.slow
def test_the_same_seed_with_an_empty_store_gives_the_same_bytes(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    again = run_tiny(tmp_path / "elsewhere", tmp_path / "empty.db")
    assert (again.folder / "eval.json").read_bytes() == (
        tiny_run.folder / "eval.json"
    ).read_bytes()
    one, other = (
        run.folder / "checkpoints" / "sft" / "model.safetensors"
        for run in (again, tiny_run)
    )
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.slow
def test_another_seed_trains_another_selector_on_the_same_test_items(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    other = run_tiny(tmp_path / "seed1", tiny_run.store, "--seed", "1")
    assert other.report != tiny_run.report
    one, two = (
        run.folder / "checkpoints" / "sft" / "model.safetensors"
        for run in (tiny_run, other)
    )
    assert one.read_bytes() != two.read_bytes()
    assert other.report["arms"]["oracle"] == tiny_run.report["arms"]["oracle"]


@pytest.mark.slow
def test_a_finished_run_is_taken_up_without_asking_the_model_again(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_run.folder, tmp_path / "copy")
    before = (folder / "eval.json").read_bytes()
    run = load_run(folder, tiny_run.store)
    run_all(run)
    assert run.scorer.meter.fresh == 0
    assert (folder / "eval.json").read_bytes() == before


KILL_IN_SCORING = """
from leverplus.cli.command import Bars
def show(self, what, done, total):
    if what != "self-test" and 0 < done < total:
        os.kill(os.getpid(), signal.SIGKILL)
Bars.show = show
"""

KILL_IN_TRAINING = """
import leverplus.run.train as train
honest = train.dev_judge
def dev_judge(run):
    judge, calls = honest(run), []
    def counting(policy):
        calls.append(policy)
        if list((run.folder / "checkpoints").glob("*-epoch*")):
            os.kill(os.getpid(), signal.SIGKILL)
        return judge(policy)
    return counting
train.dev_judge = dev_judge
"""


def run_and_be_killed(forker: Forker, prelude: str, folder: Path, store: Path) -> None:
    lever = LEVER.format(words=tiny_arguments(folder, store))
    assert forker.run(f"import os, signal\n{prelude}\n{lever}") == KILLED


@pytest.mark.slow
def test_a_run_killed_in_scoring_and_in_training_ends_with_the_same_results(
    tiny_run: TinyRun, tmp_path: Path, forker: Forker
) -> None:
    folder, store = tmp_path / "run", tmp_path / "scores.db"
    run_and_be_killed(forker, KILL_IN_SCORING, folder, store)
    assert 0 < ScoreStore(store).count() < tiny_run.report["model_calls"]
    assert not (folder / "checkpoints").exists()
    run_and_be_killed(forker, KILL_IN_TRAINING, folder, store)
    assert list((folder / "checkpoints").glob("*-epoch*"))
    assert not (folder / "checkpoints" / "sft").exists()
    run_tiny(folder, store)
    assert (folder / "eval.json").read_bytes() == (
        tiny_run.folder / "eval.json"
    ).read_bytes()
    epochs = [
        json.loads(line)["epoch"]
        for line in (folder / "log.jsonl").read_text().splitlines()
    ]
    assert epochs == [
        json.loads(line)["epoch"]
        for line in (tiny_run.folder / "log.jsonl").read_text().splitlines()
    ]


@pytest.mark.slow
def test_findings_are_kept_while_a_run_trains(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    recipe = load_recipe("world", [*TINY, "sft.epochs=4", "sft.lr=1e-9"])
    run = open_run(
        recipe,
        find_recipe("world"),
        tmp_path / "run",
        seed=0,
        store_path=tiny_run.store,
    )
    seen: list[set[str]] = []

    def note(what: str, _done: int, _total: int) -> None:
        if what.startswith("training"):
            seen.append(
                {
                    finding["code"]
                    for finding in read_json(run.folder / "findings.json")["findings"]
                }
            )

    train_run(replace(run, progress=note))
    assert "learning_rate_tiny" in seen[0], "what the preflight found"
    assert ["dead_updates" in codes for codes in seen] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert not any("few_items" in codes for codes in seen), "nothing was evaluated yet"


def test_a_folder_of_another_recipe_or_seed_is_refused(tiny_run: TinyRun) -> None:
    recipe, source = load_recipe("world", TINY), find_recipe("world")
    other = replace(recipe, pool=replace(recipe.pool, size=17))
    for wrong, seed in ((other, 0), (recipe, 1)):
        with pytest.raises(
            LeverError, match=r"holds another run .*choose a new folder with --out"
        ):
            open_run(
                wrong, source, tiny_run.folder, seed=seed, store_path=tiny_run.store
            )


def test_a_folder_that_is_no_run_or_was_changed_is_named(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    with pytest.raises(MissingFile, match="is not a run folder"):
        load_run(tmp_path)
    folder = tmp_path / "copy"
    folder.mkdir()
    text = (tiny_run.folder / "resolved.toml").read_text()
    (folder / "resolved.toml").write_text(text.replace("size = 16", "size = 17"))
    with pytest.raises(MissingFile, match=r"run\.json is not there"):
        load_run(folder)
    shutil.copy(tiny_run.folder / "run.json", folder)
    with pytest.raises(
        LeverError, match=r"resolved\.toml was changed after this run was made"
    ):
        load_run(folder)
    (folder / "run.json").write_text('{"recipe": ')
    with pytest.raises(LeverError, match=r"run\.json is damaged .*delete it"):
        load_run(folder)


def test_items_for_evaluation_do_not_follow_the_seed_of_the_run(
    tiny_run: TinyRun,
) -> None:
    one = load_run(tiny_run.folder, tiny_run.store)
    other = replace(one, seed=5)
    assert one.chosen_items("test", 20) == other.chosen_items("test", 20)
    assert one.training_queries() != other.training_queries()
    assert one.chosen_items("dev", 0) == list(one.task.items("dev"))


def test_known_and_strange_queries_get_the_vectors_they_have_alone(
    tiny_run: TinyRun,
) -> None:
    run = load_run(tiny_run.folder, tiny_run.store)
    mixed = [
        run.task.items(split)[place]
        for split, place in (("test", 3), ("train", 9), ("dev", 1), ("train", 2))
    ]
    pools, table = run.pools(mixed)
    for query, pool in zip(mixed, pools, strict=True):
        alone, own = run.pools([query])
        assert alone[0] == pool
        for name, block in table.blocks.items():
            row, single = (
                block[table.row(query.id)],
                own.blocks[name][own.row(query.id)],
            )
            np.testing.assert_allclose(row, single, atol=1e-5)


def test_a_checkpoint_half_written_when_the_run_was_killed_is_passed_over(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(tiny_run.folder, folder)
    (folder / "checkpoints" / ".sft-epoch002.4711.new").mkdir()
    train_run(load_run(folder, tiny_run.store))


def test_a_folder_without_its_manifest_is_not_taken_for_a_new_run(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(tiny_run.folder, folder)
    (folder / "run.json").unlink()
    source = find_recipe("world")
    with pytest.raises(LeverError, match=r"no run\.json"):
        open_run(
            load_recipe("world"), source, folder, seed=0, store_path=tiny_run.store
        )
