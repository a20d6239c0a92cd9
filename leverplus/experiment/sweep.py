"""Sweeping a run: every checkpoint on the same items, to see how training went and where it was best."""

from __future__ import annotations

from typing import Any

from leverplus import rundir
from leverplus.experiment.evaluate import evaluation_context
from leverplus.experiment.run import Run
from leverplus.rundir import write_json


def sweep_run(run: Run, split: str = "dev", items: int | None = None, force: bool = False) -> dict[str, Any]:
    """Every checkpoint of a run on the same items; writes sweep-dev.json. On test it needs `force` and is marked."""
    from leverplus.evaluation.conditions import conditions_of
    from leverplus.evaluation.sweep import best_row, checkpoint_names, guard_test, sweep
    from leverplus.training.checkpoint import load_checkpoint

    chosen_on_test = guard_test(split, "all", None, force)
    section, checkpoints = run.recipe.eval, run.folder / rundir.CHECKPOINTS
    context = evaluation_context(run, run.chosen_items(split, section.items if items is None else items))
    names = checkpoint_names(checkpoints, run.recipe.stages)
    rows = sweep(context, ((name, load_checkpoint(checkpoints / name)[0]) for name in names), section.shots)
    found = {
        "task": run.task.name,
        "split": split,
        "n": len(context.queries),
        "checkpoints": rows,
        "best": best_row(rows),
        "chosen_on_test": chosen_on_test,
        "conditions": conditions_of(run.scorer.context, split, [item.id for item in context.queries], context.pools),
    }
    write_json(run.folder / f"sweep-{split}.json", found)
    return found
