"""A whole recipe: train what is not trained, evaluate on test, examine and report."""

from __future__ import annotations

from typing import Any

from leverplus import rundir
from leverplus.experiment.evaluate import evaluate_run
from leverplus.experiment.monitor import examine_run
from leverplus.experiment.opening import require_same_task
from leverplus.experiment.pilot import pilot_of
from leverplus.experiment.run import Run
from leverplus.experiment.train import train_run
from leverplus.rundir import write_json


def run_all(run: Run) -> dict[str, Any]:
    """Every stage of a recipe; what is done already is taken from the store and the run folder.

    Nothing is trained where a pilot found that the model's answers do not depend on what is shown.
    """
    from leverplus.evaluation.result import try_or_note
    from leverplus.report.build import build_report

    trains = True
    if run.recipe.score.pilot:
        require_same_task(run)
        trains = bool(pilot_of(run)["worth_training"])
    policy = train_run(run) if trains else None
    found = evaluate_run(run, policy)
    noted = len(found["notes"])
    try_or_note(found, rundir.FINDINGS, lambda: examine_run(run), run.say)
    try_or_note(found, "report.html", lambda: build_report(run), run.say)
    if len(found["notes"]) > noted:
        write_json(run.folder / rundir.EVAL, found)
    return found
