"""The recorded benchmark: real models' answers to the same prompts, kept as tables that replay on any machine.

    python benchmarks/record_tables.py plan --data DATA --out plans             items and prompts of every task (CPU)
    python benchmarks/record_tables.py answer --plans plans --model NAME=PATH --out answers    ask a model (GPU or CPU)
    python benchmarks/record_tables.py tables --plans plans --answers answers --out tables     Parquet tables with cards
    python benchmarks/record_tables.py items TASK --data DATA --out FILE        the items of a table that ships none
    python benchmarks/record_tables.py vectors TASK --plans plans --out FILE    the vectors of a task's texts
    python benchmarks/record_tables.py summary --tables tables                  first accuracies of every table

`--tiny` (plan) makes everything small enough for a CPU. `answer` writes one file a shard, so that a stopped recording
goes on where it was, and any number of processes may work on one folder. docs/recorded.md says what is asked and why.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from record_plan import SOURCES, TINY, Plan, Planner, Sizes, Source, read_plan, write_plan
from record_write import summary, write_items, write_stored, write_tables

from leverplus.metrics import normalise_answer
from leverplus.types import Item

PER_SHARD = 40_000
CHUNK = 8192
MAX_NEW_TOKENS = 6
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")


def plan_tasks(args: argparse.Namespace) -> None:
    from leverplus.embedders.cached import open_embedder
    from leverplus.recipe.sections import EmbedSection

    embedder: Any = open_embedder(EmbedSection(name="sentence"), args.cache)
    for name in args.tasks:
        started = time.perf_counter()
        source = SOURCES[name]
        planner = Planner(source, source.read(args.data), embedder.of_texts, TINY if args.tiny else Sizes())
        plan = planner.plan()
        write_plan(plan, args.out, name)
        splits = {split: sum(item.split == split for item in plan.items) for split in ("train", "dev", "test")}
        took = time.perf_counter() - started
        print(f"{name}: {splits}, {plan.dense:,} one-shot and {len(plan.choosers):,} longer prompts, {took:.0f} s")


class Recorder:
    """Asks one model the prompts of a plan and keeps what it said."""

    def __init__(self, name: str, path: str, batch_tokens: int) -> None:
        self.name, self.path, self.batch_tokens = name, path, batch_tokens
        self.backends: dict[str, Any] = {}
        self.loaded: Any = None

    def backend(self, source: Source) -> Any:
        """The backend with a task's template; the model itself is loaded once."""
        from leverplus.backends.hf.backend import HfBackend
        from leverplus.backends.hf.prompts import ModelPrompts
        from leverplus.recipe.model import ModelSection

        section = ModelSection(
            name=self.path,
            template=source.template,
            max_new_tokens=MAX_NEW_TOKENS,
            batch_tokens=self.batch_tokens,
        )
        if self.loaded is None:
            self.loaded = HfBackend(None, section)  # type: ignore[arg-type]  # no pictures: the task is not looked at
        backend = self.loaded
        backend.section, backend.prompts = section, ModelPrompts(backend.loaded.tokenizer, section)
        backend.stops = backend.prompts.stops(backend.loaded.model)
        return backend

    def record(self, source: Source, plan: Plan, rows: Sequence[int]) -> dict[str, Any]:
        """What the model says to some prompts, in their order."""
        from leverplus.backends.base import Request

        backend = self.backend(source)
        weighed = [references(source, item) for item in plan.items]
        demos = [tuple(place for place in own if place >= 0) for own in plan.demos[rows].tolist()]
        order = sorted(range(len(rows)), key=lambda row: (demos[row], int(plan.queries[rows[row]])))
        raw = [""] * len(rows)
        probability = np.zeros(len(rows), np.float16)
        logprobs = np.zeros((len(rows), len(source.labels)), np.float16)
        for start in range(0, len(order), CHUNK):
            part = order[start : start + CHUNK]
            requests = []
            for row in part:
                query = int(plan.queries[rows[row]])
                shown = tuple(plan.items[place] for place in demos[row])
                requests.append(Request(plan.items[query], shown, tuple(weighed[query]), choose=bool(source.labels)))
            for row, reply in zip(part, backend.answer(requests), strict=True):
                counts = weighed[int(plan.queries[rows[row]])].values()
                total = sum(math.exp(p) * min(n / 3, 1.0) for p, n in zip(reply.logprobs, counts, strict=True))
                probability[row] = min(total, 1.0)
                raw[row] = reply.raw
                if source.labels:
                    logprobs[row] = reply.logprobs
        vocabulary = sorted(set(raw))
        numbers = {text: number for number, text in enumerate(vocabulary)}
        return {
            "rows": np.asarray(rows, np.int32),
            "raw": np.array([numbers[text] for text in raw], np.int32),
            "vocabulary": np.frombuffer(json.dumps(vocabulary).encode(), np.uint8),
            "gt_prob": probability,
            "logprobs": logprobs,
            "model": np.frombuffer(json.dumps(dict(backend.fingerprint())).encode(), np.uint8),
        }


def references(source: Source, item: Item) -> dict[str, int]:
    """The answers that are weighed for a query with how often they were given: its references, or all labels."""
    counts: dict[str, int] = {}
    for answer in item.answers:
        if text := normalise_answer(answer):
            counts[text] = counts.get(text, 0) + 1
    return {label: counts.get(label, 0) for label in source.labels} if source.labels else counts


def shards(plan: Plan, kind: str, size: int) -> list[list[int]]:
    """The rows of a plan in pieces; the one-shot table of a query stays in one piece."""
    if kind == "sequences":
        rows = list(range(plan.dense, len(plan.queries)))
        return [rows[start : start + size] for start in range(0, len(rows), size)]
    found: list[list[int]] = [[]]
    for row in range(plan.dense):
        if plan.demos[row, 0] < 0 and len(found[-1]) >= size:
            found.append([])
        found[-1].append(row)
    return found


def answer(args: argparse.Namespace) -> None:
    name, _, path = args.model.partition("=")
    recorder = Recorder(name, path, args.batch_tokens)
    args.out.mkdir(parents=True, exist_ok=True)
    for job in args.jobs:
        task, _, kind = job.partition(":")
        plan = read_plan(args.plans, task)
        for number, rows in enumerate(shards(plan, kind or "dense", args.per_shard)):
            file = args.out / f"{task}.{name}.{kind or 'dense'}{number:02d}.npz"
            if file.exists() or not claimed(file):
                continue
            started = time.perf_counter()
            found = recorder.record(SOURCES[task], plan, rows)
            part = file.with_suffix(".part")
            with part.open("wb") as stream:
                np.savez_compressed(stream, **found)
            part.rename(file)
            took = time.perf_counter() - started
            print(f"{file.stem}: {len(rows):,} prompts, {took:.1f} s, {len(rows) / took:.0f}/s", flush=True)


def claimed(file: Path) -> bool:
    """Whether this process may work on a shard; a claim of a process that is gone is taken over by deleting it."""
    try:
        os.close(os.open(file.with_suffix(".claim"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("plan")
    sub.add_argument("--data", type=Path, required=True)
    sub.add_argument("--out", type=Path, required=True)
    sub.add_argument("--cache", type=Path, default=Path("vectors"), help="folder that keeps vectors")
    sub.add_argument("--tasks", nargs="+", choices=tuple(SOURCES), default=list(SOURCES))
    sub.add_argument("--tiny", action="store_true")
    sub.set_defaults(run=plan_tasks)
    sub = commands.add_parser("answer")
    sub.add_argument("--plans", type=Path, required=True)
    sub.add_argument("--model", required=True, metavar="NAME=PATH")
    sub.add_argument("--out", type=Path, required=True)
    sub.add_argument("--jobs", nargs="+", metavar="TASK[:KIND]", default=[f"{name}:dense" for name in SOURCES])
    sub.add_argument("--per-shard", type=int, default=PER_SHARD)
    sub.add_argument("--batch-tokens", type=int, default=0)
    sub.set_defaults(run=answer)
    sub = commands.add_parser("tables")
    sub.add_argument("--plans", type=Path, required=True)
    sub.add_argument("--answers", type=Path, required=True)
    sub.add_argument("--out", type=Path, required=True)
    sub.add_argument("--tasks", nargs="+", choices=tuple(SOURCES), default=list(SOURCES))
    sub.add_argument("--models", nargs="+", default=list(MODELS))
    sub.set_defaults(run=write_tables)
    sub = commands.add_parser("items")
    sub.add_argument("task", choices=tuple(SOURCES))
    sub.add_argument("--data", type=Path, required=True)
    sub.add_argument("--out", type=Path, required=True)
    sub.set_defaults(run=write_items)
    sub = commands.add_parser("vectors")
    sub.add_argument("task", choices=tuple(SOURCES))
    sub.add_argument("--plans", type=Path, required=True)
    sub.add_argument("--cache", type=Path, default=Path("vectors"))
    sub.add_argument("--out", type=Path, required=True)
    sub.set_defaults(run=write_stored)
    sub = commands.add_parser("summary")
    sub.add_argument("--tables", type=Path, required=True)
    sub.set_defaults(run=summary)
    args = parser.parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    main()
