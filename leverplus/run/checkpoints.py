"""`lever eval --checkpoint all`: every checkpoint of a run on the same items, to see where it was best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from leverplus.data import rundir
from leverplus.data.rundir import write_json
from leverplus.run.evaluate import evaluate_run, evaluation_context
from leverplus.run.run import Run

if TYPE_CHECKING:
    from leverplus.arms.base import Arm
    from leverplus.evaluate.record import EvaluationRecord


def evaluate_checkpoints(
    run: Run, split: str = "dev", items: int | None = None, force: bool = False
) -> dict[str, Any]:
    """Every checkpoint of a run on the same items; writes sweep-dev.json. On test it needs `force` and is marked."""
    from leverplus.evaluate.conditions import conditions_of
    from leverplus.evaluate.runs import (
        best_row,
        checkpoint_names,
        guard_test,
        rows_of_checkpoints,
    )
    from leverplus.learn.checkpoint import load_checkpoint

    chosen_on_test = guard_test(split, "all", None, force)
    section, checkpoints = run.recipe.eval, run.folder / rundir.CHECKPOINTS
    context = evaluation_context(
        run, run.chosen_items(split, section.items if items is None else items)
    )
    names = checkpoint_names(checkpoints, run.recipe.stages)

    def selectors() -> Iterator[tuple[str, Arm]]:  # one at a time is in memory
        for name in names:
            network = load_checkpoint(checkpoints / name)[0]
            yield name, run.selector(network)

    rows = rows_of_checkpoints(context, selectors(), section.shots)
    found = {
        "task": run.task.name,
        "split": split,
        "n": len(context.queries),
        "checkpoints": [row.model_dump(mode="json") for row in rows],
        "best": best_row(rows),
        "chosen_on_test": chosen_on_test,
        "conditions": conditions_of(
            run.scorer.context,
            split,
            [item.id for item in context.queries],
            context.pools,
        ),
    }
    write_json(run.folder / f"sweep-{split}.json", found)
    return found


def evaluate_selector(
    run: Run,
    checkpoint: str | None,
    split: str,
    items: int | None,
    *,
    force: bool,
) -> EvaluationRecord:
    """A run's selector beside every baseline: its last, another of its checkpoints, or one from elsewhere."""
    from leverplus.evaluate.runs import checkpoint_folder
    from leverplus.learn.checkpoint import load_checkpoint
    from leverplus.learn.given import names_elsewhere
    from leverplus.run.opening import require_same_task
    from leverplus.run.start import given_policy
    from leverplus.run.train import recount_calls, trained_policy

    elsewhere = checkpoint is not None and names_elsewhere(checkpoint)
    named = None
    if checkpoint is not None and not elsewhere:
        # a name that is not there is refused before the model is asked
        checkpoints = run.folder / rundir.CHECKPOINTS
        named = checkpoint_folder(checkpoints, checkpoint, run.recipe.stages)
    require_same_task(run, force=force)
    if elsewhere and checkpoint is not None:
        policy = given_policy(run, checkpoint)
    else:
        policy = trained_policy(run) if named is None else load_checkpoint(named)[0]
        recount_calls(run)
    return evaluate_run(run, policy, split, items, checkpoint=checkpoint, force=force)
