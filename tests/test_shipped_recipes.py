"""The recipes of the best method run from start to end, smaller.

The gallery is run by tests/bench/test_sick_gallery.py, `world` by the tests of every room, `sst2_smollm` by
tests/test_smollm_run.py, `own_labels` by tests/test_pages.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leverplus.cli.main import main

SMALL = (
    "pool.size=6", "score.budget=160", "score.dev_queries=2", "score.dev_shots=[1]", "score.rounds=1", "eval.items=4",
    "eval.shots=[1]", "eval.dev_items=2", "eval.random_draws=1", "eval.diagnostic_items=2", "eval.exhaustive_calls=0",
    "agreement.epochs=1", "agreement.queries=64", "listwise.epochs=2",
    "reward.components=[]", "reward.component_weights=[]",
)  # fmt: skip
"""The reward is the plain one: learning what labels let expect of 8,000 items takes half a minute."""


@pytest.mark.parametrize("name", ["best_8k", "best", "best_32k"])
def test_the_recipes_of_the_best_method_run_to_their_end(name: str, tmp_path: Path) -> None:
    words = ["run", name, "--out", str(tmp_path / "run"), "--store", str(tmp_path / "scores.db"), "--ignore-findings"]
    assert main([*words, "--set", *SMALL]) == 0
    found = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert found["n"] == 4
    assert found["arms"]["learned"]["shots"].keys() == {"1"}
