"""Evaluating a run: every way of choosing demonstrations on the same items and pools; and a whole recipe at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leverplus import catalog
from leverplus.arms.base import Arm
from leverplus.data import rundir
from leverplus.data.rundir import write_json
from leverplus.data.types import Item
from leverplus.errors import TrainingError
from leverplus.evaluate.advice import advise as advise_by
from leverplus.evaluate.conditions import conditions_of, require_unseen
from leverplus.evaluate.evaluate import (
    EvaluationContext,
    arm_results,
    best_text_share,
    compared_pairs,
    comparisons,
    first_record,
    run_arms,
)
from leverplus.evaluate.predictions import Results, write_predictions
from leverplus.evaluate.record import Advice, EvaluationRecord, read_record
from leverplus.evaluate.regret import regret_table
from leverplus.evaluate.runs import (
    best_row,
    checkpoint_folder,
    checkpoint_names,
    guard_test,
    rows_of_checkpoints,
)
from leverplus.learn.given import names_elsewhere
from leverplus.run.arms import RunTraining, fitted_arms, keep_arms
from leverplus.run.pilot import pilot_of
from leverplus.run.run import Run, require_same_task
from leverplus.run.train import given_policy, train_run, trained_policy
from leverplus.scores.scorer import ADVICE, EVALUATION, TRAINING

if TYPE_CHECKING:
    from leverplus.learn.policies.base import Policy


def run_all(run: Run, *, must_train: bool = True) -> EvaluationRecord:
    """Every stage of a recipe; what is done already is taken from the store and the run folder.

    Nothing is trained where the recipe names no stage, or a pilot found that answers do not depend on what is shown;
    without `must_train` also where training finds nothing to learn from, which a note says.
    """
    trains = bool(run.recipe.stages)
    if run.recipe.score.pilot:
        require_same_task(run)
        trains = bool(pilot_of(run)["worth_training"]) and trains
    policy = None
    note = ""
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


def evaluation_context(run: Run, queries: Sequence[Item]) -> EvaluationContext:
    """What all arms share on some queries."""
    return EvaluationContext(
        run.task,
        run.scorer,
        queries,
        run.asked(queries),
        run.corpus,
        run.demonstrations,
        run.pools(queries)[0],
    )


def _items_of(run: Run, split: str, count: int | None) -> EvaluationContext:
    """The items of a split that are evaluated, as many as the recipe says where nobody says how many."""
    wanted = run.recipe.eval.items if count is None else count
    return evaluation_context(run, run.chosen_items(split, wanted))


def evaluate_run(
    run: Run,
    policy: Policy | None,
    split: str = "test",
    items: int | None = None,
    *,
    checkpoint: str | None = None,
    force: bool = False,
    advise: bool = True,
) -> EvaluationRecord:
    """Every arm on the same items and pools; writes eval.json and predictions.parquet (eval-dev.json, ... on dev).

    `checkpoint` names what `policy` is if it is not the run's last; a second one on test needs `force`. With `advise`
    an evaluation on test ends with what to use, by dev figures, unless eval.advice = false.
    """
    section = run.recipe.eval
    meter = run.scorer.meter
    path = run.folder / rundir.of_split(rundir.EVAL, split)
    chosen_on_test = guard_test(split, checkpoint, read_record(path), force)
    meter.asked[EVALUATION].clear()  # eval_calls are those of this evaluation
    context = _items_of(run, split, items)
    if split != "train":
        # items of the training split are asked with pools that leave out their own picture
        require_unseen(context.queries, run.demonstrations)
    training = RunTraining(run, policy, choose_text_share)
    arms, missing = fitted_arms(run, training, among_training=split == "train")
    results = run_arms(context, arms, section)
    found = first_record(context, results, split)
    found.missing_arms = missing
    found.nearest_both_text_share = training.text_share
    found.checkpoint = checkpoint
    if checkpoint is None and policy is not None:
        found.checkpoint = list(run.recipe.stages)[-1]
    found.chosen_on_test = chosen_on_test
    if run.recipe.score.pilot:
        found.pilot = pilot_of(run)
    if checkpoint is not None and names_elsewhere(checkpoint):
        found.model_calls = 0  # this run did not train it
    if split == "test":
        keep_arms(run, arms, context.asked)
    write_predictions(results, run.folder / rundir.of_split(rundir.PREDICTIONS, split))
    # the answers were paid for: from here on nothing that fails can lose them
    found.write(path)
    found.attempt("arms", lambda: arm_results(results, meter.calls(TRAINING)), run.say)
    found.attempt(
        "comparisons", lambda: comparisons(results, compared_pairs(results)), run.say
    )
    if section.diagnostics:
        wanted = section.diagnostic_items
        found.attempt("regret", lambda: regret_table(context, results, wanted), run.say)
    found.eval_calls = meter.calls(EVALUATION)
    if advise and section.advice and split == "test":
        found.attempt("advice", lambda: advice_of(run, arms, results), run.say)
        found.dev_calls = meter.calls(ADVICE)
    found.write(path)
    return found


def advice_of(run: Run, arms: Sequence[Arm], test: Results) -> Advice:
    """Which arm to use at which number of shots, by the accuracy of every arm that can be deployed on dev."""
    run.scorer.meter.asked[ADVICE].clear()
    section = replace(run.recipe.eval, oracle=False, random_draws=1)
    context = _items_of(run, "dev", section.dev_items)
    return advise_by(run_arms(replace(context, purpose=ADVICE), arms, section), test)


def choose_text_share(run: Run) -> float:
    """The share of the question in nearest_both with the best mean accuracy on dev."""
    section = run.recipe.eval
    return best_text_share(_items_of(run, "dev", section.dev_items), section.shots)


def evaluate_checkpoints(
    run: Run, split: str = "dev", items: int | None = None, force: bool = False
) -> dict[str, Any]:
    """Every checkpoint of a run on the same items, to see where it was best; writes sweep-dev.json.

    On test it needs `force` and is marked.
    """
    from leverplus.learn.checkpoint import load_checkpoint

    chosen_on_test = guard_test(split, "all", None, force)
    checkpoints = run.folder / rundir.CHECKPOINTS
    context = _items_of(run, split, items)
    names = checkpoint_names(checkpoints, run.recipe.stages)

    def selectors() -> Iterator[tuple[str, Arm]]:  # one at a time is in memory
        for name in names:
            network = load_checkpoint(checkpoints / name)[0]
            yield name, run.selector(network)

    rows = rows_of_checkpoints(context, selectors(), run.recipe.eval.shots)
    asked = [item.id for item in context.queries]
    found = {
        "task": run.task.name,
        "split": split,
        "n": len(asked),
        "checkpoints": [row.model_dump(mode="json") for row in rows],
        "best": best_row(rows),
        "chosen_on_test": chosen_on_test,
        "conditions": conditions_of(run.scorer.context, split, asked, context.pools),
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
    named = None
    if checkpoint is not None and not names_elsewhere(checkpoint):
        # a name that is not there is refused before the model is asked
        checkpoints = run.folder / rundir.CHECKPOINTS
        named = checkpoint_folder(checkpoints, checkpoint, run.recipe.stages)
    require_same_task(run, force=force)
    if checkpoint is None:
        policy = trained_policy(run)
    elif named is None:
        policy = given_policy(run, checkpoint)
    else:
        from leverplus.learn.checkpoint import load_checkpoint

        policy = load_checkpoint(named)[0]
    return evaluate_run(run, policy, split, items, checkpoint=checkpoint, force=force)
