"""Accuracy of ways to train by calls of the frozen model, on the worlds of docs/bench.md.

    python benchmarks/methods.py --methods best,listwise --budgets 8000,32000 --worlds 100,101,102 --seeds 5

Run folders hold what is done, so a stopped loop goes on. `--change NAME:SETTING` adds settings to a method, such as
`--change best:select.mmr=none`; `lever compare` gives the interval between any two of the runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from leverplus.run.recipe import Recipe, find_recipe, load_recipe
from leverplus.run.sweep import Workshop, evaluate_once

DEV_SHARE = 0.15
"""Largest share of a budget that judging epochs on dev may take; recipes that plan for more judge fewer queries."""

PLANNED = [
    "score.queries=0",
    "select.hidden=256",
    "sft.epochs=10",
    "rce.epochs=5",
    "grpo.epochs=6",
]
LISTWISE = [
    "listwise.epochs=20",
    "listwise.temperature=0.1",
    "listwise.weight_decay=0.3",
]
METHODS = {
    "best": ("best", []),
    "labels": ("best", ['train.stages=["label_pretraining"]']),
    "listwise": ("world", ['train.stages=["listwise"]', *LISTWISE]),
    "sft_rce_grpo": ("plan5", PLANNED),
    "mended_grpo": ("baseline_sft", ['train.stages=["sft","rce","grpo"]', *PLANNED]),
}
"""A method: its recipe and what is changed in it. `sft_rce_grpo` has the plans' mistakes, `mended_grpo` has not."""

MANY = ["sft.batch_size=64", "score.random=16", "score.retrieved=16"]
AT_BUDGET = {
    ("best", 512_000): ["score.best=48", "score.chance=8", "listwise.among=tried"],
    ("sft_rce_grpo", 32_000): ["rce.batch_size=4", "grpo.batch_size=4"],
    ("sft_rce_grpo", 128_000): [
        "sft.batch_size=32",
        "rce.batch_size=16",
        "grpo.batch_size=16",
    ],
    ("sft_rce_grpo", 512_000): [*MANY, "rce.batch_size=64", "grpo.batch_size=64"],
    ("mended_grpo", 8_000): ["rce.batch_size=8", "grpo.batch_size=8"],
    ("mended_grpo", 32_000): ["rce.batch_size=16", "grpo.batch_size=16"],
    ("mended_grpo", 128_000): ["sft.batch_size=32"],
    ("mended_grpo", 512_000): MANY,
}
"""With more calls the batch grows, so that an epoch has as many steps."""

RECIPES = {("best", 8_000): "best_8k", ("best", 32_000): "best_32k"}


def recipe_of(method: str, budget: int, settings: Sequence[str]) -> tuple[str, Recipe]:
    """The recipe's name and its values for a method at a budget; dev queries fit their share of the budget."""
    name, changes = METHODS[method]
    name = RECIPES.get((method, budget), name)
    wanted = [
        f"score.budget={budget}",
        *changes,
        *AT_BUDGET.get((method, budget), []),
        *settings,
    ]
    planned = load_recipe(name, wanted)
    epochs = sum(stage.epochs + 1 for stage in planned.stages.values())
    most, shots = int(DEV_SHARE * budget), list(planned.score.dev_shots)
    if most < 16 * epochs * len(shots):
        shots = [min(2, max(shots))]
    queries = min(planned.score.dev_queries, max(1, most // (epochs * len(shots))))
    return name, load_recipe(
        name, [*wanted, f"score.dev_queries={queries}", f"score.dev_shots={shots}"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--budgets", default="8000,32000,128000,512000")
    parser.add_argument("--worlds", default="100,101,102")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument(
        "--change", action="append", default=[], metavar="METHOD:SETTING"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    args = parser.parse_args()
    changes = [text.partition(":") for text in args.change]
    for method in args.methods.split(","):
        for budget in map(int, args.budgets.split(",")):
            accuracy, gap = [], []
            for world in args.worlds.split(","):
                workshop = Workshop(args.out, args.out / f"world{world}.db", print)
                own = [setting for name, _, setting in changes if name == method]
                own += [
                    f"task.world_seed={world}",
                    f"eval.items={args.items}",
                    "score.chunk=8192",
                ]
                name, recipe = recipe_of(method, budget, own)
                for seed in range(args.seeds):
                    run = workshop.open(
                        recipe,
                        find_recipe(name),
                        f"{method}-{budget}-world{world}",
                        seed,
                    )
                    report = evaluate_once(run)
                    accuracy.append(report["arms"]["learned"]["mean"])
                    gap.append(report["gap_closed"]["learned"]["mean"])
            means = [100 * sum(values) / len(values) for values in (accuracy, gap)]
            print(
                f"{method} at {budget:,} calls: {means[0]:.1f} %, {means[1]:.1f} % of the gap ({len(gap)} runs)"
            )


if __name__ == "__main__":
    main()
