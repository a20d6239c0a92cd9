"""`fused` and its rivals on recorded answers, by the arms' own code; no model is asked.

    python benchmarks/fused.py [FILE.parquet]        OK-VQA, lists of 8 and 16, cross-fitted over five folds

The weight of the labels comes from recorded answers to training questions, the labels from training answers.
`fused_labels.py` does the same with log-probabilities of labels.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leverplus.arms import fused
from leverplus.arms.base import Arm, Needs
from leverplus.arms.corpus import Queries, forbidden_positions
from leverplus.arms.labels import LabelRegression
from leverplus.arms.training import Training
from leverplus.arms.voting import most_common
from leverplus.bundle.answering import heard
from leverplus.data.rundir import shipped
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item
from leverplus.encode.base import Vectors
from leverplus.encode.cached import open_embedder
from leverplus.encode.settings import EmbedSection
from leverplus.evaluate.stats import adjust, compare

HERE = Path(__file__).parent
FREE = (
    "MMR by mixed 16", "MMR by question 16", "nearest by mixed 16", "nearest by both 16", "nearest by question 16",
)  # fmt: skip
"""Lists that know no labels; the plainest last, which decides among equals."""
LISTS = {5: FREE, 2: FREE[3:], 3: FREE[2:], 6: ("vote + similarity 8", *FREE)}
NEIGHBOURS = 40
FUSED = "fused"
DRAWS = 10
"""Draws of the training questions that set the weight, of which the first is the arm's own."""
Answers = dict[str, list[str]]


class Recorded(Arm):
    """Lists whose answers were recorded."""

    name = "recorded"

    def __init__(self, lists: Sequence[str]) -> None:
        self.lists, self.needs = lists, Needs(calls=len(lists))

    def choose_lists(self, queries: Queries, corpus: Any, shots: int) -> Any:  # noqa: ARG002
        return [[[]] * len(self.lists) for _ in queries.items]


class Examples(Training):
    """What may be learnt from, and the recorded answers to it, by list and question."""

    told: Mapping[str, Mapping[str, Any]]
    lists: Sequence[str]
    draw = 0

    def asked(self, rows: Sequence[int]) -> Queries:
        """So many questions whose answers were recorded, drawn by chance."""
        drawn = np.random.default_rng(self.draw).permutation(len(self.items)).tolist()
        known = [row for row in drawn if self.items[row].id in self.told[self.lists[0]]]
        return super().asked(known[: len(rows)])

    def ask(self, queries: Queries, lists: Any, what: str) -> Any:  # noqa: ARG002
        return self.scores(queries, self.lists)

    def scores(self, queries: Queries, lists: Sequence[str]) -> Any:
        return [[self.told[name][item.id] for name in lists] for item in queries.items]

    def fused(
        self, queries: Queries, lists: Sequence[str], weight: int | None = None
    ) -> tuple[list[str], float]:
        """The arm's answers, and the weight of the labels."""
        self.lists = lists
        arm = fused.Fused([Recorded(lists)], weight).fit(self)
        given = self.scores(queries, lists)
        return arm.answer(queries, self.corpus, [], given), arm.weight

    def vote(
        self, queries: Queries, lists: Sequence[str], first: Sequence[str] = ()
    ) -> list[str]:
        """The most common answer; a further ballot stands in front, so that the model's decide among equals."""
        found = []
        for place, scores in enumerate(self.scores(queries, lists)):
            ballots = [*first[place : place + 1], *(score.answer for score in scores)]
            found.append(most_common(ballots, self.rules))
        return found


def as_vectors(text: Any) -> Vectors:
    return Vectors(None, text, np.zeros_like(text))


def without_model(examples: Examples, queries: Queries) -> Answers:
    """What labels say alone."""
    arm = LabelRegression().fit(examples)
    found = {"label regression": arm.answer(queries, examples.corpus, [], [])}
    votes = []
    for near in examples.corpus.nearest(queries, 1.0, NEIGHBOURS):
        shown = [examples.items[row].answer for row in near.rows.tolist()[::-1]]
        votes.append(most_common(shown, examples.rules))
    return {**found, f"label vote of {NEIGHBOURS}": votes}


def okvqa() -> tuple[list[Item], dict[str, dict[str, str]]]:
    """Every arm's answers to every question, each fold by what the other four hold."""
    rules, items = AnswerRules("vqa_accuracy", "vqa"), []
    with gzip.open(shipped("tables:okvqa-items.jsonl.gz")) as lines:
        for row in map(json.loads, lines):
            words = row["id"], row["question"], tuple(row["answers"]), ""
            items.append(Item(*words, None, row["image_id"], row["meta"]))
    stored = EmbedSection(name="stored", model="tables:okvqa-vectors.npz")
    text = open_embedder(stored).embed(items, argparse.Namespace(answers=rules)).text  # type: ignore[arg-type]
    told: Any = defaultdict(dict)
    columns = ["query", "arm", "number", "demos", "answer"]
    for row in pq.read_table(HERE / "real/okvqa-lists.parquet", columns=columns).to_pylist():  # fmt: skip
        if row["number"] == 0:
            name, item = f"{row['arm']} {len(row['demos'])}", items[row["query"]]
            told[name][item.id] = heard(item.id, (), row["answer"] or "", rules)
    fold = np.array([int(item.meta["fold"]) for item in items])
    found: dict[str, dict[str, str]] = defaultdict(dict)
    weights = defaultdict(list)
    for number in range(5):
        asked, known = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        examples = Examples(
            [items[row] for row in known], as_vectors(text[known]), rules
        )
        examples.told = told
        own = [items[row] for row in asked]
        closed = forbidden_positions(own, examples.items)
        queries = Queries(own, as_vectors(text[asked]), closed)
        answers = without_model(examples, queries)
        ballots = dict(answers)
        for name in ("nearest by question 8", *LISTS[6]):
            answers[name] = examples.vote(queries, [name])
        for count, lists in LISTS.items():
            answers[f"vote of {count}"] = examples.vote(queries, lists)
            for name, first in ballots.items():
                answers[f"vote of {count} + {name}"] = examples.vote(
                    queries, lists, first
                )
            answers[f"fused, {count} lists"], weight = examples.fused(queries, lists)
            weights[count].append(round(weight, 1))
        for given in (0, 1, 2, 4, 8, 16):
            answers[f"fused, 5 lists, weight {given}"] = examples.fused(
                queries, FREE, given
            )[0]
        for draw in range(1, DRAWS):
            examples.draw = draw
            answers[f"fused, 5 lists, weight by draw {draw}"] = examples.fused(
                queries, FREE
            )[0]
        for name, texts in answers.items():
            found[name].update(zip([item.id for item in own], texts, strict=True))
    print(f"weights by number of lists and fold: {dict(weights)}")
    return items, found


def rivals_of(name: str, right: Mapping[str, Any]) -> Iterator[str]:
    """What a fused answer is held against: labels alone, and the model alone; with several models its own."""
    _, *about = name.split(", ")
    if not name.startswith(FUSED) or "weight" in name:
        return
    for other in right:
        alone = other.split(", ")
        is_labels = alone[0].startswith("label")
        if alone[0] != FUSED and (is_labels or len(about) == 1 or alone == about):
            yield other


def show(
    items: Sequence[Item],
    found: Mapping[str, Mapping[str, str]],
    rules: AnswerRules,
    out: str,
) -> None:
    """Accuracies, fused answers less their rivals, and the records item by item."""
    right = {}
    for name, answers in found.items():
        right[name] = np.array([rules.score(answers[item.id], item) for item in items])
        print(f"{name}: {100 * right[name].mean():.2f}")
    groups = [str(item.image_id or item.id) for item in items]
    for name in list(right):
        rivals = list(rivals_of(name, right))
        compared = []
        for rival in rivals:
            compared.append(compare(right[name], right[rival], clusters=groups))
        for rival, one in zip(rivals, adjust(compared), strict=True):
            low, high = (100 * end for end in one.ci95)
            ends = f"({low:+.2f} to {high:+.2f}), p {one.p_adjusted:.4f}"
            print(f"{name} less {rival}: {100 * one.diff:+.2f} {ends}")
    if out:
        columns = {"item": [item.id for item in items], "group": groups, **right}
        pq.write_table(pa.table(columns), out, compression="zstd")


if __name__ == "__main__":
    show(*okvqa(), AnswerRules("vqa_accuracy", "vqa"), " ".join(sys.argv[1:]))
