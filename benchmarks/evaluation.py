"""How long an evaluation takes when the store holds every answer: items x 5 arms x shots on the embedded world.

    python benchmarks/evaluation.py               1,000 items x 5 arms x 4 shots; must take under 60 s on 2 cores
    python benchmarks/evaluation.py --items 100   the same, smaller
    python benchmarks/evaluation.py --json        one JSON object
    python benchmarks/evaluation.py --profile     where the time goes, on stderr
    python benchmarks/evaluation.py --known-truth --items 300     do the statistics keep their word on the world?

The first pass fills a store and is not held to the limit. The second has that store and nothing else (a new run, new
items, vectors and pools); choices, keys, lookups, intervals, comparisons and tables are all inside its time. The
selector has fresh weights: its picks cost what trained ones cost.

With --known-truth, two random choices of two demonstrations answer the same items. Simulated evaluations draw pictures
from these with replacement and swap the two choices picture by picture: with a fair coin both arms are equally
accurate, with a loaded one they differ by just the effect that the items are said to show 80 % of the time.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ARMS = ("random", "nearest_image", "nearest_text", "nearest_both", "learned")
SHOTS = (1, 2, 3, 4)
LIMIT = 60.0


def evaluate(store: Path, items: int) -> dict[str, float]:
    """One evaluation from scratch; seconds by part, and how many prompts were asked of the model itself."""
    from leverplus.evaluation import arms
    from leverplus.evaluation.behaviour import copied_table, harm_table, picks_table
    from leverplus.evaluation.evaluate import comparisons, run_arm, summary
    from leverplus.evaluation.predictions import Results
    from leverplus.experiment.evaluate import evaluation_context
    from leverplus.experiment.run import Run
    from leverplus.policies.build import build_policy
    from leverplus.recipe.recipe import load_recipe
    from leverplus.scoring.search import random_sequences

    times: dict[str, float] = {}
    recipe = load_recipe("world")
    run = Run(recipe, store.parent, 0, store)
    started = _mark(times, "items and pools", time.perf_counter())
    context = evaluation_context(run, run.chosen_items("test", items))
    policy = build_policy(recipe.select, context.table.dims, items=len(context.table), seed=0)
    started = _mark(times, "items and pools", started)
    drawn = random_sequences(context.pools, max(SHOTS), 0)
    choices = {
        "random": arms.prefixes([drawn[pool.query] for pool in context.pools], SHOTS),
        "nearest_image": arms.nearest_arm(context, 0.0, SHOTS),
        "nearest_text": arms.nearest_arm(context, 1.0, SHOTS),
        "nearest_both": arms.nearest_arm(context, 0.5, SHOTS),
        "learned": arms.learned(policy, context.pools, context.table, SHOTS),
    }
    started = _mark(times, "choices", started)
    results = Results.of(context.queries)
    run_arm(results, context, "zero_shot", {0: [() for _ in context.pools]})
    for arm in ARMS:
        run_arm(results, context, arm, choices[arm])
    started = _mark(times, "keys and lookups", started)
    summary(results)
    comparisons(results, [("learned", arm) for arm in ("zero_shot", *ARMS[:-1])])
    started = _mark(times, "statistics", started)
    harm_table(results)
    copied_table(results, lambda demo: context.task.item(demo).answer)
    picks_table(results)
    _mark(times, "what it hides", started)
    return {**times, "total": sum(times.values()), "asked": float(run.scorer.meter.fresh)}


def known_truth(store: Path, items: int, simulations: int) -> dict[str, Any]:
    """Shares over simulated evaluations of two arms on the world whose true difference is known."""
    import numpy as np

    from leverplus.evaluation.predictions import Results
    from leverplus.experiment.evaluate import evaluation_context
    from leverplus.experiment.run import Run
    from leverplus.recipe.recipe import load_recipe
    from leverplus.scoring.search import random_sequences
    from leverplus.stats import compare, mcnemar_test

    run = Run(load_recipe("world"), store.parent, 0, store)
    context = evaluation_context(run, run.chosen_items("test", items))
    images = Results.of(context.queries).images
    draws = []
    for seed in (0, 1):
        drawn = random_sequences(context.pools, 2, seed)
        answers = context.ask([drawn[pool.query] for pool in context.pools], "random pairs")
        draws.append(np.array([answer.accuracy for answer in answers]))
    groups = [np.flatnonzero(np.array(images) == image) for image in dict.fromkeys(images)]
    change = np.array([(draws[0] - draws[1])[group].sum() for group in groups])
    effect = compare(draws[0], draws[1], clusters=images).mde80
    load = effect * items / np.abs(change).sum()
    counts = dict.fromkeys(("sign_flip", "interval", "mcnemar", "covered", "covered_effect", "found"), 0)
    for number in range(simulations):
        rng = np.random.default_rng([number, items])
        chosen = rng.integers(len(groups), size=len(groups))
        rows = np.concatenate([groups[place] for place in chosen])
        clusters = np.repeat(np.arange(len(chosen)), [len(groups[place]) for place in chosen]).tolist()
        for truth, chance in ((0.0, 0.5), (effect, 0.5 + load / 2)):
            better = rng.random(len(chosen)) < chance
            swap = np.repeat(better != (change[chosen] >= 0), [len(groups[place]) for place in chosen])
            a, b = np.where(swap, draws[1][rows], draws[0][rows]), np.where(swap, draws[0][rows], draws[1][rows])
            found = compare(a, b, clusters=clusters, resamples=2000, seed=number)
            inside = found.ci95[0] <= truth <= found.ci95[1]
            if truth:
                counts["covered_effect"] += inside
                counts["found"] += found.p_value < 0.05 and found.diff > 0
                continue
            counts["covered"] += inside
            counts["interval"] += not inside
            counts["sign_flip"] += found.p_value < 0.05
            _, first = np.unique(clusters, return_index=True)
            right, other = a[first] >= 0.5, b[first] >= 0.5
            counts["mcnemar"] += mcnemar_test(int((right & ~other).sum()), int((other & ~right).sum())) < 0.05
    shares = {name: count / simulations for name, count in counts.items()}
    bands = {
        **dict.fromkeys(("sign_flip", "interval", "mcnemar"), (0.0, 0.065)),
        **dict.fromkeys(("covered", "covered_effect"), (0.935, 0.965)),
        "found": (0.77, 0.83),
    }
    kept = {name: bands[name][0] <= share <= bands[name][1] for name, share in shares.items()}
    return {"items": items, "simulations": simulations, "effect": effect, "shares": shares, "kept": kept}


def _mark(times: dict[str, float], name: str, started: float) -> float:
    now = time.perf_counter()
    times[name] = times.get(name, 0.0) + now - started
    return now


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--store", type=Path, help="keep the store here, to start warm next time")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--known-truth", action="store_true")
    parser.add_argument("--simulations", type=int, default=2000)
    args = parser.parse_args()
    with ExitStack() as stack:
        store = args.store or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "scores.db"
        if args.known_truth:
            truth = known_truth(store, args.items, args.simulations)
            print(json.dumps(truth, indent=None if args.json else 1))
            return 0 if all(truth["kept"].values()) else 1
        cold = evaluate(store, args.items)
        profile = cProfile.Profile()
        if args.profile:
            profile.enable()
        warm = evaluate(store, args.items)
        profile.disable()
    if args.profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(25)
    report: dict[str, Any] = {
        "items": args.items,
        "arms": list(ARMS),
        "shots": list(SHOTS),
        "cores": len(os.sched_getaffinity(0)),
        "cold": cold,
        "warm": warm,
        "limit": LIMIT,
        "within_limit": warm["total"] < LIMIT and warm["asked"] == 0,
    }
    if args.json:
        print(json.dumps(report))
    else:
        print(f"{args.items} items x {len(ARMS)} arms x {len(SHOTS)} shots, {report['cores']} cores")
        for name, seconds in warm.items():
            if name != "asked":
                print(f"  {name:18} {seconds:7.2f} s warm, {cold[name]:7.2f} s cold")
        print(f"  asked of the model {warm['asked']:.0f} prompts warm, {cold['asked']:.0f} cold")
    return 0 if report["within_limit"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
