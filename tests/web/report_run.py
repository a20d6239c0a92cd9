"""A small finished run: real recipe, real statistics, and a task whose texts try to break out of the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from PIL import Image

from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError
from leverplus.evaluate.evaluate import (
    arm_results,
    compared_pairs,
    comparisons,
    gap_closed,
)
from leverplus.evaluate.predictions import Prediction, Results, write_predictions
from leverplus.evaluate.record import Advice, EvaluationRecord, Misses
from leverplus.run.recipe import Recipe, find_recipe, load_recipe
from leverplus.run.run import open_run

HOSTILE = (
    "<script>document.documentElement.dataset.pwned='1'</script>",
    "</script><script>document.documentElement.dataset.pwned='2'</script>",
    "<img src=x onerror=\"document.documentElement.dataset.pwned='3'\">",
    "{{ 7 * 7 }} {% raw %} ${7*7} <!-- ]]> \u2028 &lt;b&gt;",
    "مرحبا بالعالم \u202eevil\u202c",
    "😀👩‍👩‍👧 \x00\x07 \ufeff",
    "long " * 2048,
    "' onmouseover='document.documentElement.dataset.pwned=4' \"",
)
ARMS = {
    "zero_shot": 0.3,
    "random": 0.35,
    "nearest_both": 0.5,
    "learned": 0.9,
    "oracle": 0.95,
}
N = 36


class HostileTask:
    """Two questions a picture; every text is hostile, every picture distinct."""

    name, version = "hostile<script>", "1"
    answers = AnswerRules("vqa_accuracy", "plain")

    def __init__(self) -> None:
        self.all: dict[ItemId, Item] = {}
        for split in ("train", "test"):
            for row in range(40):
                picture = f"{split}:{row // 2}"
                item = Item(
                    id=ItemId(f"{split}-{row:02d}"),
                    question=HOSTILE[row % len(HOSTILE)],
                    answers=(HOSTILE[(row + 1) % len(HOSTILE)],) * 3 + ("plain",),
                    split=split,
                    image=picture,
                    image_id=picture,
                )
                self.all[item.id] = item

    def items(self, split: str) -> Sequence[Item]:
        return [item for item in self.all.values() if item.split == split]

    def item(self, item_id: ItemId) -> Item:
        if item_id not in self.all:
            raise DataError(f"no item {item_id}")
        return self.all[item_id]

    def image(self, item: Item) -> Image.Image:
        number = 10 * int(str(item.image).split(":")[1]) % 256
        green = 120 if item.split == "test" else 30
        return Image.new("RGB", (200, 120), (number, green, 90))

    def image_digest(self, item: Item) -> str:
        return str(item.image)


@dataclass
class Made:
    """A run as the report sees it."""

    recipe: Recipe
    folder: Path
    seed: int
    task: HostileTask

    def pools(self, queries: Sequence[Item]) -> NoReturn:
        raise DataError("these items have no vectors")


def make_results(task: HostileTask) -> Results:
    """Five arms at two numbers of shots; an arm is right with a fixed chance."""
    rng = np.random.default_rng(0)
    queries = list(task.items("test"))[:N]
    demos = [item.id for item in task.items("train")]
    results = Results.of(queries)
    for arm, chance in ARMS.items():
        for shots in (0,) if arm == "zero_shot" else (1, 2):
            for _ in range(2 if arm == "random" else 1):
                rows = []
                for row, query in enumerate(queries):
                    places = rng.choice(len(demos), shots, replace=False)
                    chosen = tuple(demos[place] for place in places.tolist())
                    answer = HOSTILE[row % len(HOSTILE)][:300]
                    right = float(rng.random() < chance)
                    rows.append(Prediction(query.id, chosen, answer, right))
                results.add(arm, shots, rows)
    return results


def make_record(task: HostileTask, results: Results) -> EvaluationRecord:
    arms = arm_results(results, 1234)
    misses = Misses(n=36, pool=0.1, count=0.05, choice=0.2, order=0.0, total=0.35)
    return EvaluationRecord(
        task=task.name,
        n=len(results.items),
        model_calls=1234,
        eval_calls=567,
        arms=arms,
        gap_closed=gap_closed(arms),
        comparisons=comparisons(results, compared_pairs(results)),
        regret={"learned": {1: misses}},
        advice=Advice(arm="learned", shots=1, why="Use learned."),
        context="ab" * 16,
    )


def make_log() -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []
    for stage, epochs in (("sft", 3), ("grpo", 4)):
        for epoch in range(1, epochs + 1):
            line: dict[str, object] = {"stage": stage, "epoch": epoch}
            line |= {"step": 5 * epoch, "lvlm_calls": 100 + 10 * epoch}
            line |= {"train/loss/total": 1.0 / epoch, "val/reward": 0.5 + 0.01 * epoch}
            if stage == "grpo":
                line |= {"train/kl": 0.1 * epoch, "train/reward": None}
                line |= {"train/frac_reward_zero_std": 0.4}
            lines.append(line)
    return lines


def write_run(folder: Path, task: HostileTask) -> Made:
    recipe = load_recipe("world", ["eval.items=36"])
    open_run(recipe, find_recipe("world"), folder, seed=3, store_path=folder / "s.db")
    results = make_results(task)
    make_record(task, results).write(folder / "eval.json")
    write_predictions(results, folder / "predictions.parquet")
    lines = [json.dumps(line) + "\n" for line in make_log()]
    (folder / "log.jsonl").write_text("".join(lines))
    bins = {"edges": [0.0, 0.5, 1.0], "counts": [30, 42]}
    counted = {"groups": 12, "sequences": 72, "flat": 3, "all_wrong": 2, "all_right": 1}
    counted |= {"rewards": bins, "spread": {**bins, "counts": [9, 3]}}
    more = {"advantages": {"edges": [-2.0, 0.0, 2.0], "counts": [20, 22]}}
    (folder / "groups-sft.json").write_text(json.dumps(counted))
    (folder / "groups-grpo.json").write_text(json.dumps(counted | more))
    finding = {
        "code": "flat<script>",
        "severity": "warning",
        "title": HOSTILE[1],
        "evidence": {"stage": "grpo", "epoch": 2},
        "cause": HOSTILE[2] + " \ud800",
    }
    found = {"findings": [finding, {"code": "bare"}]}
    (folder / "findings.json").write_text(json.dumps(found))
    return Made(recipe, folder, 3, task)
