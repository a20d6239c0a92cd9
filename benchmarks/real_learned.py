"""Trains the selector of `okvqa_table` on every recorded table, and adds what it chose to the records of the tables.

    python benchmarks/real_learned.py items --data DATA --out RUNS              items and vectors that do not ship
    python benchmarks/real_learned.py train RUNS [--jobs 2] [--tasks ...] [--models ...]
    python benchmarks/real_learned.py keep RUNS [--records leverplus/tables/real]

`train` makes two runs of each table (goes on where it stopped): by the model's answers alone, and by labels first.
`keep` takes the one with the higher accuracy on dev queries; test queries decide nothing. DATA is
where the data sets lie (docs/recorded.md); nothing asks a model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from real_data import HERE, SHIPPED
from real_measure import MODELS, TASKS
from record_plan import SOURCES, Sizes, assign
from record_write import write_items

from leverplus.lab.real import WayRecord, read_file, write_records

FORMS = {"answers": ("listwise",), "labels-answers": ("label_pretraining", "listwise")}
RECORDS = SHIPPED / "real"


def write_inputs(data: Path, out: Path) -> None:
    """Items and vectors of every task but `okvqa`, whose own ship with the package."""
    from leverplus.embedders.cached import open_embedder
    from leverplus.embedders.stored import write_vectors
    from leverplus.recipe.sections import EmbedSection

    out.mkdir(parents=True, exist_ok=True)
    embedder: Any = open_embedder(EmbedSection(name="sentence"), out / "vectors")
    for task in TASKS:
        if task != "okvqa":
            write_items(argparse.Namespace(task=task, data=data, out=out / f"{task}-items.jsonl"))
            items = assign(SOURCES[task], SOURCES[task].read(data), Sizes())
            texts = sorted({text for item in items for text in (item.question, item.answer)})
            write_vectors(out / f"{task}-vectors.npz", texts, embedder.of_texts(texts), embedder.fingerprint())


def settings_of(task: str, model: str, home: Path) -> list[str]:
    """What differs from the recipe `okvqa_table` for another table."""
    name = f"{task}-{model}"
    folder = HERE / "tables" if (HERE / "tables" / f"{name}.parquet").is_file() else SHIPPED
    found = [f"model.name={folder / name}.parquet,{folder / name}-test.parquet", "eval.oracle=false"]
    if task != "okvqa":
        found += [f"task.file={home / task}-items.jsonl", f"embed.model={home / task}-vectors.npz"]
    if SOURCES[task].labels:
        found += ["task.name=labels", "reward.mode=choice_prob"]
    return found


def train(task: str, model: str, form: str, home: Path) -> None:
    run = home / f"{task}-{model}-{form}"
    if (run / "eval.json").is_file():
        return
    settings = [*settings_of(task, model, home), f"train.stages={json.dumps(FORMS[form])}"]
    command = [sys.executable, "-m", "leverplus", "run", "okvqa_table", "--out", str(run), "--set", *settings]
    store = ["--store", f"{run}.store"]  # answers come from the table; nothing is worth sharing
    with Path(f"{run}.log").open("w", encoding="utf-8") as log:
        code = subprocess.run([*command, *store], stdout=log, stderr=log, check=False).returncode
    print(f"{run.name}: {'done' if code == 0 else f'failed, see {log.name}'}", flush=True)


def on_dev(run: Path) -> float:
    """The accuracy of the run's selector on the dev queries of its advice."""
    advice = json.loads((run / "eval.json").read_text(encoding="utf-8"))["advice"]
    return float(advice["dev_accuracy"]["learned"]["1"])


def chosen(runs: Mapping[str, Path], like: WayRecord) -> list[WayRecord]:
    """One-shot accuracies of the selector that is best on dev, on the items of a record; ties: the first form."""
    import pyarrow.parquet as pq

    form = max(runs, key=lambda name: on_dev(runs[name]))
    run = runs[form]
    rows = pq.read_table(run / "predictions.parquet", columns=["item", "arm", "shots", "score"]).to_pylist()
    score = {row["item"]: row["score"] for row in rows if row["arm"] == "learned" and row["shots"] == 1}
    missing = [item for item in like.items if item not in score]
    if missing:
        raise SystemExit(f"{run} has no choice for item {missing[0]} ({len(missing)} such); evaluate all test items")
    made = replace(
        like,
        arm="learned",
        kind="calls",
        setting=f"{' + '.join(FORMS[form])}, 1 shot",
        tries=len(runs),
        # Its dev accuracy is of 200 queries, and it has none that is cross-fitted on training queries as the other arms
        # have: on no common ground with them, it is never the one recommended.
        dev=float("nan"),
        estimate=float("nan"),
        accuracy=np.array([score[item] for item in like.items]),
    )
    return [replace(made, shots=shots) for shots in ("1", "best")]


def keep(runs: Path, records: Path) -> None:
    for task in TASKS:
        for model in MODELS:
            own = {form: runs / f"{task}-{model}-{form}" for form in FORMS}
            if not all((run / "eval.json").is_file() for run in own.values()):
                print(f"{task} {model}: not trained in both forms, left as it was")
                continue
            file = records / f"{task}-{model}.parquet"
            kept = [record for record in read_file(file) if record.arm != "learned"]
            made = chosen(own, kept[0])
            write_records(file, [*kept, *made])
            figures = ", ".join(f"{form} {100 * on_dev(run):.1f}" for form, run in own.items())
            print(f"{task} {model}: {100 * made[0].accuracy.mean():.1f} by {made[0].setting}; on dev {figures}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    preparing = actions.add_parser("items")
    preparing.add_argument("--data", type=Path, required=True)
    preparing.add_argument("--out", type=Path, required=True)
    training = actions.add_parser("train")
    training.add_argument("runs", type=Path)
    training.add_argument("--jobs", type=int, default=2)
    training.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    training.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    keeping = actions.add_parser("keep")
    keeping.add_argument("runs", type=Path)
    keeping.add_argument("--records", type=Path, default=RECORDS)
    args = parser.parse_args()
    if args.action == "items":
        write_inputs(args.data, args.out)
    elif args.action == "train":
        with ThreadPoolExecutor(args.jobs) as jobs:
            for task, model, form in product(args.tasks, args.models, FORMS):
                jobs.submit(train, task, model, form, args.runs)
    else:
        keep(args.runs, args.records)


if __name__ == "__main__":
    main()
