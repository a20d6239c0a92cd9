"""`lever eval --checkpoint all`: every checkpoint of a run on the same items, to see where it was best."""

from __future__ import annotations

from typing import Any

from leverplus import rundir
from leverplus.experiment.evaluate import evaluation_context
from leverplus.experiment.run import Run
from leverplus.rundir import write_json


def evaluate_checkpoints(run: Run, split: str = "dev", items: int | None = None, force: bool = False) -> dict[str, Any]:
    """Every checkpoint of a run on the same items; writes sweep-dev.json. On test it needs `force` and is marked."""
    from leverplus.evaluation.checkpoints import best_row, checkpoint_names, guard_test, rows_of_checkpoints
    from leverplus.evaluation.conditions import conditions_of
    from leverplus.training.checkpoint import load_checkpoint

    chosen_on_test = guard_test(split, "all", None, force)
    section, checkpoints = run.recipe.eval, run.folder / rundir.CHECKPOINTS
    context = evaluation_context(run, run.chosen_items(split, section.items if items is None else items))
    names = checkpoint_names(checkpoints, run.recipe.stages)
    loaded = ((name, load_checkpoint(checkpoints / name)[0]) for name in names)  # one at a time is in memory
    rows = rows_of_checkpoints(context, loaded, section.shots)
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
