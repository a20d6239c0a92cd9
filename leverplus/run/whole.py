"""A whole recipe: train what is not trained, evaluate on test, examine and report."""

from __future__ import annotations

from leverplus import catalog
from leverplus.data import rundir
from leverplus.errors import TrainingError
from leverplus.evaluate.record import EvaluationRecord
from leverplus.run.evaluate import evaluate_run
from leverplus.run.opening import require_same_task
from leverplus.run.pilot import pilot_of
from leverplus.run.run import Run
from leverplus.run.train import train_run


def run_all(run: Run, *, must_train: bool = True) -> EvaluationRecord:
    """Every stage of a recipe; what is done already is taken from the store and the run folder.

    Nothing is trained where the recipe names no stage, or a pilot found that answers do not depend on what is shown;
    without `must_train` also where training finds nothing to learn from, which a note says.
    """
    trains = bool(run.recipe.stages)
    if run.recipe.score.pilot:
        require_same_task(run)
        trains = bool(pilot_of(run)["worth_training"]) and trains
    policy, note = None, ""
    if trains:
        try:
            policy = train_run(run)
        except TrainingError as error:
            if must_train:
                raise
            note = f"no selector was trained: {error}"
            run.say(note)
    found = evaluate_run(run, policy)
    if note:
        found.notes.append(note)
    build_report = catalog.load(catalog.ABOVE, "report", "report")
    examine_run = catalog.load(catalog.DOCTOR, "examine_run", "doctor")
    noted = len(found.notes)
    found.attempt(rundir.FINDINGS, lambda: examine_run(run), run.say)
    found.attempt(rundir.REPORT, lambda: build_report(run), run.say)
    if len(found.notes) > noted:
        found.write(run.folder / rundir.EVAL)
    return found
