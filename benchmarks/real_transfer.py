"""Effects measured with one model, asked of another: the same queries and candidates make it free.

    python benchmarks/real_transfer.py TASK ... [--json]

Effects on accuracy come from the rows of training and dev queries of model A; for every test query the candidate with
the largest effect among its 64 is shown to model B. Figures are points over the mean of the 16 random candidates of the
same queries, with paired intervals. Beside the diagonal stands what `lever plan` promises from a pilot of 600 calls;
the last line says on how many tables the gain of the own model lies within that interval.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leverplus.backends.table.table import read_table
from leverplus.effects.audit import pilot_table
from leverplus.effects.estimate import Measured, estimate_effects
from leverplus.effects.shares import predicted_gain, variance_shares
from leverplus.stats import compare

HERE = Path(__file__).parent
SHIPPED = HERE.parent / "leverplus" / "tables"
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
PLACES, CHANCE = 64, slice(48, 64)
PILOT = (75, 8)


def paths(task: str, model: str) -> list[Path]:
    folder = HERE / "tables" if (HERE / "tables" / f"{task}-{model}.parquet").is_file() else SHIPPED
    return [folder / f"{task}-{model}{end}.parquet" for end in ("", "-test")]


def read(task: str, model: str) -> dict[str, Any]:
    """Test queries' candidates and accuracies (Q, 64), and the one-shot rows that may be learnt from."""
    table = read_table(paths(task, model))
    test = read_table(paths(task, model)[1:])
    tested = np.isin(np.array(table.ids.texts), [test.ids.texts[number] for number in np.unique(test.queries)])
    alone = np.flatnonzero(np.diff(table.starts) == 1)
    queries, demos, accuracy = table.queries[alone], table.demos[table.starts[alone]], table.accuracy[alone]
    own = tested[queries]
    learn = ~own & ~tested[demos]
    order = np.flatnonzero(own)[np.argsort(queries[own], kind="stable")].reshape(-1, PLACES)
    names = np.array(table.ids.texts)
    return {
        "data": Measured.of(queries[learn], demos[learn], accuracy[learn], len(names)),
        "candidates": names[demos[order]],
        "accuracy": accuracy[order],
        "names": names,
    }


def gains(task: str) -> dict[str, Any]:
    """By model that effects were measured with and model that was asked: gain, interval, n; and the promises."""
    tables = {model: read(task, model) for model in MODELS}
    effects = {}
    promised = {}
    for model, own in tables.items():
        found = estimate_effects(own["data"])
        effects[model] = dict(zip(own["names"].tolist(), found.effect.tolist(), strict=True))
        rows, corpus = len(own["data"].scores), len(np.unique(own["data"].demos))
        shares = variance_shares(pilot_table(own["data"], *PILOT))
        guess = predicted_gain(shares, corpus=corpus, candidates=PLACES, calls=rows)
        promised[model] = {"gain": guess.gain, "ci95": list(guess.ci95), "shares": shares.as_json()}
    found = {}
    for source in MODELS:
        for target, own in tables.items():
            value = np.vectorize(lambda name, known=effects[source]: known.get(name, 0.0))(own["candidates"])
            chosen = own["accuracy"][np.arange(len(value)), value.argmax(axis=1)]
            result = compare(chosen, own["accuracy"][:, CHANCE].mean(axis=1), resamples=2000)
            found[f"{source} > {target}"] = {"gain": result.diff, "ci95": list(result.ci95), "n": result.n}
    return {"task": task, "gains": found, "promised": promised}


def show(found: Mapping[str, Any]) -> None:
    print(f"| {found['task']}, effects of | {' | '.join(MODELS)} | promised by a pilot of 600 calls |")
    print("|---|---|---|---|---|")
    for source in MODELS:
        cells = []
        for target in MODELS:
            own = found["gains"][f"{source} > {target}"]
            cells.append(f"{100 * own['gain']:+.1f} ({100 * own['ci95'][0]:+.1f} to {100 * own['ci95'][1]:+.1f})")
        guess = found["promised"][source]
        low, high = (100 * bound for bound in guess["ci95"])
        print(f"| {source} | {' | '.join(cells)} | {100 * guess['gain']:+.1f} ({low:+.1f} to {high:+.1f}) |")
    print(flush=True)


def kept_promises(tables: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """On how many tables the gain with the own model lies within the promised interval, and of how many."""
    kept = 0
    for found in tables:
        for model in MODELS:
            low, high = found["promised"][model]["ci95"]
            kept += low <= found["gains"][f"{model} > {model}"]["gain"] <= high
    return kept, len(tables) * len(MODELS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", metavar="TASK", nargs="+")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    tables = []
    for task in args.tasks:
        tables.append(gains(task))
        if not args.json:
            show(tables[-1])
    kept, of = kept_promises(tables)
    if args.json:
        print(json.dumps({"tables": tables, "kept": kept, "of": of}))
        return
    print(f"what was gained lies within what the pilot promised on {kept} of {of} tables")


if __name__ == "__main__":
    main()
