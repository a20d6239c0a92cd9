"""OK-VQA in its official files, pictures included, goes through the whole pipeline with a tiny Qwen2.5-VL."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from miniatures import write_vqa

from leverplus.evaluate.predictions import read_predictions
from leverplus.evaluate.record import read_record
from leverplus.run.evaluate import run_all
from leverplus.run.recipe import load_recipe
from leverplus.run.run import open_run

pytest.importorskip("transformers", reason="transformers is not installed")
sys.path.append(str(Path(__file__).parents[1] / "encode"))
sys.path.append(str(Path(__file__).parents[1] / "models" / "hf"))
import tiny_models
from tiny_networks import save_dual_model

RECIPE = """
task = {name = "okvqa"}
embed = {name = "clip"}
model = {prompt = "chat", untrained = true, max_new_tokens = 4, image_pixels = 12544}
pool = {kind = "nearest_both", size = 6}
score = {backend = "hf", budget = 600, search = "dense", queries = 4, dev_queries = 4, dev_shots = [1, 2]}
select = {preset = "bi_encoder_gate", state = "none"}
reward = {mode = "gt_prob"}
train = {stages = ["listwise"]}
listwise = {epochs = 2}
eval = {items = 6, dev_items = 2, shots = [1, 2], random_draws = 1, diagnostic_items = 2, exhaustive_calls = 0}
"""


@pytest.mark.slow
def test_the_official_files_become_a_trained_and_evaluated_selector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVERPLUS_CACHE", str(tmp_path / "cache"))
    write_vqa(tmp_path / "data")
    encoder = save_dual_model(tmp_path / "clip", "clip")
    (source := tmp_path / "own.toml").write_text(RECIPE)
    tiny_models.qwen2_5_vl(tmp_path / "vlm")
    changes = [f"task.folder={tmp_path / 'data'}", f"embed.model={encoder}"]
    changes.append(f"model.name={tmp_path / 'vlm'}")
    recipe = load_recipe(str(source), changes)
    store = tmp_path / "s.db"
    run = open_run(recipe, source, tmp_path / "run", seed=0, store_path=store)
    found = run_all(replace(run, strict=True))
    assert (found.task, found.n) == ("okvqa", 6)
    arms = {"zero_shot", "nearest_image", "nearest_text", "nearest_both", "learned"}
    assert arms | {"oracle"} <= set(found.arms)
    assert (found.model_calls or 0) <= recipe.score.budget
    shown = set()
    for _, _, draw in read_predictions(run.folder / "predictions.parquet"):
        for prediction in draw:
            shown |= set(prediction.demos)
    assert shown <= {item.id for item in run.task.items("train")}
    assert (run.folder / "report.html").stat().st_size > 10_000
    assert read_record(run.folder / "eval.json") == found
