"""`lever world`: the ladder of baselines on the embedded world, and a picture of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.cli.command import Bars, Outcome, Table
from leverplus.cli.console import results_table
from leverplus.errors import LeverError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from leverplus.evaluate.evaluate import EvaluationContext
    from leverplus.evaluate.predictions import Results

RIGHT = 0.5
"""An answer counts as right when its accuracy is at least this."""


def ladder(*, n: int = 300, world_seed: int = 0, store: Path | None = None) -> Outcome:
    """Measures zero-shot, random, nearest and oracle at 1 to 4 shots.

    --n N: how many test items (default 300)
    --world-seed S: which world (default 0)
    """
    from leverplus.evaluate.evaluate import first_record, run_arms
    from leverplus.run.arms import RunTraining, fitted_arms
    from leverplus.run.evaluate import choose_text_share, evaluation_context
    from leverplus.run.recipe import load_recipe
    from leverplus.run.run import Run
    from leverplus.scores.store import default_store_path

    _check_size(n, 2)
    started = time.monotonic()
    sizes = [
        f"eval.items={n}",
        f"eval.dev_items={min(n, 200)}",
        "eval.exhaustive_calls=0",
        "eval.candidates=pool",  # chance, neighbours and oracle among the same candidates
    ]
    recipe = load_recipe("world", [f"task.world_seed={world_seed}", *sizes])
    with Bars() as bars:
        path = store or default_store_path()
        made = Run(recipe, Path(), 0, path, bars.say, bars.show)
        context = evaluation_context(made, made.chosen_items("test", n))
        share = choose_text_share(made)
        ways, _ = fitted_arms(made, RunTraining(made, None, lambda _run: share))
        results = run_arms(context, ways, recipe.eval)
        facts = _facts(context, results)
    record = first_record(context, results, "test")
    two = facts["oracle_two_facts"]
    lines: list[str | Table] = [
        results_table(record),
        f"nearest by both: share of the question {share}, chosen on dev",
        f"questions that need two facts: oracle {_percent(two['1'])} at 1 shot, {_percent(two['2'])} at 2",
        f"one random demonstration turns {_percent(facts['harmed'])} of the right answers wrong and "
        f"{_percent(facts['helped'])} of the wrong ones right; reversing two changes {_percent(facts['reversed'])}",
        f"{made.scorer.meter.calls('evaluation'):,} calls, {time.monotonic() - started:.0f} s",
    ]
    value = {
        "n": n,
        "world_seed": world_seed,
        "arms": {arm: own.shots for arm, own in record.arms.items()},
        "text_share": share,
        **facts,
    }
    return Outcome(value, lines)


def _check_size(n: int, least: int) -> None:
    if not least <= n <= 4000:
        raise LeverError(
            f"--n {n}: the world has 4,000 test items; choose {least} to 4000"
        )


def _facts(context: EvaluationContext, results: Results) -> dict[str, Any]:
    """What else the world promises: help and harm of one random demonstration, order, questions with two facts."""
    import numpy as np

    zero = results.accuracy("zero_shot", 0) >= RIGHT
    right = []  # (draws, items)
    for draw in results.draws["random"][1]:
        right.append([own.accuracy >= RIGHT for own in draw])
    random = np.mean(right, axis=0)  # (items,)
    pairs = results.draws["random"][2][0]
    turned = context.ask([pair.demos[::-1] for pair in pairs], "reversed pairs")
    differ = []
    for pair, other in zip(pairs, turned, strict=True):
        differ.append(pair.answer != other.answer)
    two = np.array([query.meta["facts"] == "2" for query in context.queries])
    oracle = {}
    for n in results.shots("oracle"):
        oracle[str(n)] = _mean(results.accuracy("oracle", n)[two])
    return {
        "harmed": _mean(1 - random[zero]),
        "helped": _mean(random[~zero]),
        "reversed": _mean(np.array(differ)),
        "oracle_two_facts": oracle,
    }


def _mean(values: NDArray[Any]) -> float | None:
    """The mean over items; None where there are none, which a few items may well not have."""
    if not values.size:
        return None
    return float(values.mean())


def _percent(share: float | None) -> str:
    if share is None:
        return "(no such item)"
    return f"{100 * share:.1f} %"


def sample(*, n: int = 12, world_seed: int = 0, png: Path) -> Outcome:
    """Draws a picture of items with their questions and answers.

    --n N: how many items (default 12)
    --world-seed S: which world (default 0)
    --png F: the picture to write
    """
    from leverplus_lab.world.gallery import draw_gallery
    from leverplus_lab.world.task import WorldTask

    _check_size(n, 1)
    task = WorldTask(world_seed)
    items = task.items("test")
    shown = [items[place * len(items) // n] for place in range(n)]
    try:
        draw_gallery(shown, [task.image(item) for item in shown]).save(png)
    except (OSError, ValueError) as error:
        raise LeverError(
            f"cannot write {png} ({error}); name a writable .png file"
        ) from error
    return Outcome(
        {"n": n, "world_seed": world_seed, "png": str(png)},
        [f"{n} items of world {world_seed} in {png}"],
    )
