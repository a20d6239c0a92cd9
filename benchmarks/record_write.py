"""From a recorder's answers to tables: Parquet with cards, items, vectors, and first accuracies."""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from record_plan import SOURCES, Plan, Sizes, Source, assign, read_plan

RECORDED = "2026-11-16"


def answered(plan: Plan, folder: Path, task: str, model: str) -> dict[str, Any]:
    """What a model said to the prompts of a plan, from all its shards; `seen` marks prompts that were asked."""
    raw, seen = [""] * len(plan.queries), np.zeros(len(plan.queries), bool)
    gt_prob = np.zeros(len(plan.queries), np.float16)
    logprobs: Any = None
    backend: dict[str, str] = {}
    for path in sorted(folder.glob(f"{task}.{model}.*.npz")):
        with np.load(path) as file:
            rows, vocabulary = file["rows"], json.loads(file["vocabulary"].tobytes())
            seen[rows], gt_prob[rows] = True, file["gt_prob"]
            for row, number in zip(rows.tolist(), file["raw"].tolist(), strict=True):
                raw[row] = vocabulary[number]
            if logprobs is None:
                logprobs = np.zeros((len(plan.queries), file["logprobs"].shape[1]), np.float16)
            logprobs[rows] = file["logprobs"]
            backend = json.loads(file["model"].tobytes())
    return {"raw": raw, "seen": seen, "gt_prob": gt_prob, "logprobs": logprobs, "backend": backend}


def write_tables(args: argparse.Namespace) -> None:
    """`TASK-MODEL.parquet` (train and dev queries), `TASK-MODEL-test.parquet` and `TASK-sequences.parquet`."""
    from leverplus.tasks.files import FileTask

    for name in args.tasks:
        source, plan = SOURCES[name], read_plan(args.plans, name)
        metric = "label_accuracy" if source.labels else "vqa_accuracy"
        task = FileTask(name, plan.items, metric=metric, postprocess=source.postprocess, labels=source.labels)
        write_sequences(plan, args.out / f"{name}-sequences.parquet")
        for model in args.models:
            said = answered(plan, args.answers, name, model)
            for split in ("train", "test") if said["seen"].any() else ():
                path = args.out / f"{name}-{model}{'-test' if split == 'test' else ''}.parquet"
                card = _write(path, source, plan, said, task, model=model)
                size = path.stat().st_size
                print(f"{path.name}: {card['rows']:,} rows, {card['queries']:,} queries, {size:,} bytes", flush=True)


def _write(path: Path, source: Source, plan: Plan, said: dict[str, Any], task: Any, *, model: str) -> dict[str, Any]:
    from leverplus.backends.table.format import TableRow, TableWriter
    from leverplus.metrics import metric_named, postprocess_named

    judge, cut = metric_named(task.metric), postprocess_named(task.postprocess)
    known: dict[tuple[int, str], tuple[str, float]] = {}
    testing = path.stem.endswith("-test")
    with TableWriter(path, labels=source.labels) as writer:
        for row in np.flatnonzero(said["seen"]).tolist():
            query = int(plan.queries[row])
            item = plan.items[query]
            if (item.split == "test") != testing:
                continue
            key = (query, said["raw"][row])
            if key not in known:
                text = cut(key[1])
                known[key] = text, judge(text, item.answers)
            text, accuracy = known[key]
            weighed = tuple(said["logprobs"][row].tolist()) if source.labels else None
            demos = tuple(plan.items[place].id for place in plan.demos[row].tolist() if place >= 0)
            writer.add(TableRow(item.id, demos, accuracy, said["gt_prob"][row], text or None, weighed))
        facts = {
            "model": model,
            "backend": said["backend"],
            "prompt": {"form": "plain", "template": source.template, "instruction": ""},
            "task": source.name,
            "task_version": task.version,
            "postprocess": source.postprocess,
            "licence": source.licence,
            "recorded": RECORDED,
        }
        return writer.finish(task, facts)


def write_sequences(plan: Plan, path: Path) -> None:
    """Who chose which longer prompt: query, chooser, demonstrations as in the table's rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = range(plan.dense, len(plan.queries))
    columns = {
        "query": [plan.items[int(plan.queries[row])].id for row in rows],
        "chooser": plan.choosers,
        "demos": [[plan.items[place].id for place in plan.demos[row].tolist() if place >= 0] for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, compression="zstd", compression_level=19)


def write_items(args: argparse.Namespace) -> None:
    """The items of a task in the format of the tasks `jsonl` and `labels`, from the user's own copy of the data."""
    source = SOURCES[args.task]
    lines = []
    for item in assign(source, source.read(args.data), Sizes()):
        if source.labels:
            row = {"id": item.id, "text": item.question, "label": item.answer, "split": item.split}
        else:
            row = {"id": item.id, "question": item.question, "answers": item.answers, "image_id": item.image_id}
            row |= {"split": item.split, "meta": dict(item.meta)}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    text = "".join(lines).encode()
    args.out.write_bytes(gzip.compress(text, 9, mtime=0) if args.out.suffix == ".gz" else text)
    print(f"{args.out}: {len(lines):,} items")


def write_stored(args: argparse.Namespace) -> None:
    """The vectors of a task's questions and answers, for the embedder `stored`."""
    from leverplus.embedders.cached import open_embedder
    from leverplus.embedders.stored import write_vectors
    from leverplus.recipe.sections import EmbedSection

    embedder: Any = open_embedder(EmbedSection(name="sentence"), args.cache)
    items = read_plan(args.plans, args.task).items
    texts = sorted({text for item in items for text in (item.question, item.answer)})
    write_vectors(args.out, texts, embedder.of_texts(texts), embedder.fingerprint())
    print(f"{args.out}: {len(texts):,} texts, {args.out.stat().st_size:,} bytes")


def summary(args: argparse.Namespace) -> None:
    """First accuracies of every table on its test queries, in per cent: by place in the plan, one demonstration."""
    from leverplus.backends.table.table import read_table

    print("| task | model | n | zero-shot | random | nearest by question | fixed | oracle of 64 |")
    print("|---|---|---|---|---|---|---|---|")
    for path in sorted(args.tables.glob("*-test.parquet")):
        table = read_table([path])
        card = table.cards[0]
        found: dict[str, list[float]] = {name: [] for name in ("zero", "random", "question", "fixed", "oracle")}
        for query in sorted({table.ids.texts[number] for number in table.queries.tolist()}):
            rows = table.prompts(query)  # type: ignore[arg-type]
            dense = [float(table.accuracy[row]) for demos, row in rows.items() if len(demos) <= 1]
            # row 0 shows no demonstration, so that candidate n stands in row n + 1
            values = (dense[0], float(np.mean(dense[49:])), dense[1], dense[41], max(dense[1:]))
            for own, value in zip(found.values(), values, strict=True):
                own.append(value)
        cells = " | ".join(f"{100 * np.mean(own):.1f}" for own in found.values())
        print(f"| {card['task']} | {card['model']} | {len(found['zero'])} | {cells} |")
