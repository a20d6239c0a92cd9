"""Every arm of an evaluated run, packed: the bundle shows each question what the evaluation showed it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_world import TinyRun, run_tiny

from leverplus.arms.spec import known_arms
from leverplus.bundle.selector import Selector
from leverplus.evaluate.predictions import read_predictions
from leverplus.run.pack import pack_run
from leverplus.run.run import load_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small_pools(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """A run whose first stage is narrow and of another kind than any arm's own search."""
    place = tmp_path_factory.mktemp("pools")
    narrow = ("--set", "pool.kind=nearest_both", "--set", "pool.size=16")
    return run_tiny(place / "run", place / "scores.db", *narrow)


def test_all_evaluated_lists_come_out_of_the_bundles(
    small_pools: TinyRun, tmp_path: Path
) -> None:
    run = load_run(small_pools.folder, at_work=False)
    results = read_predictions(small_pools.folder / "predictions.parquet")
    asked = {item.id: item for item in run.task.items("test")}
    queries = []
    for name in results.items:
        item = asked[name]
        queries.append({"question": item.question, "image": run.task.image(item)})
    compared = set()
    for arm in set(results.draws) & set(known_arms()):
        bundle = Selector.load(pack_run(run, tmp_path / arm, arm=arm))
        for shots in results.draws[arm]:
            evaluated = [list(own.demos) for own in results.first(arm, shots)]
            served = bundle.select_many(queries, shots=shots)
            assert [[demo.id for demo in own] for own in served] == evaluated, arm
        compared.add(arm)
    shown = {
        "random", "nearest_text", "nearest_image", "nearest_both", "two_stage", "mmr", "learned", "label_rank", "effects",
    }  # fmt: skip
    assert shown <= compared
