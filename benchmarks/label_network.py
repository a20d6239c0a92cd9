"""How far do labels alone go on the worlds of `lever bench`, with a network in the place of a regression?

    python benchmarks/label_network.py measure --world 100 --out label_network-100.json      one for each world
    python benchmarks/label_network.py join label_network-*.json                              writes what is kept
    python benchmarks/label_network.py table                                                  figures of what is kept

The networks behind the reward `expected_accuracy` learn from the labels of all demonstrations, without any call of the
model, what every answer may expect to score. A query's demonstrations are those whose answers may expect most, plus a
weight times their similarity; the weight is chosen on dev items of the same world. The items and pools are those of
`lever bench`, so that `best` can be compared item by item.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leverplus.embedders.base import Vectors
from leverplus.evaluation.arms import EvaluationContext, label_regression_arm, ranked_arm
from leverplus.evaluation.evaluate import run_arm
from leverplus.evaluation.predictions import Results
from leverplus.experiment.evaluate import choose_text_share, evaluation_context
from leverplus.experiment.run import Run
from leverplus.lab.benchmark import BenchmarkPlan
from leverplus.lab.jobs import ARMS, Record, Workplace, resized
from leverplus.lab.methods import ITEMS
from leverplus.lab.records import Records
from leverplus.lab.summary import MEAN_SHOTS, MethodSample, difference, method_sample
from leverplus.metrics import metric_named, normalise_answer
from leverplus.pools.similarity import Floats, Positions
from leverplus.ranking.ranking import Ranking
from leverplus.training.data.expected_accuracy import ExpectedAccuracy, inputs_of
from leverplus.types import Item, ItemId

HOME = Path(__file__).parent
KEPT = HOME / "bench" / "label_network.json.gz"
WEIGHTS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Of a similarity of 1 beside an expected accuracy of at most 1; chosen on dev."""
DEV_ITEMS = 400
POOLS = (64, 4096)
RANKED, ALONE = "ranked by a label network", "label network, no model"


@dataclass(frozen=True)
class LabelNetwork:
    """Stands where a `LabelModel` stands: what every answer may expect with queries that no network has seen."""

    judge: ExpectedAccuracy
    columns: Mapping[str, int]

    @property
    def answers(self) -> Sequence[str]:
        return tuple(self.columns)

    def columns_of(self, items: Sequence[Item]) -> Positions:
        return np.array([self.columns.get(normalise_answer(item.answer), -1) for item in items], np.int64)

    @torch.no_grad()
    def expected(self, queries: Sequence[ItemId], vectors: Vectors) -> Floats:
        """The mean of all networks (B, A); an answer that a network does not know may expect nothing of it."""
        assert not set(queries) & set(self.judge.places)
        found = np.zeros((len(queries), len(self.columns)))
        for own in self.judge.predictors:
            values = own.network(inputs_of(vectors)).sigmoid().numpy()
            found[:, [self.columns[answer] for answer in own.columns]] += values / len(self.judge.predictors)
        return found


def learn_network(run: Run) -> LabelNetwork:
    metric = metric_named(run.task.metric)
    judge = ExpectedAccuracy(run.demonstrations, run.demonstration_vectors, metric, seed=0)
    answers = dict.fromkeys(answer for own in judge.predictors for answer in own.columns)
    return LabelNetwork(judge, {answer: column for column, answer in enumerate(answers)})


def ranking(weight: float, share: float, count: int) -> Ranking:
    return Ranking({"text": weight * share, "image": weight * (1.0 - share)}, 1.0, np.zeros(count))


def mean_accuracy(results: Results) -> float:
    return float(np.mean([results.accuracy(RANKED, int(n)).mean() for n in MEAN_SHOTS]))


def ranked_results(context: EvaluationContext, network: LabelNetwork, weight: float, share: float) -> Results:
    results, shots = Results.of(context.queries), [int(n) for n in MEAN_SHOTS]
    how = ranking(weight, share, len(context.demonstrations))
    run_arm(results, context, RANKED, ranked_arm(context, how, network, shots))  # type: ignore[arg-type]
    return results


def measure(world: int, work: Path, items: int = ITEMS, dev_items: int = DEV_ITEMS) -> dict[str, Record]:
    """Both arms of a world at both sizes of pools, item by item."""
    (job,) = [job for job in BenchmarkPlan(methods=(), worlds=(world,), items=items).jobs() if job.name == ARMS]
    found: dict[str, Record] = {}
    network = None
    for size in POOLS:
        recipe = resized(job.recipe(), size)
        run = Run(recipe, work / ARMS, job.seed, Workplace(work).store_of(world))
        network = network or learn_network(run)
        share = choose_text_share(run)
        dev = evaluation_context(run, run.chosen_items("dev", dev_items))
        tried = {weight: mean_accuracy(ranked_results(dev, network, weight, share)) for weight in WEIGHTS}
        weight = max(tried, key=lambda own: (tried[own], -own))
        test = evaluation_context(run, run.chosen_items("test", recipe.eval.items))
        results = ranked_results(test, network, weight, share)
        results.add(ALONE, 0, label_regression_arm(test, network))  # type: ignore[arg-type]
        accuracy = {
            arm: {str(n): [round(float(value), 6) for value in results.accuracy(arm, n)] for n in results.shots(arm)}
            for arm in results.draws
        }
        found[f"world{world}/pool{size}"] = {
            "world": world,
            "pool": size,
            "weight": weight,
            "dev": tried,
            "items": list(results.items),
            "accuracy": accuracy,
        }
        print(world, size, weight, {own: round(100 * value, 1) for own, value in tried.items()}, flush=True)
    return found


def best_sample(folder: str, budget: int, pool: int) -> MethodSample:
    records = Records.read(HOME / folder).found.values()
    arms = {r["world"]: r for r in records if r["method"] == ARMS and r["pool"] == pool}
    own = [r for r in records if (r["method"], r["budget"], r["queries"], r["pool"]) == ("best", budget, 0, pool)]
    return method_sample(own, arms)


def compare(kept: Mapping[str, Record], folder: str, budget: int, pool: int) -> dict[str, Any]:
    """`best` less the ranking by a label network, on the same items; mean over 1-4 shots."""
    sample = best_sample(folder, budget, pool)
    own = [kept[f"world{world}/pool{pool}"]["accuracy"] for world in sample.worlds]
    by_shots = {n: np.concatenate([record[RANKED][n] for record in own]) for n in MEAN_SHOTS}
    rival = np.mean(list(by_shots.values()), axis=0)
    alone = np.concatenate([record[ALONE]["0"] for record in own])
    return {
        "budget": budget,
        "pool": pool,
        "n": len(rival),
        "best": float(sample.mean("learned").mean()),
        "ranked": {**{n: float(values.mean()) for n, values in by_shots.items()}, "mean": float(rival.mean())},
        "alone": float(alone.mean()),
        "best_less_ranked": difference(sample.mean("learned"), rival[None], sample.images),
        "best_less_alone": difference(sample.mean("learned"), alone[None], sample.images),
    }


def table() -> list[dict[str, Any]]:
    kept = json.loads(gzip.decompress(KEPT.read_bytes()))
    rows = [compare(kept, "bench", budget, 64) for budget in (8_000, 32_000, 128_000)]
    return [*rows, compare(kept, "curves", 32_000, 4096)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "join", "table"))
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--world", type=int, default=100)
    parser.add_argument("--work", type=Path, default=Path("runs/label_network"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.what == "measure":
        args.out.write_text(json.dumps(measure(args.world, args.work), separators=(",", ":")))
    elif args.what == "join":
        joined: dict[str, Any] = {}
        for file in args.files:
            joined |= json.loads(file.read_text())
        KEPT.write_bytes(gzip.compress(json.dumps(joined, separators=(",", ":")).encode(), 9, mtime=0))
    else:
        for row in table():
            print(json.dumps(row))


if __name__ == "__main__":
    main()
