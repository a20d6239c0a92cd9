"""OK-VQA in its official files, pictures included, goes through the whole pipeline with a tiny Qwen2.5-VL."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from miniatures import write_vqa

from leverplus.evaluation.predictions import read_predictions
from leverplus.experiment.opening import open_run
from leverplus.experiment.whole import run_all
from leverplus.recipe.recipe import find_recipe, load_recipe

pytest.importorskip("transformers", reason="transformers is not installed")
sys.path.append(str(Path(__file__).parents[1] / "embedders"))
from tiny_networks import save_dual_model


def test_the_official_files_become_a_trained_and_evaluated_selector(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LEVERPLUS_CACHE", str(tmp_path / "cache"))
    write_vqa(tmp_path / "data")
    encoder = save_dual_model(tmp_path / "clip", "clip")
    changes = (
        "task.name=okvqa", f"task.folder={tmp_path / 'data'}", "embed.name=clip", f"embed.model={encoder}",
        'select.query_fields=["image", "text"]', 'select.demo_fields=["image", "text", "answer"]',
        "pool.kind=nearest_both", "pool.size=6", "score.queries=4", "score.dev_queries=4",
        "eval.items=6", "eval.dev_items=2", "eval.diagnostic_items=2",
    )  # fmt: skip
    recipe = load_recipe("coco_small", changes)
    said: list[str] = []
    run = open_run(
        recipe, find_recipe("coco_small"), tmp_path / "run", seed=0, store_path=tmp_path / "s.db", say=said.append
    )
    found = run_all(replace(run, strict=True))
    assert (found["task"], found["n"]) == ("okvqa", 6)
    assert {"zero_shot", "nearest_image", "nearest_text", "nearest_both", "learned", "oracle"} <= set(found["arms"])
    assert found["model_calls"] <= recipe.score.budget
    assert run.backend.fingerprint()["model"] == "tiny:qwen2_5_vl"
    results = read_predictions(run.folder / "predictions.parquet")
    shown = {demo for _, shots, draw in results if shots == 2 for own in draw for demo in own.demos}
    assert shown <= {item.id for item in run.task.items("train")}
    assert (run.folder / "report.html").stat().st_size > 10_000
    assert json.loads((run.folder / "eval.json").read_text())["arms"] == found["arms"]


def test_another_picture_changes_what_the_tiny_model_says(tmp_path, monkeypatch) -> None:
    """The self-test of a backend refuses one that is blind; this one is not."""
    from leverplus.backends.hf.backend import HfBackend
    from leverplus.scoring.selftest import self_test
    from leverplus.tasks.vqa import okvqa

    monkeypatch.setenv("LEVERPLUS_CACHE", str(tmp_path / "cache"))
    write_vqa(tmp_path / "data")
    recipe = load_recipe("coco_small", ("task.name=okvqa", f"task.folder={tmp_path / 'data'}"))
    task = okvqa(recipe.task)
    found = self_test(task, HfBackend(task, recipe.model), queries=6, trained=False)
    assert found.picture_effect is not None
    assert found.picture_effect > 0.01
