"""What the pictures of `benchmarks/draw.py` show, measured on recorded tables: numbers and texts, no drawing."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from leverplus.stats.bootstrap import known_interval

HERE = Path(__file__).parent
SHIPPED = HERE.parent / "leverplus" / "tables"

PANELS = (
    ("okvqa", "qwen2.5-coder-0.5b"),
    ("okvqa", "qwen2.5-coder-1.5b"),
    ("trec", "qwen2.5-coder-0.5b"),
    ("trec", "qwen2.5-coder-1.5b"),
)
CHOOSERS = {
    "nearest": ("nearest_question", "nearest_text"),
    "diverse (MMR)": ("mmr_question", "mmr_text"),
    "random": ("random_0", "random"),
}
"""Ways of choosing by the name shown, and what the lists are called where each task was recorded."""
EXAMPLE = "okvqa-qwen2.5-coder-1.5b"
SHOWN = "4907205"
"""The test query of the first picture, picked by eye among those that a near demonstration helps."""
CHANCE = slice(48, 64)
"""Places of the uniform random candidates among the 64 of a query (docs/recorded.md)."""


def measure() -> dict[str, Any]:
    """Everything the pictures show, as plain numbers and texts."""
    return {
        "shots": [panel(task, model) for task, model in PANELS],
        "effects": audited(),
        "example": example(),
        "costs": costs(),
    }


def tables_of(task: str, model: str) -> list[Path]:
    """The recorded answers of test queries, wherever they lie."""
    name = f"{task}-{model}-test.parquet"
    return [path for path in (HERE / "tables" / name, SHIPPED / name) if path.is_file()]


def panel(task: str, model: str) -> dict[str, Any]:
    """Mean accuracy and interval by shots for each way of choosing, on the test queries with longer prompts."""
    rows = pq.read_table(tables_of(task, model)[0], columns=["query", "demos", "accuracy"]).to_pylist()
    known = {(row["query"], tuple(row["demos"])): row["accuracy"] for row in rows}
    lists: dict[str, dict[str, list[list[str]]]] = defaultdict(lambda: defaultdict(list))
    for row in pq.read_table(HERE / "tables" / f"{task}-sequences.parquet").to_pylist():
        if (row["query"], ()) in known:
            lists[row["chooser"]][row["query"]].append(row["demos"])
    nearest = next(lists[alias] for alias in CHOOSERS["nearest"] if alias in lists)
    for alias in CHOOSERS["diverse (MMR)"]:
        if alias in lists:  # a list that equals the nearest ones was recorded once, under their name
            lists[alias] = {query: lists[alias].get(query) or nearest[query] for query in nearest}
    found: dict[str, Any] = {"task": task, "model": model, "curves": {}}
    for name, aliases in CHOOSERS.items():
        chooser = next((alias for alias in aliases if alias in lists), None)
        if chooser is None:
            raise SystemExit(f"{task}: no lists of {name}; there are {sorted(lists)}")
        curve = {}
        for shots in (0, 1, 2, 4, 8, 16):
            values = accuracies(known, lists[chooser], shots)
            if name == "random" and shots == 1:
                values = by_chance(known, list(lists[chooser]))
            if len(values) == len(lists[chooser]):
                low, high = known_interval(values) or (math.nan, math.nan)
                curve[str(shots)] = {"mean": sum(values) / len(values), "ci95": [low, high], "n": len(values)}
        found["curves"][name] = curve
    return found


def accuracies(
    known: dict[tuple[str, tuple[str, ...]], float], lists: dict[str, list[list[str]]], shots: int
) -> list[float]:
    """Of every query that was recorded with so many of these demonstrations; the nearest stands last."""
    values = []
    for query, own in lists.items():
        longest = max(own, key=len)
        exact = next((tuple(one) for one in own if len(one) == shots), tuple(longest[len(longest) - shots :]))
        if len(exact) == shots and (query, exact) in known:
            values.append(known[query, exact])
    return values


def by_chance(known: dict[tuple[str, tuple[str, ...]], float], queries: Sequence[str]) -> list[float]:
    """The mean over the uniform random candidates of each query, which stand last among its one-shot prompts."""
    tried: dict[str, list[float]] = defaultdict(list)
    for (query, demos), accuracy in known.items():
        if len(demos) == 1:
            tried[query].append(accuracy)
    return [sum(tried[query][CHANCE]) / len(tried[query][CHANCE]) for query in queries]


def costs() -> dict[str, Any]:
    """Characters a model reads per query, all of them and those that no earlier prompt began with, beside accuracy."""
    items = shipped_items()
    rows = pq.read_table(SHIPPED / f"{EXAMPLE}-test.parquet", columns=["query", "demos", "accuracy"]).to_pylist()
    known = {(row["query"], tuple(row["demos"])): row["accuracy"] for row in rows}
    found: dict[str, Any] = {}
    recorded = pq.read_table(HERE / "tables" / "okvqa-sequences.parquet").to_pylist()
    for name, chooser in (("nearest", "nearest_question"), ("one list for all", "fixed")):
        for shots in (2, 4, 8):
            lists = [row for row in recorded if row["chooser"] == chooser and len(row["demos"]) == shots]
            asked = [
                (row["query"], tuple(row["demos"])) for row in lists if (row["query"], tuple(row["demos"])) in known
            ]
            prompts = [prompt_of(items, query, demos) for query, demos in asked]
            found.setdefault(name, {})[str(shots)] = {
                "n": len(asked),
                "accuracy": sum(known[key] for key in asked) / len(asked),
                "read": sum(map(len, prompts)) / len(prompts),
                "new": sum(unseen(prompts)) / len(prompts),
            }
    return found


def prompt_of(items: dict[str, Any], query: str, demos: Sequence[str]) -> str:
    """The plain prompt of a query, as `model.template` writes it."""
    shown = [f"Question: {items[demo]['question']}\nAnswer: {said(items[demo])['answer']}\n" for demo in demos]
    return "".join(shown) + f"Question: {items[query]['question']}\nAnswer:"


def unseen(prompts: Sequence[str]) -> list[int]:
    """Of every prompt the characters behind its longest beginning that an earlier one shares: an ideal prefix cache."""
    ordered, counts = [], []
    for prompt in prompts:
        place = bisect_left(ordered, prompt)  # the longest shared beginning is with a neighbour in sorted order
        near = ordered[max(0, place - 1) : place + 1]
        counts.append(len(prompt) - max((shared(prompt, other) for other in near), default=0))
        ordered.insert(place, prompt)
    return counts


def shared(first: str, second: str) -> int:
    """How many characters two texts begin with in common."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))


def audited() -> dict[str, Any]:
    """What `lever demos audit` says of the shipped table."""
    command = [
        sys.executable,
        "-m",
        "leverplus",
        "demos",
        "audit",
        f"tables:{EXAMPLE}.parquet",
        "--show",
        "7",
        "--json",
    ]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def shipped_items() -> dict[str, Any]:
    with gzip.open(SHIPPED / "okvqa-items.jsonl.gz", "rt", encoding="utf-8") as lines:
        return {item["id"]: item for item in map(json.loads, lines)}


def example() -> dict[str, Any]:
    """The query SHOWN with the first random demonstration that leaves it wrong and the first near one that helps."""
    items = shipped_items()
    rows = pq.read_table(SHIPPED / f"{EXAMPLE}-test.parquet", filters=[("query", "==", SHOWN)]).to_pylist()
    one_shot = [row for row in rows if len(row["demos"]) == 1 and len(items[row["demos"][0]]["question"]) < 80]
    chance = {row["demos"][0] for row in [row for row in rows if len(row["demos"]) == 1][CHANCE]}
    wrong = next(row for row in one_shot if row["accuracy"] == 0.0 and row["demos"][0] in chance)
    right = next(row for row in one_shot if row["accuracy"] == 1.0 and not copies(items, row))
    return {
        "query": said(items[SHOWN]),
        "wrong": {"demo": said(items[wrong["demos"][0]]), "answer": wrong["answer"]},
        "right": {"demo": said(items[right["demos"][0]]), "answer": right["answer"]},
    }


def copies(items: dict[str, Any], row: dict[str, Any]) -> bool:
    """The demonstration asks the same question or shows the answer, which would teach a reader nothing."""
    demo, query = items[row["demos"][0]], items[row["query"]]
    return demo["meta"]["question"] == query["meta"]["question"] or said(demo)["answer"] in query["answers"]


def said(item: dict[str, Any]) -> dict[str, str]:
    """Caption, question and the answer given most often."""
    answers = item["answers"]
    return {
        "caption": item["meta"]["caption"],
        "question": item["meta"]["question"],
        "answer": max(answers, key=answers.count),
    }
