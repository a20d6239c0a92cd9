"""What training on recorded answers adds to choosing one example by its answer's likely shape; no model is asked.

    python benchmarks/trained_structured.py mtop
    python benchmarks/trained_structured.py geoquery geoquery.jsonl --database geography.sqlite
    python benchmarks/trained_structured.py report

Every way chooses among the recorded examples of a question. Training questions are held out in five parts; test questions
are asked once. Budgets are calls; 0 is learnt from answers alone. The control also reads how like the right answer is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from shapes import embed, read_splits

from leverplus.arms.base import RankedArm
from leverplus.arms.corpus import Queries, forbidden_positions
from leverplus.arms.pairs import PairFeatures
from leverplus.arms.similarity import Floats
from leverplus.arms.spec import open_arm
from leverplus.arms.training import Training
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.types import Item
from leverplus.encode.base import Vectors
from leverplus.evaluate.stats import compare, compare_seeds, holm
from leverplus.learn.data.from_answers import AnswerRows
from leverplus.learn.data.rows import FixedRows, Row, one_shot_row
from leverplus.learn.loop import StageInputs, run_stage
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.build import build_policy
from leverplus.learn.policies.presets import BI_ENCODER_GATE
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.settings import (
    ContrastiveConfig,
    GrpoConfig,
    ListwiseConfig,
    RceConfig,
    SftConfig,
)
from leverplus.learn.stages import frozen_copy

HERE, SHIPPED = (
    Path(__file__).parent / "structured",
    Path("leverplus/tables/structured"),
)
MODEL, SIMPLE = "smollm2-135m", ("by_answer", "nearest_text", "bm25")
BUDGETS, PARTS, LEAST = (1000, 4000), 3, 1e-12
SELECT = replace(
    BI_ENCODER_GATE, query_fields=("text",), demo_fields=("text", "answer"), state="none", hidden=64, dropout=0.3
)  # fmt: skip
SLOW: dict[str, Any] = {"batch_size": 16, "keep": "last", "weight_decay": 1.0}
STAGES = {
    "listwise": ListwiseConfig(temperature=1.0, lr=0.01, epochs=12, freeze=("projections", "head"), **SLOW),
    "sft": SftConfig(labels="top", lr=0.001, epochs=3, **SLOW),
    "rce": RceConfig(lr=0.001, epochs=3, **SLOW),
    "grpo": GrpoConfig(lr=0.001, epochs=3, **SLOW),
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """A question with the examples it was asked with, what each scored, and how probable each made the answer, (K,)."""

    item: Item
    shown: Sequence[int]
    accuracy: Floats
    probability: Floats


@dataclass
class Study:
    """The examples of a task, the recorded questions, and vectors and features of all."""

    training: Training
    train: Sequence[Asked]
    test: Sequence[Asked]
    table: ItemTable
    gold: ItemTable
    queries: Queries

    def row(self, asked: Asked, values: Floats) -> Row:
        place, shown = self.table.row(asked.item.id), np.array(asked.shown)
        return one_shot_row(asked.item.id, place, shown, values.astype(np.float32))

    def scores(
        self, policy: Policy, asked: Sequence[Asked], table: ItemTable
    ) -> list[Floats]:
        """How much a policy wants each example of some questions as its first pick."""
        policy.eval()
        found = []
        for own in asked:
            shown = [torch.tensor(own.shown)]
            features = table.features_of_rows(
                torch.tensor([table.row(own.item.id)]), shown
            )
            with torch.inference_mode():
                encoded = policy.prepare(features)
                logits = policy.step(encoded, policy.start(encoded, 1, 1))
            found.append(logits[0, 0].double().numpy())
        return found


def judged(asked: Sequence[Asked], scores: Sequence[Floats]) -> Floats:
    """What the best by these scores had right, and of each right and wrong example how often the right one is ahead."""
    found = []
    for own, score in zip(asked, scores, strict=True):
        ahead = score[own.accuracy > 0.5][:, None] - score[own.accuracy <= 0.5][None]
        pairs = (
            np.nan
            if not ahead.size
            else float(np.mean((ahead > 0) + 0.5 * (ahead == 0)))
        )
        found.append((own.accuracy[int(score.argmax())], pairs))
    return np.array(found)


def recorded(
    path: Path, examples: Sequence[Item], items: Mapping[str, Item], split: str
) -> list[Asked]:
    """The questions of a file with what was measured with one example; those of other splits are left out."""
    places = {item.id: row for row, item in enumerate(examples)}
    by_query: dict[str, dict[int, tuple[float, float]]] = {}
    for row in pq.read_table(path).to_pylist():
        query, demos = items.get(row["query"]), row["demos"]
        is_whole = row.get("split", "split") == "split" and row.get("shots", 1) == 1
        if query is None or query.split != split or not is_whole or len(demos) != 1:
            continue
        if demos[0] in places:
            probability = row["gt_prob"] if "gt_prob" in row else np.exp(row["logprob"])
            own = by_query.setdefault(query.id, {})
            own[places[demos[0]]] = (row["accuracy"], probability)
    found = []
    asked = [items[name] for name in by_query]
    for item, closed in zip(asked, forbidden_positions(asked, examples), strict=True):
        shown = [row for row in by_query[item.id] if row not in closed]
        if len(shown) > 1:
            measured = np.array([by_query[item.id][row] for row in shown])
            found.append(Asked(item, shown, measured[:, 0], measured[:, 1]))
    return found


def open_study(section: TaskSection, answers: Path, lists: Path, vectors: str) -> Study:
    by_split, rules = read_splits(section)
    train = by_split["train"]
    everyone = [*train, *by_split["test"]]
    texts = [item.question for item in everyone]
    text = embed(texts, texts[: len(train)], vectors)
    shown = embed([item.answer for item in everyone], texts[: len(train)], vectors)
    count = len(train)
    own = Vectors(None, text[:count], shown[:count])
    training = Training(train, own, rules)
    items = {item.id: item for item in everyone}
    learnt = recorded(answers, train, items, "train")
    test = recorded(lists, train, items, "test")
    blind = [replace(item, answers=()) for item in everyone]
    closed = forbidden_positions(blind, train)
    queries = Queries(blind, Vectors(None, text, shown), closed)
    features = PairFeatures.fit(training)

    ids = [item.id for item in everyone]
    blocks = {"text": text, "answer": shown}
    table = ItemTable(ids, blocks)

    def pairs(query: int, rows_shown: Any) -> Floats:
        return features.of(queries[query : query + 1], training.corpus, rows_shown)

    table.pairs = pairs

    def with_gold(query: int, rows_shown: Any) -> Floats:
        found = table.pairs_of(query, rows_shown).numpy().copy()
        right = everyone[query].answer.split()
        for place, row in enumerate(rows_shown):
            words = train[row].answer.split()
            found[place, 2] = SequenceMatcher(
                None, words, right, autojunk=False
            ).ratio()
        return found

    gold = ItemTable(ids, blocks)
    gold.pairs = with_gold
    return Study(training, learnt, test, table, gold, queries)


def afford(asked: Sequence[Asked], calls: int, seed: int) -> list[Asked]:
    """Questions by chance, as many as so many calls pay for."""
    found, left = [], calls
    for place in np.random.default_rng([seed, 7]).permutation(len(asked)):
        left -= len(asked[place].shown)
        if left < 0:
            break
        found.append(asked[place])
    return found


def train(
    study: Study,
    bought: Sequence[Asked],
    seed: int,
    table: ItemTable,
    stages: Sequence[str],
) -> dict[str, Policy]:
    """The selector after each stage, every one started from the stage before."""
    dims = {name: block.shape[1] for name, block in table.arrays.items()}
    policy = build_policy(replace(SELECT, pairs=True), dims, seed=seed)
    anchors: dict[str, Policy] = {}
    for name in stages:
        made = []
        for own in bought:
            best = max(own.probability.max(), LEAST**2)
            log = np.log(np.maximum(own.probability, LEAST**4) / best).clip(-5.0)
            made.append(study.row(own, 3.0 * own.accuracy + log))
        inputs = StageInputs(name, STAGES[name], table, seed, anchors=dict(anchors))
        run_stage(policy, FixedRows(made), inputs)
        anchors[name] = frozen_copy(policy)
    return anchors


def contrast(study: Study, learnt_from: Sequence[Item], seed: int) -> Policy:
    """A selector that learnt from the likeness of answers alone."""
    dims = {name: block.shape[1] for name, block in study.table.arrays.items()}
    policy = build_policy(SELECT, dims, seed=seed)
    plain = ItemTable(list(study.table.rows), study.table.arrays)
    config = ContrastiveConfig(epochs=2, queries=1000)
    names = [item.id for item in learnt_from]
    source = AnswerRows(study.training.items, names, plain, config=config, seed=seed)
    run_stage(policy, source, StageInputs("contrastive", config, plain, seed))
    return policy


def one_part(
    study: Study, learnt: Sequence[Asked], held: Sequence[Asked], seeds: int
) -> Iterator[tuple[str, int, int, Floats]]:
    """Way, calls, seed and `judged` of held-out questions."""
    places = [study.table.row(own.item.id) for own in held]
    corpus, gone = study.training.corpus, {own.item.id for own in held}
    for name in SIMPLE:
        arm = open_arm(name).fit(study.training)
        assert isinstance(arm, RankedArm)
        scores = []
        for place, own in zip(places, held, strict=True):
            only = replace(study.queries[place : place + 1], only=[np.array(own.shown)])
            (ranked,) = arm.rank(only, corpus, len(own.shown))
            by_row = dict(
                zip(ranked.rows.tolist(), -np.arange(len(ranked.rows)), strict=True)
            )
            scores.append(np.array([float(by_row[row]) for row in own.shown]))
        yield name, 0, 0, judged(held, scores)
    yield "oracle", 0, 0, judged(held, [own.accuracy for own in held])
    labelled = [item for item in study.training.items if item.id not in gone]
    for seed in range(seeds):
        policy = contrast(study, labelled, seed)
        yield (
            "contrastive",
            0,
            seed,
            judged(held, study.scores(policy, held, study.table)),
        )
        for calls in BUDGETS:
            bought = afford(learnt, calls, seed)
            for name, made in train(
                study, bought, seed, study.table, list(STAGES)
            ).items():
                yield (
                    name,
                    calls,
                    seed,
                    judged(held, study.scores(made, held, study.table)),
                )
            sure = train(study, bought, seed, study.gold, ["listwise"])["listwise"]
            yield (
                "control",
                calls,
                seed,
                judged(held, study.scores(sure, held, study.gold)),
            )


def ask_all(study: Study, task: str, seeds: int) -> Iterator[dict[str, Any]]:
    """Item-level records: training questions held out in parts, then test questions."""
    part = np.random.default_rng(0).permutation(len(study.train)) % PARTS
    for own in range(PARTS + 1):
        learnt, held, split = study.train, study.test, "test"
        if own < PARTS:
            split = "held out"
            learnt = [study.train[place] for place in np.flatnonzero(part != own)]
            held = [study.train[place] for place in np.flatnonzero(part == own)]
        for way, calls, seed, found in one_part(study, learnt, held, seeds):
            known = {
                "task": task,
                "split": split,
                "way": way,
                "calls": calls,
                "seed": seed,
            }
            for asked, (right, pairs) in zip(held, found, strict=True):
                yield {**known, "query": asked.item.id, "right": right, "pairs": pairs}


def spread(study: Study) -> str:
    """How far answers to one question differ over its examples."""
    both = np.mean([own.accuracy.min() < own.accuracy.max() for own in study.train])
    each = np.concatenate([own.accuracy for own in study.train])
    inside = np.concatenate([own.accuracy - own.accuracy.mean() for own in study.train])
    return (
        f"{len(study.train)} questions, {len(each):,} prompts; {100 * both:.1f} % have right and wrong answers; "
        f"{100 * inside.var() / each.var():.1f} % of the variance lies within questions"
    )


def report(records: Sequence[Mapping[str, Any]]) -> str:
    """Every way: what is right, and less `by_answer` with intervals over questions and seeds."""
    ways: dict[tuple[str, str, str, int], dict[int, list[tuple[float, float]]]] = {}
    for row in records:  # the questions of a split come in one order
        own = ways.setdefault((row["task"], row["split"], row["way"], row["calls"]), {})
        own.setdefault(row["seed"], []).append((row["right"], row["pairs"]))
    found: dict[Any, Any] = {}
    for key, seeds in ways.items():
        right = np.array(list(seeds.values()))[:, :, 0]
        base = np.array(list(ways[(*key[:2], "by_answer", 0)].values()))[:, :, 0]
        if len(right) > 1:
            found[key] = compare_seeds(right, base)
        elif key[2] != "by_answer":
            found[key] = compare(right[0], base[0])
    wanted = [key for key in found if key[2] in STAGES]
    p_values = holm([found[key].p_value for key in wanted])
    corrected = {key: f"{p:.4f}" for key, p in zip(wanted, p_values, strict=True)}
    lines = [
        "| task, questions | way | calls to learn | right | less by_answer (95 %) | p, corrected | pairs |",
        "|---" * 7 + "|",
    ]
    for key, seeds in ways.items():
        (task, split, way, calls), values = key, np.array(list(seeds.values()))
        less = ""
        if key in found:
            low, high = found[key].ci95
            less = (
                f"{100 * found[key].diff:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
            )
        right, pairs = 100 * values[:, :, 0].mean(), 100 * np.nanmean(values[:, :, 1])
        head = (
            f"| {task}, {split} ({values.shape[1]}) | {way} | {calls:,} | {right:.1f} |"
        )
        lines.append(f"{head} {less} | {corrected.get(key, '')} | {pairs:.1f} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("task", choices=("mtop", "geoquery", "report"))
    parser.add_argument("file", nargs="?", type=Path, help="GeoQuery's questions")
    parser.add_argument("--database", default="")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--vectors", default="sentence")
    given = parser.parse_args(words)
    if given.task != "report":
        name, place, file, metric = given.task, HERE, given.file, "sql_execution"
        if name == "mtop":
            place, file, metric = SHIPPED, SHIPPED / "mtop-items.jsonl.gz", "exact"
        section = TaskSection(
            name="jsonl", file=str(file), metric=metric, database=given.database
        )
        answers = place / f"{name}-{MODEL}-train.parquet"
        lists = SHIPPED / "records" / f"{name}-{MODEL}.parquet"
        study = open_study(section, answers, lists, given.vectors)
        print(spread(study), flush=True)
        table = pa.Table.from_pylist(list(ask_all(study, name, given.seeds)))
        pq.write_table(table, HERE / f"{name}-trained.parquet", compression="zstd")
    records = []
    for path in sorted(HERE.glob("*-trained.parquet")):
        records += pq.read_table(path).to_pylist()
    print(report(records))


if __name__ == "__main__":
    main()
