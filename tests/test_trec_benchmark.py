"""The TREC benchmark chooses on dev, judges on test, and compares with prompts only; its classifier is a classifier."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from benchmarking import load_benchmark

from leverplus.embedders.base import Vectors
from leverplus.types import Item, ItemId

ITEMS = 200


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_benchmark("trec")


def arguments(work: Path, **changes: object) -> argparse.Namespace:
    known = {"folder": "nowhere", "calls": 60_000, "device": "cpu", "set": [], "work": str(work), "vectors": ""}
    return argparse.Namespace(**{**known, "recipe": "trec_smollm", "seeds": 3, "split": "test", **changes})


def split_of(right: dict[str, int], seed: int) -> dict:
    """Arms with so many right answers of 200; those with shots have them at 1-4, in other places for each seed."""
    arms = {}
    for arm, count in right.items():
        row = np.roll(np.arange(ITEMS) < count, 7 * seed).astype(float).tolist()
        arms[arm] = {"0": row} if arm.startswith(("label_vote", "linear")) else dict.fromkeys("1234", row)
    names = [str(n) for n in range(ITEMS)]
    return {"items": names, "images": names, "arms": arms}


def write_measured(benchmark: ModuleType, args: argparse.Namespace) -> None:
    """Calibration helps on dev and harms on test; a vote without the model and the majority beat every prompt."""
    rivals = {"nearest_text": 120, "mmr": 130, "majority": 195, "label_vote": 196, "linear_classifier": 197}
    for seed in range(args.seeds):
        own = rivals if seed == 0 else {}
        dev = split_of({"learned": 150, "learned_calibrated": 160, **own}, seed)
        test = split_of({"learned": 180, "learned_calibrated": 170, **own}, seed)
        facts = dict.fromkeys(("eval_calls", "fresh_calls", "seconds", "cpu_seconds"), 1)
        found = {"seed": seed, "calls": 50_000 + seed, **facts, "recipe_hash": "h", "backend": {}, "device": "cpu"}
        path = benchmark.measured_path(args, benchmark.open_seed(args, seed))
        path.write_text(json.dumps({**found, "splits": {"dev": dev, "test": test}}))


def test_dev_chooses_the_form_and_the_best_prompt_is_the_rival(benchmark: ModuleType, tmp_path: Path) -> None:
    args = arguments(tmp_path)
    write_measured(benchmark, args)
    found = benchmark.report(args)
    assert found["chosen_on_dev"] == "learned_calibrated"  # though the other one is better on test
    assert found["best_training_free"] == "mmr"  # what asks no model is beside it, not the rival
    assert found["verdict"]["diff"] == pytest.approx((170 - 130) / ITEMS)
    low, high = found["verdict"]["ci95"]
    assert 0 < low < found["verdict"]["diff"] < high
    assert found["comparisons"]["label_vote"]["diff"] == pytest.approx((170 - 196) / ITEMS)
    text = benchmark.show(found)
    assert "50,002 calls at most a seed; learned_calibrated was chosen on dev" in text
    assert "(mmr): +20.0 points" in text
    assert "(above zero)" in text
    for arm in ("label_vote", "linear_classifier"):
        assert f"| {arm} |" in text


def test_one_seed_is_compared_over_its_items_alone(benchmark: ModuleType, tmp_path: Path) -> None:
    args = arguments(tmp_path, seeds=1)
    write_measured(benchmark, args)
    verdict = benchmark.report(args)["verdict"]
    assert verdict["diff"] == pytest.approx((170 - 130) / ITEMS)
    assert 0 < verdict["ci95"][0] < verdict["diff"]
    assert verdict["seed_sd"] is None


def test_another_recipe_keeps_its_own_budget_below_the_limit(benchmark: ModuleType, tmp_path: Path) -> None:
    budgets = [
        benchmark.open_seed(arguments(tmp_path / str(n), **changes), 0).recipe.score.budget
        for n, changes in enumerate(({}, {"calls": 20_000}, {"recipe": "trec_few"}))
    ]
    assert budgets == [60_000, 20_000, 4_000]


def test_seeds_on_different_items_are_not_put_together(benchmark: ModuleType, tmp_path: Path) -> None:
    args = arguments(tmp_path)
    write_measured(benchmark, args)
    path = benchmark.measured_path(args, benchmark.open_seed(args, 1))
    path.write_text(path.read_text().replace('"items": ["0"', '"items": ["other"'))
    with pytest.raises(SystemExit, match="different items"):
        benchmark.report(args)


class Points:
    """Items on a circle: the label is the side of a line that does not go through the middle."""

    def items(self, split: str) -> list[Item]:
        rng = np.random.default_rng(sum(split.encode()))
        angles = rng.uniform(0, 2 * np.pi, 150)
        labels = ["left" if np.cos(angle) < 0.4 else "right" for angle in angles]
        return [
            Item(ItemId(f"{split}{n}"), str(angle), (label,), split)
            for n, (angle, label) in enumerate(zip(angles, labels, strict=True))
        ]

    def embed(self, items: list[Item], task: object) -> Vectors:
        angles = np.array([float(item.question) for item in items])
        text = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
        return Vectors(None, text, np.zeros_like(text))

    def fingerprint(self) -> dict[str, str]:
        return {"embedder": "points"}


def run_of(points: Points) -> SimpleNamespace:
    scorer = SimpleNamespace(labels=("left", "right"))
    return SimpleNamespace(task=points, embedder=points, scorer=scorer, demonstrations=points.items("train"))


def test_the_linear_classifier_learns_from_labels_alone(benchmark: ModuleType) -> None:
    run = run_of(Points())
    found = benchmark.linear_classifier(run, run.task.items("test"))
    assert np.mean([prediction.accuracy for prediction in found]) > 0.95


def test_vectors_from_a_file_are_those_of_the_encoder(benchmark: ModuleType, tmp_path: Path) -> None:
    run = run_of(Points())
    benchmark.keep_vectors(run, tmp_path / "v.safetensors")
    kept = benchmark.KeptVectors(tmp_path / "v.safetensors")
    items = run.task.items("dev")[::-1]
    np.testing.assert_array_equal(kept.embed(items, None).text, run.embedder.embed(items, None).text)
    assert kept.fingerprint() == {"embedder": "points"}
