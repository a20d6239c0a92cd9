"""Habits of the world's model beside those of real ones: what demonstrations' pictures, answers and places do, copying.

    python benchmarks/world_habits.py [--worlds 100 101 102] [--n 500]

In the world: accuracy with the four nearest by both, with their pictures exchanged between demonstrations of all
queries, and with their answers exchanged; and how often the answer is that of the one random demonstration shown.
Copying of real models is read from the recorded tables of OK-VQA, whose items ship: the sixteen random candidates of
each test query, one shown at a time.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from world_probe import Look, look

from leverplus.rundir import shipped
from leverplus.world.reader import PromptItems
from leverplus.world.weights import load_encoder, load_lvlm

TABLES = Path(__file__).resolve().parent / "tables"
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
RANDOM = slice(48, 64)
"""Places of the random candidates among those of a recorded query (docs/recorded.md)."""
SHARE = 0.5
"""Of the question in nearest by both."""


def exchanged(own: Look, demos: torch.Tensor, part: str, seed: int) -> float:
    """Accuracy when the demonstrations shown have the picture or the answer of another one shown."""
    values, rows = getattr(own.table, part), demos.flatten()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(rows)))
    many = {name: getattr(own.table, name) for name in ("seen", "question", "answer")}
    shown = {name: value[rows] for name, value in many.items()} | {part: values[rows[order]]}
    table = PromptItems(*(torch.cat([many[name], shown[name]]) for name in many))
    place = torch.arange(len(rows)).view(demos.shape) + len(own.table.answer)
    return float(replace(own, table=table).of(place).mean())


@torch.inference_mode()
def habits(world: int, n: int) -> dict[str, float]:
    own = look((load_lvlm(), load_encoder()), "test", n, world, "cpu")
    near = SHARE * own.similarity(own.text) + (1 - SHARE) * own.similarity(own.image)
    demos = own.pool.gather(1, near.argsort(1, descending=True)[:, :4].flip(1))
    answer = own.ask(own.query, own.pool[:, :1], own.references)[2]
    return {
        "four nearest": float(own.of(demos).mean()),
        "pictures exchanged": exchanged(own, demos, "seen", world),
        "answers exchanged": exchanged(own, demos, "answer", world),
        "copied": float((answer == own.table.answer[own.pool[:, 0]]).all(1).float().mean()),
    }


def copied_in_table(path: Path, shown: Mapping[str, str]) -> tuple[float, int]:
    """The share of answers that are the shown demonstration's, of random candidates; and how many queries it is of."""
    import pyarrow.parquet as pq

    rows = pq.read_table(path, columns=["query", "demos", "answer"]).to_pylist()
    asked: dict[str, list[bool]] = {}
    for row in rows:
        if len(row["demos"]) == 1:
            asked.setdefault(row["query"], []).append(row["answer"] == shown[row["demos"][0]])
    return float(np.mean([same for own in asked.values() for same in own[RANDOM]])), len(asked)


def shown_answers() -> dict[str, str]:
    """What every OK-VQA item shows as its answer when it is a demonstration."""
    with gzip.open(shipped("tables:okvqa-items.jsonl.gz"), "rt", encoding="utf-8") as file:
        items = [json.loads(line) for line in file]
    return {item["id"]: Counter(item["answers"]).most_common(1)[0][0] for item in items if item["answers"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--n", type=int, default=500, help="test questions of each world")
    args = parser.parse_args()
    found = [habits(world, args.n) for world in args.worlds]
    for name in found[0]:
        print(f"world, {name}: {100 * np.mean([own[name] for own in found]):.1f} % (n = {args.n * len(found):,})")
    shown = shown_answers()
    for model in MODELS:
        name = f"okvqa-{model}-test.parquet"
        path = TABLES / name if (TABLES / name).exists() else shipped(f"tables:{name}")
        share, queries = copied_in_table(path, shown)
        print(f"OK-VQA, {model}, copied: {100 * share:.1f} % (n = {queries:,} x 16)")


if __name__ == "__main__":
    main()
