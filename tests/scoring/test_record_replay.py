"""A live model recorded and then replayed: the same answers item by item, in every arm."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from leverplus.cli.main import main
from leverplus.experiment.evaluate import evaluate_run
from leverplus.experiment.opening import open_run
from leverplus.experiment.train import train_run
from leverplus.recipe.recipe import find_recipe, load_recipe

SMALL = [
    *("score.search=dense", "score.queries=6", "score.dev_queries=5", "score.dev_shots=[1]", "pool.size=6"),
    *("eval.dev_items=5", "eval.items=8", "eval.shots=[1]", "eval.diagnostics=false", "sft.epochs=1"),
]
KEPT = ["item", "arm", "shots", "draw", "demos", "answer", "score"]


def opened(folder: Path, store: Path, *more: str):
    return open_run(load_recipe("world", [*SMALL, *more]), find_recipe("world"), folder, seed=0, store_path=store)


@pytest.mark.slow
def test_a_recorded_model_replays_every_arm_item_by_item(tmp_path):
    table, store = tmp_path / "t.parquet", tmp_path / "s.db"
    assert main(["record", "world", "--out", str(table), "--full", "--store", str(store), "--set", *SMALL]) == 0
    live = opened(tmp_path / "live", store)
    policy = train_run(live)
    told = evaluate_run(live, policy)
    assert live.scorer.meter.fresh == 0, "everything the run asks at one shot was recorded"
    names = f"model.name={table},{table.with_stem('t-test')}"
    replayed = opened(tmp_path / "replay", tmp_path / "none.db", "score.backend=table", "pool.kind=recorded", names)
    again = evaluate_run(replayed, policy)
    assert json.dumps(again["arms"]) == json.dumps(told["arms"])
    first, second = (pq.read_table(tmp_path / run / "predictions.parquet", columns=KEPT) for run in ("live", "replay"))
    assert first.equals(second)
    assert train_run(replayed) is not None
