"""Writes leverplus/tables/okvqa-sample.jsonl and .parquet: 400 of the shipped OK-VQA questions for the tutorial.

The demonstrations are the 250 training items that the shipped table was asked with most often; training queries are
the same ones; 60 dev and 90 test items are drawn by chance from those with at least 12 of them among their candidates.
The table holds what the model answered to these questions alone and with one of these demonstrations.

    python benchmarks/write_sample.py
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np

from leverplus.backends.table.format import TableRow, TableWriter
from leverplus.backends.table.table import RecordedTable, read_table
from leverplus.recipe.sections import TaskSection
from leverplus.tasks.base import Task
from leverplus.tasks.jsonl import jsonl
from leverplus.types import ItemId

TABLES = Path(__file__).parents[1] / "leverplus" / "tables"
DEMOS, HELD_OUT, CANDIDATES = 250, {"dev": 60, "test": 90}, 12


def main() -> None:
    with gzip.open(TABLES / "okvqa-items.jsonl.gz", "rt", encoding="utf-8") as file:
        items = {row["id"]: row for row in map(json.loads, file)}
    table = read_table(sorted(TABLES.glob("okvqa-qwen2.5-coder-1.5b*.parquet")))
    alone = np.flatnonzero(np.diff(table.starts) == 1)
    pairs = [
        (table.ids.texts[query], table.ids.texts[demo])
        for query, demo in zip(table.queries[alone], table.demos[table.starts[alone]], strict=True)
    ]
    usable = {name for name, row in items.items() if any(row["answers"])}
    train = {name for name in usable if items[name]["split"] == "train"}
    shown = Counter(demo for _, demo in pairs if demo in train)
    demos = {name for name, _ in sorted(shown.items(), key=lambda pair: (-pair[1], pair[0]))[:DEMOS]}
    held = Counter(query for query, demo in pairs if demo in demos)
    chosen, rng = sorted(demos), np.random.default_rng(0)
    for split, count in HELD_OUT.items():
        able = sorted(name for name in usable if items[name]["split"] == split and held[name] >= CANDIDATES)
        chosen += sorted(rng.choice(able, min(count, len(able)), replace=False).tolist())
        print(f"{split}: {len(able)} items have {CANDIDATES} candidates")
    print(f"candidates of a training query: median {np.median([held[name] for name in demos]):.0f}")
    keys = ("id", "question", "answers", "image_id", "split")
    lines = [json.dumps({key: items[name][key] for key in keys}, ensure_ascii=False) + "\n" for name in chosen]
    path = TABLES / "okvqa-sample.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    cut(table, set(chosen), jsonl(TaskSection(name="jsonl", file=str(path))))


def cut(table: RecordedTable, kept: set[str], task: Task) -> None:
    """The rows of the table whose query and demonstration are both kept, at most one demonstration a row."""
    texts = table.ids.texts
    facts = {key: table.cards[0][key] for key in ("model", "backend", "postprocess", "prompt", "licence")}
    about = {"task": task.name, "task_version": task.version, **facts}
    with TableWriter(TABLES / "okvqa-sample.parquet") as writer:
        for row in np.flatnonzero(np.diff(table.starts) <= 1).tolist():
            query = texts[table.queries[row]]
            demos = tuple(ItemId(texts[demo]) for demo in table.demos[table.starts[row] : table.starts[row + 1]])
            if query in kept and set(demos) <= kept:
                answer = table.answers.texts[table.answer[row]]
                writer.add(
                    TableRow(ItemId(query), demos, float(table.accuracy[row]), float(table.gt_prob[row]), answer)
                )
        card = writer.finish(task, about)
    print(f"{card['rows']} rows of {card['queries']} queries, model {card['model']}, licence {card['licence']}")


if __name__ == "__main__":
    main()
