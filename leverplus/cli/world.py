"""`lever world`: the ladder of baselines on the embedded world, and a picture of it."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.cli.console import Bars, add_store_option, print_table, results_table, whole_number
from leverplus.errors import LeverError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from leverplus.evaluation.arms import EvaluationContext
    from leverplus.evaluation.predictions import Results

RIGHT = 0.5
"""An answer counts as right when its accuracy is at least this."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    ladder = actions.add_parser("ladder", help="measure zero-shot, random, nearest and oracle at 1 to 4 shots")
    ladder.add_argument("--n", type=int, default=300, help="how many test items (default 300)")
    ladder.add_argument("--world-seed", type=whole_number, default=0, metavar="S", help="which world (default 0)")
    add_store_option(ladder)
    sample = actions.add_parser("sample", help="draw a picture of items with their questions and answers")
    sample.add_argument("--n", type=int, default=12, help="how many items (default 12)")
    sample.add_argument("--world-seed", type=whole_number, default=0, metavar="S", help="which world (default 0)")
    sample.add_argument("--png", type=Path, required=True, metavar="F", help="the picture to write")
    sample.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    least = 2 if args.action == "ladder" else 1
    if not least <= args.n <= 4000:
        raise LeverError(f"--n {args.n}: the world has 4,000 test items; choose {least} to 4000")
    return _ladder(args) if args.action == "ladder" else _sample(args)


def _ladder(args: argparse.Namespace) -> int:
    from leverplus.evaluation.evaluate import run_arms, summary
    from leverplus.experiment.evaluate import choose_text_share, evaluation_context
    from leverplus.experiment.run import Run
    from leverplus.recipe.recipe import load_recipe
    from leverplus.store.location import default_store_path

    started = time.monotonic()
    sizes = [f"eval.items={args.n}", f"eval.dev_items={min(args.n, 200)}", "eval.exhaustive_calls=0"]
    recipe = load_recipe("world", [f"task.world_seed={args.world_seed}", *sizes])
    with Bars() as bars:
        store = args.store or default_store_path()
        made = Run(recipe, Path(), 0, store, bars.say, bars.show)
        context = evaluation_context(made, made.chosen_items("test", args.n))
        share = choose_text_share(made)
        results = run_arms(context, recipe.eval, None, share, recipe.pool.mmr_lambda)
        facts = _facts(context, results)
    report = summary(results)
    arms = {arm: values["shots"] for arm, values in report["arms"].items()}
    if args.json:
        print(json.dumps({"n": args.n, "world_seed": args.world_seed, "arms": arms, "text_share": share, **facts}))
        return 0
    print_table(results_table({**report, "n": args.n, "split": "test"}))
    print(f"nearest by both: share of the question {share}, chosen on dev")
    two = facts["oracle_two_facts"]
    print(f"questions that need two facts: oracle {_percent(two['1'])} at 1 shot, {_percent(two['2'])} at 2")
    print(
        f"one random demonstration turns {_percent(facts['harmed'])} of the right answers wrong and "
        f"{_percent(facts['helped'])} of the wrong ones right; reversing two changes {_percent(facts['reversed'])}"
    )
    print(f"{made.scorer.meter.calls('evaluation'):,} calls, {time.monotonic() - started:.0f} s")
    return 0


def _facts(context: EvaluationContext, results: Results) -> dict[str, Any]:
    """What else the world promises: help and harm of one random demonstration, order, questions with two facts."""
    import numpy as np

    zero = results.accuracy("zero_shot", 0) >= RIGHT
    right = [[own.accuracy >= RIGHT for own in draw] for draw in results.draws["random"][1]]  # (draws, items)
    random = np.mean(right, axis=0)  # (items,)
    pairs = results.draws["random"][2][0]
    turned = context.ask([pair.demos[::-1] for pair in pairs], "reversed pairs")
    two = np.array([query.meta["facts"] == "2" for query in context.queries])
    return {
        "harmed": _mean(1 - random[zero]),
        "helped": _mean(random[~zero]),
        "reversed": _mean(np.array([a.answer != b.answer for a, b in zip(pairs, turned, strict=True)])),
        "oracle_two_facts": {str(n): _mean(results.accuracy("oracle", n)[two]) for n in results.shots("oracle")},
    }


def _mean(values: NDArray[Any]) -> float | None:
    """The mean over items; None where there are none, which a few items may well not have."""
    return float(values.mean()) if values.size else None


def _percent(share: float | None) -> str:
    return "(no such item)" if share is None else f"{100 * share:.1f} %"


def _sample(args: argparse.Namespace) -> int:
    from leverplus.tasks.world import WorldTask
    from leverplus.world.gallery import draw_gallery

    task = WorldTask(args.world_seed)
    items = task.items("test")
    shown = [items[place * len(items) // args.n] for place in range(args.n)]
    try:
        draw_gallery(shown, [task.image(item) for item in shown]).save(args.png)
    except (OSError, ValueError) as error:
        raise LeverError(f"cannot write {args.png} ({error}); name a writable .png file") from error
    if args.json:
        print(json.dumps({"n": args.n, "world_seed": args.world_seed, "png": str(args.png)}))
        return 0
    print(f"{args.n} items of world {args.world_seed} in {args.png}")
    return 0
