"""`fused` and its rivals on recorded log-probabilities of labels: no example, the nearest one, five with one each.

python benchmarks/fused_labels.py TASK FOLDER [FILE.parquet]        trec, sst2 or agnews; FOLDER holds their texts
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from fused import HERE, Examples, as_vectors, show, without_model

from leverplus import catalog
from leverplus.arms.corpus import Queries
from leverplus.arms.training import Training
from leverplus.bundle.answering import heard
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.types import Item
from leverplus.encode.cached import open_embedder
from leverplus.encode.settings import EmbedSection
from leverplus.encode.tfidf import TfidfVectors

MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")


def answered(task: Any, name: str) -> tuple[list[Item], dict[str, dict[str, str]]]:
    """Every arm's answers to the test texts of a task with labels, with two kinds of vectors."""
    every = {item.id: item for split in ("train", "dev", "test") for item in task.items(split)}  # fmt: skip
    said: Any = defaultdict(lambda: defaultdict(dict))
    for model, end in product(MODELS, ("", "-test")):
        path = HERE / f"tables/{name}-{model}{end}.parquet"
        if not path.is_file():
            continue
        table = pq.read_table(path)
        labels = json.loads(pq.read_metadata(path).metadata[b"leverplus.card"])[
            "labels"
        ]
        for row in table.to_pylist():
            if len(row["demos"]) < 2:
                weighed = dict(zip(labels, row["label_logprobs"], strict=True))
                score = heard(row["query"], (), weighed, task.answers)
                said[model][row["query"]]["".join(row["demos"])] = score
    first = said[MODELS[0]]
    learnt = [every[own] for own in sorted({demo for by in first.values() for demo in by} - {""})]  # fmt: skip
    asked = [item for item in task.items("test") if item.id in first]
    texts = [item.question for item in [*learnt, *asked]]
    encoder = open_embedder(EmbedSection(name="sentence"))
    both = [np.asarray(encoder.of_texts(texts))]  # type: ignore[attr-defined]
    words = TfidfVectors(EmbedSection(name="tfidf"))
    words.learn(texts[: len(learnt)])
    both.append(np.concatenate([both[0], words.of_texts(texts)], axis=1) / 2**0.5)
    found: dict[str, dict[str, str]] = {}
    for kind, text in zip(("MiniLM", "MiniLM and words"), both, strict=True):
        examples = Examples(learnt, as_vectors(text[: len(learnt)]), task.answers)
        assert examples.labels is not None
        print(
            f"{kind}: label regression {100 * examples.labels.accuracy:.1f} % on training texts, left out"
        )
        queries = Queries(asked, as_vectors(text[len(learnt) :]))
        answers = without_model(examples, queries)
        rows = Training.asked(examples, range(len(learnt)))
        for model, by_query in said.items():
            told: Any = defaultdict(dict)
            for own in (rows, queries):
                ranked = examples.corpus.nearest(own, 1.0, 20)
                for item, near in zip(own.items, ranked, strict=True):
                    recorded = by_query.get(item.id, {})
                    ids = [learnt[row].id for row in near.rows.tolist()]
                    shown = [one for one in ids if one in recorded][:5]
                    for place, demo in enumerate(["", *shown] if recorded else []):
                        told[str(place)][item.id] = recorded[demo]
            examples.told = told
            for title, lists in (("zero-shot", "0"), ("nearest", "1"), ("five of one", "54321")):  # fmt: skip
                answers[f"{model}, {title}"] = examples.vote(queries, lists)
                fused_name = f"fused, {model}, {title}"
                answers[fused_name], weight = examples.fused(queries, lists)
                print(f"{kind}, {model}, {title}: weight {weight:.1f}")
        for own_name, given in answers.items():
            ids = [item.id for item in asked]
            found[f"{own_name}, {kind}"] = dict(zip(ids, given, strict=True))
    return asked, found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("task", choices=("trec", "sst2", "agnews"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", nargs="?", default="")
    given = parser.parse_args()
    section = TaskSection(name=given.task, folder=str(given.folder))
    if given.task == "agnews":
        section = TaskSection(name="labels", file=str(given.folder / "agnews.jsonl"))
    task = catalog.load(catalog.TASKS, section.name, "task")(section)
    show(*answered(task, given.task), task.answers, given.out)


if __name__ == "__main__":
    main()
