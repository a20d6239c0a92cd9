"""Measures every way of choosing on every recorded table and keeps the accuracies item by item.

    python benchmarks/real_measure.py --data DATA --cache vectors --out benchmarks/real [--tasks ...] [--models ...]

Settings of an arm (field, number of shots, weights) are chosen on training and dev queries, where everything learnt is
cross-fitted (what chooses for a training query has not seen it); test queries are looked at once, with the chosen one.
Every arm is kept twice: at its own best number of shots, and with one demonstration. `lever bench real` makes its table
of what is kept here. What settings were chosen by is kept too (OUT/choosing). DATA is where the data sets lie
(docs/recorded.md); nothing asks a model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from real_arms import NONE, Arm, Arms
from real_data import PLACES, Floats, Ints, ModelTable, TaskData, embedder

from leverplus.lab.real import WayRecord, write_records
from leverplus.stats.choosing import adjusted_means

TASKS = ("okvqa", "aokvqa", "trec", "sst2", "agnews")
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
CALIBRATED = ("zero_shot", "nearest", "fixed", "vote_demos", "effects")


def accuracy(table: ModelTable, rows: Ints) -> Floats:
    """Accuracy of every query (Q,), the mean over draws; NaN where a row was not recorded."""
    value = np.where(rows == NONE, np.nan, table.table.accuracy[np.maximum(rows, 0)])
    return np.asarray(value if value.ndim == 1 else value.mean(axis=1))


def calibrated(arms: Arms, rows: Ints) -> Floats:
    """Accuracy when every label's mean log-probability over the training queries is subtracted."""
    table = arms.table
    logprobs = table.table.logprobs
    assert logprobs is not None
    own = logprobs[np.maximum(rows, 0)]  # (Q, labels)
    known = arms.train & (rows != NONE)
    likeliest = (own - own[known].mean(axis=0)).argmax(axis=1)
    return np.where(rows == NONE, np.nan, arms.task.answer_accuracy[table.queries, likeliest])


def candidates(arms: Arms) -> list[tuple[Arm, dict[str, Floats]]]:
    """Every arm with the accuracy (Q,) of each of its settings."""
    made = [*arms.all(), arms.effects()]
    found = [
        (arm, {name: accuracy(arms.table, rows) for name, rows in arm.settings.items()} | arm.scores) for arm in made
    ]
    if arms.task.source.labels:
        for arm in made:
            if arm.name in CALIBRATED:
                rows = {
                    name: own for name, own in arm.settings.items() if own.ndim == 1 and (own[arms.train] != NONE).any()
                }
                scores = {f"{name}, calibrated": calibrated(arms, own) for name, own in rows.items()}
                found.append((Arm(f"{arm.name}_calibrated", arm.kind), scores))
    return found


def measure(table: ModelTable, choosing: Path) -> list[WayRecord]:
    """Records of the test queries; what settings were chosen by is kept item by item in the file `choosing`."""
    arms = Arms(table)
    found = candidates(arms)
    names = [(arm.name, setting) for arm, scores in found for setting in scores]
    scores = np.stack([own for _, scores in found for own in scores.values()], axis=1)  # (Q, S)
    known = arms.train | arms.dev
    means = adjusted_means(scores[known])
    estimate = dict(zip(names, means.mean.tolist(), strict=True))
    on_dev = dict(zip(names, np.nanmean(scores[arms.dev], axis=0).tolist(), strict=True))
    write_choosing(choosing, arms, known, names, scores[known])
    test = [str(arms.task.items[query].id) for query in table.queries[arms.test]]
    groups = arms.task.group[table.queries[arms.test]].tolist()
    same: dict[str, Any] = {"task": arms.task.source.name, "model": table.model, "items": test, "groups": groups}
    records = []
    for arm, settings in found:
        one = [name for name in settings if "shots" not in name]
        for shots, among in (("best", list(settings)), ("1", one)):
            if among:
                setting = max(among, key=lambda name, arm=arm: estimate[arm.name, name])  # type: ignore[misc]
                about = {"arm": arm.name, "kind": arm.kind, "shots": shots, "setting": setting, "tries": len(among)}
                figures = {"dev": on_dev[arm.name, setting], "estimate": estimate[arm.name, setting]}
                records.append(WayRecord(**same, **about, **figures, accuracy=settings[setting][arms.test]))
    oracle = np.where(arms.allowed, table.accuracy, -1.0).max(axis=1)[arms.test]
    looks = {"arm": "oracle", "kind": "looks", "shots": "1", "setting": "best of 64", "tries": PLACES}
    return [*records, WayRecord(**same, **looks, dev=float("nan"), accuracy=oracle)]


def write_choosing(path: Path, arms: Arms, known: Any, names: Sequence[tuple[str, str]], scores: Floats) -> None:
    """Accuracies of every setting on the training and dev queries, in thousandths; 65535 where it was not measured."""
    places = arms.table.queries[known]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        names=np.array([f"{arm} | {setting}" for arm, setting in names]),
        dev=arms.dev[known],
        group=arms.task.group[places],
        thousandths=np.where(np.isnan(scores), 65535, np.round(1000 * np.nan_to_num(scores))).astype(np.uint16),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("vectors"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "real")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    args = parser.parse_args()
    texts = embedder(args.cache).of_texts
    for name in args.tasks:
        started = time.perf_counter()
        task = TaskData(name, args.data, texts)
        print(f"{name}: {len(task.items):,} items, {time.perf_counter() - started:.0f} s", flush=True)
        for model in args.models:
            started = time.perf_counter()
            records = measure(ModelTable.read(task, model), args.out / "choosing" / f"{name}-{model}.npz")
            write_records(args.out / f"{name}-{model}.parquet", records)
            shown = ", ".join(f"{r.arm} {100 * np.nanmean(r.accuracy):.1f}" for r in records if r.shots == "1")
            print(
                f"{name} {model}: {len(records)} rows of arms, {time.perf_counter() - started:.0f} s; {shown}",
                flush=True,
            )


if __name__ == "__main__":
    main()
