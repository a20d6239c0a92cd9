"""Selectors from elsewhere: evaluated, gone on from and chosen with, or refused at once with what does not fit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from legacy_files import OldSelector
from tiny_world import TINY, TinyRun

from leverplus.bundle.bundle import SHOTS
from leverplus.bundle.selector import Selector
from leverplus.cli.main import main
from leverplus.data.rundir import read_json
from leverplus.errors import CheckpointError, MissingFile, RecipeError
from leverplus.learn.checkpoint import load_checkpoint, tensors_of
from leverplus.learn.given import fill_from, find_given, read_given
from leverplus.learn.policies.build import build_policy
from leverplus.run.recipe import build_recipe, find_recipe, load_recipe
from leverplus.run.run import load_run, open_run
from leverplus.run.train import train_run
from leverplus_lab.legacy.checkpoints import write_legacy

FAITHFUL = ("select.preset=cross_attention_faithful", "select.hidden=16")


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return tensors_of(load_checkpoint(folder)[0])


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )


@pytest.fixture(scope="module")
def tiny_run(tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """A copy of the shared run: these tests evaluate it again."""
    folder = tmp_path_factory.mktemp("given") / "run"
    shutil.copytree(tiny_run.folder, folder)
    return replace(tiny_run, folder=folder)


@pytest.fixture(scope="module")
def old_file(tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of the earlier code whose selector reads vectors as wide as the world's."""
    run = load_run(tiny_run.folder, tiny_run.store)
    _, table = run.pools(run.demonstrations[:1])
    policy = build_policy(
        load_recipe("world", [*TINY, *FAITHFUL]).select, table.dims, seed=5
    )
    return write_legacy(policy, tmp_path_factory.mktemp("old") / "grpo_epoch2.pt", "pt")


def test_a_checkpoint_is_found_by_folder_run_name_and_file(
    tiny_run: TinyRun, old_file: Path
) -> None:
    run, inside = tiny_run.folder, tiny_run.folder / "checkpoints"
    assert find_given(str(run)) == inside / "sft"
    assert find_given(f"{run}:sft-epoch001") == inside / "sft-epoch001"
    assert find_given(str(inside / "sft-epoch002")) == inside / "sft-epoch002"
    assert find_given(str(old_file)) == old_file


def test_an_import_with_one_checkpoint_is_named_by_its_folder(
    old_file: Path, tmp_path: Path
) -> None:
    assert main(["import", str(old_file), "--into", str(tmp_path / "old")]) == 0
    assert (
        find_given(str(tmp_path / "old"))
        == tmp_path / "old" / "checkpoints" / "grpo_epoch2"
    )
    assert equal(
        tensors_of(read_given(str(tmp_path / "old"))),
        tensors_of(read_given(str(old_file))),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "nowhere/run",
            r"there is no checkpoint nowhere/run; give train.start or --checkpoint a checkpoint folder",
        ),
        ("{run}:rce", r"has no checkpoint 'rce'; known: sft, sft-epoch001"),
        ("{tmp}", r"has more than one checkpoint, or none"),
    ],
)
def test_what_is_missing_is_named(
    tiny_run: TinyRun, tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(MissingFile, match=said):
        find_given(text.format(run=tiny_run.folder, tmp=tmp_path))


@pytest.mark.slow
def test_a_file_of_the_earlier_code_is_evaluated_in_a_run(
    tiny_run: TinyRun, old_file: Path, capsys: Any
) -> None:
    store = ["--store", str(tiny_run.store), "--json"]
    arguments = ["eval", str(tiny_run.folder), "--split", "dev", "--items", "6"]
    assert main([*arguments, *store, "--checkpoint", str(old_file)]) == 0
    theirs = json.loads(capsys.readouterr().out)
    assert theirs["checkpoint"] == str(old_file)
    assert main([*arguments, *store, "--checkpoint", f"{tiny_run.folder}:sft"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert main([*arguments, *store]) == 0
    assert json.loads(capsys.readouterr().out)["arms"] == again["arms"], (
        "RUN:sft is the run's own selector"
    )


@pytest.mark.slow
def test_the_training_split_can_be_evaluated(tiny_run: TinyRun, capsys: Any) -> None:
    store = ["--store", str(tiny_run.store), "--json"]
    assert (
        main(["eval", str(tiny_run.folder), "--split", "train", "--items", "5", *store])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["split"], found["n"]) == ("train", 5)
    assert (tiny_run.folder / "eval-train.json").is_file()


def test_vectors_of_another_width_are_refused_in_a_sentence(
    tiny_run: TinyRun, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "wide.pt"
    torch.save({"model_state_dict": OldSelector().state_dict()}, path)
    assert (
        main(
            ["eval", str(tiny_run.folder), "--split", "dev", "--checkpoint", str(path)]
        )
        == 1
    )
    said = capsys.readouterr().err
    assert "reads vectors of other widths than [embed] gives: image" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_selector_from_elsewhere_chooses(
    tiny_run: TinyRun, old_file: Path, tmp_path: Path, capsys: Any
) -> None:
    run = load_run(tiny_run.folder)
    picture = tmp_path / "query.png"
    image = run.task.image(run.task.items("test")[0])
    assert image is not None
    image.save(picture)
    asked = [
        "select",
        str(tiny_run.folder),
        "--image",
        str(picture),
        "--question",
        "what does it like",
        "-k",
        "2",
        "--json",
    ]
    lists = []
    for more in (
        [],
        ["--checkpoint", f"{tiny_run.folder}:sft"],
        ["--checkpoint", str(old_file)],
    ):
        assert main([*asked, *more]) == 0
        lists.append(
            [demo["id"] for demo in json.loads(capsys.readouterr().out)["demos"]]
        )
    assert lists[0] == lists[1]
    assert len(set(lists[2])) == 2
    assert (
        main(
            [word for word in asked if word not in ("-k", "2")]
            + ["--checkpoint", str(old_file)]
        )
        == 0
    )
    most = Selector.load(tiny_run.folder, str(old_file)).way.most_shots
    assert len(json.loads(capsys.readouterr().out)["demos"]) == min(SHOTS, most)


def begun(tiny_run: TinyRun, folder: Path, *more: str) -> Any:
    recipe = load_recipe("world", [*TINY, *more])
    return open_run(
        recipe, find_recipe("world"), folder, seed=0, store_path=tiny_run.store
    )


@pytest.mark.slow
def test_training_begins_with_the_named_weights(
    tiny_run: TinyRun, old_file: Path, tmp_path: Path
) -> None:
    run = begun(
        tiny_run, tmp_path / "run", *FAITHFUL, f"train.start={old_file}", "sft.epochs=0"
    )
    train_run(run)
    assert equal(
        weights_of(run.folder / "checkpoints" / "sft"),
        tensors_of(read_given(str(old_file))),
    )
    assert read_json(run.folder / "checkpoints" / "start" / "config.json")["extra"] == {
        "from": str(old_file)
    }


@pytest.mark.slow
def test_a_run_goes_on_from_its_own_copy_of_the_start(
    tiny_run: TinyRun, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    start = f"{tiny_run.folder}:sft-epoch001"
    run = begun(tiny_run, source, f"train.start={start}", "sft.epochs=1")
    train_run(run)
    kept = weights_of(source / "checkpoints" / "start")
    assert equal(kept, weights_of(tiny_run.folder / "checkpoints" / "sft-epoch001"))
    train_run(load_run(source, tiny_run.store))


def test_a_missing_start_leaves_no_folder(tiny_run: TinyRun, tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"there is no checkpoint nowhere\.pt"):
        begun(tiny_run, tmp_path / "run", "train.start=nowhere.pt")
    assert not (tmp_path / "run").exists()


def test_a_start_of_another_form_is_answered_with_what_to_set(
    tiny_run: TinyRun, old_file: Path
) -> None:
    policy = build_policy(
        load_recipe("world", TINY).select, {"image": 32, "text": 32, "answer": 32}
    )
    with pytest.raises(
        CheckpointError,
        match=r"add --set select\.demo_fields='\[\"image\", \"text\"\]' select\.fuse=mean",
    ):
        fill_from(policy, read_given(str(old_file)), "old")


def test_ratio_and_kl_may_refer_to_the_start_where_no_stage_imitates() -> None:
    values = {
        "train": {"stages": ["grpo"]},
        "grpo": {"behaviour": "sft", "reference": "sft"},
    }
    with pytest.raises(RecipeError, match="no stage before grpo is sft"):
        build_recipe("a", values, "test")
    values["train"]["start"] = "old.pt"  # type: ignore[assignment]
    assert build_recipe("a", values, "test").train.start == "old.pt"
