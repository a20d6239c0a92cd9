"""How often each way of choosing shows an example whose answer has the right shape; no model is asked.

    python benchmarks/shapes.py FILE [--split-key meta.query_split] [--on dev|test] [--examples N] [--questions N]
                                [--metric NAME] [--database FILE] [--vectors sentence|tfidf|FILE.npz] [--arms a,b]

A shape is an answer with its values masked. `copy_nearest` answers by itself and is scored by the metric.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leverplus.arms.base import ArmUnavailable
from leverplus.arms.copy_nearest import CopyNearest
from leverplus.arms.corpus import Queries, forbidden_positions
from leverplus.arms.forecast import SHOTS, ShapeForecast, forecast_shapes
from leverplus.arms.spec import open_arm, split_specs
from leverplus.arms.training import Training
from leverplus.data.formats import Problems
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.jsonl import choose_metric, metric_options, read_task_file
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.types import Item
from leverplus.encode.base import Vectors
from leverplus.encode.settings import EmbedSection
from leverplus.encode.tfidf import TfidfVectors

ARMS = (
    "nearest_text,bm25,hybrid,masked,by_answer,cover,cover(bm25),cover(hybrid),fixed_nearest,"
    "copy_nearest,copy_nearest(masked)"
)


def embed(texts: Sequence[str], learn_from: Sequence[str], name: str) -> Any:
    """Unit vectors of texts (N, D)."""
    if name.endswith(".npz"):
        with np.load(name, allow_pickle=True) as kept:
            rows = dict(zip(kept["texts"], kept["vectors"], strict=True))
        return np.stack([rows[text] for text in texts])
    if name == "tfidf":
        vectors = TfidfVectors(EmbedSection(name="tfidf"))
        vectors.learn(learn_from)
        return vectors.of_texts(texts)
    import torch

    from leverplus.encode.networks import SentenceEncoder

    encoder = SentenceEncoder(EmbedSection(name="sentence"))
    distinct = sorted(set(texts), key=len)
    rows = {}
    with torch.inference_mode():
        for start in range(0, len(distinct), 32):
            part = distinct[start : start + 32]
            for text, row in zip(part, encoder.texts(part).numpy(), strict=True):
                rows[text] = row
    return np.stack([rows[text] for text in texts])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--split-key", default="split")
    parser.add_argument("--on", default="dev", choices=("dev", "test"))
    parser.add_argument("--examples", type=int, default=15_000)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--metric", default="auto")
    parser.add_argument("--database", default="")
    parser.add_argument("--vectors", default="sentence")
    parser.add_argument("--arms", default=ARMS)
    given = parser.parse_args(words)
    section = TaskSection(
        name="jsonl",
        file=str(given.file),
        split_key=given.split_key,
        metric=given.metric,
        database=given.database,
    )
    by_split, rules = read_splits(section)
    rng = np.random.default_rng(0)
    train = draw(by_split["train"], given.examples, rng)
    asked = draw(by_split[given.on], given.questions, rng)
    questions = [item.question for item in train]
    text = embed(
        questions + [item.question for item in asked], questions, given.vectors
    )
    nothing = np.zeros_like(text)
    count = len(train)
    examples = Training(train, Vectors(None, text[:count], nothing[:count]), rules)
    corpus = examples.corpus
    blind = [
        Item(item.id, item.question, (), "", meta=item.meta, fields=item.fields)
        for item in asked
    ]
    asked_vectors = Vectors(None, text[count:], nothing[count:])
    closed = forbidden_positions(asked, train)
    queries = Queries(blind, asked_vectors, closed, [None] * len(blind))
    print(
        f"{given.file.name}, {given.split_key}, {given.on}: {len(train):,} examples, {len(asked):,} questions, "
        f"metric {rules.metric}, vectors {given.vectors}"
    )
    names = split_specs(given.arms)
    lists: dict[str, dict[int, list[list[int]]]] = {}
    for name in names:
        arm = open_arm(name)
        started = time.perf_counter()
        try:
            arm.fit(examples)
        except ArmUnavailable as error:
            print(f"  {name:22s} {error}")
            continue
        fitted = time.perf_counter()
        if isinstance(arm, CopyNearest):
            shown = arm.choose_lists(queries, corpus, 0)
            copies = arm.answer(queries, corpus, shown, [])
            scores = [
                rules.score(rules.cut_answer(copy), item)
                for copy, item in zip(copies, asked, strict=True)
            ]
            print(f"  {name:22s} right without a model: {100 * np.mean(scores):.1f} %")
            continue
        arm.choose(queries[:1], corpus, 1)
        first = time.perf_counter()
        lists[name] = {}
        for shots in SHOTS:
            lists[name][shots] = arm.choose(queries, corpus, shots)
        ended = time.perf_counter()
        learnt = getattr(getattr(arm, "foreteller", None), "ridge", None)
        more = f" {learnt.shares} width {learnt.width}" if learnt is not None else ""
        share = getattr(arm, "word_share", None)
        more += f" words {share}" if share is not None else ""
        print(
            f"  {name:22s} learnt in {fitted - started:.1f} s, "
            f"{1000 * (ended - first) / max(1, len(asked)) / len(SHOTS):.1f} ms a question{more}",
            file=sys.stderr,
        )
    print(table(forecast_shapes(asked, dict(enumerate(train)), rules, lists)))


def table(found: ShapeForecast) -> str:
    """A table for a reader, in Markdown."""
    head = " | ".join(f"{count}" for count in SHOTS)
    lines = [
        f"Right shape among the shown ({found.questions:,} questions, {found.shapes:,} shapes of examples; possible "
        f"{found.possible:.2f})",
        "",
        f"| arm | {head} | likeness {head} |",
        "|---|" + "---|" * (2 * len(SHOTS)),
    ]
    for arm in found.arms:
        shares = " | ".join(f"{arm.shares[count]:.2f}" for count in SHOTS)
        likeness = " | ".join(f"{arm.likeness[count]:.2f}" for count in SHOTS)
        lines.append(f"| {arm.arm} | {shares} | {likeness} |")
    return "\n".join(lines)


def read_splits(
    section: TaskSection,
) -> tuple[dict[str, list[Item]], AnswerRules]:
    """The items of each split, those of other splits left out, and how their answers are judged."""
    problems = Problems("jsonl", "look at the file")
    examples = read_task_file(section, problems)
    metric = section.metric
    if metric == "auto":
        metric, _ = choose_metric(examples.items, section)
    rules = AnswerRules(metric, section.cut, metric_options(section))
    by_split: dict[str, list[Item]] = {}
    for item in rules.keep(examples.items)[0]:
        by_split.setdefault(item.split, []).append(item)
    return by_split, rules


def draw(items: Sequence[Item], most: int, rng: np.random.Generator) -> list[Item]:
    """At most so many items, drawn by chance, in their order."""
    if len(items) <= most:
        return list(items)
    chosen = sorted(rng.permutation(len(items))[:most].tolist())
    return [items[place] for place in chosen]


if __name__ == "__main__":
    main()
