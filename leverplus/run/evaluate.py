"""Evaluating a run: every way of choosing demonstrations on the same items and pools. Nothing is trained here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from leverplus.arms.base import Arm
from leverplus.data import rundir
from leverplus.evaluate.record import Advice, EvaluationRecord, read_record
from leverplus.run.arms import RunTraining, fitted_arms, keep_arms
from leverplus.run.pilot import pilot_of
from leverplus.run.run import Run

if TYPE_CHECKING:
    from leverplus.data.types import Item
    from leverplus.evaluate.evaluate import EvaluationContext
    from leverplus.evaluate.predictions import Results
    from leverplus.learn.policies.base import Policy


def evaluation_context(run: Run, queries: Sequence[Item]) -> EvaluationContext:
    """What all arms share on some queries."""
    from leverplus.evaluate.evaluate import EvaluationContext

    return EvaluationContext(
        run.task,
        run.scorer,
        queries,
        run.asked(queries),
        run.corpus,
        run.demonstrations,
        run.pools(queries)[0],
    )


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
    from leverplus.evaluate.conditions import require_unseen
    from leverplus.evaluate.evaluate import (
        JudgesCaptions,
        arm_results,
        cider_table,
        compared_pairs,
        comparisons,
        first_record,
        run_arms,
    )
    from leverplus.evaluate.predictions import write_predictions
    from leverplus.evaluate.regret import regret_table
    from leverplus.evaluate.runs import guard_test
    from leverplus.learn.given import names_elsewhere
    from leverplus.scores.scorer import ADVICE, EVALUATION, TRAINING

    section, meter = run.recipe.eval, run.scorer.meter
    path = run.folder / rundir.of_split(rundir.EVAL, split)
    chosen_on_test = guard_test(split, checkpoint, read_record(path), force)
    meter.asked[EVALUATION].clear()  # eval_calls are those of this evaluation
    context = evaluation_context(
        run, run.chosen_items(split, section.items if items is None else items)
    )
    if split != "train":
        # items of the training split are asked with pools that leave out their own picture
        require_unseen(context.queries, run.demonstrations)
    training = RunTraining(run, policy, partial(choose_text_share, run))
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
    task = context.task
    if isinstance(task, JudgesCaptions):
        found.attempt("cider", lambda: cider_table(results, task), run.say)
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
    from leverplus.evaluate.advice import advise
    from leverplus.evaluate.evaluate import run_arms
    from leverplus.scores.scorer import ADVICE

    run.scorer.meter.asked[ADVICE].clear()
    section = replace(run.recipe.eval, oracle=False, random_draws=1)
    queries = run.chosen_items("dev", section.dev_items)
    context = replace(evaluation_context(run, queries), purpose=ADVICE)
    return advise(run_arms(context, arms, section), test)


def choose_text_share(run: Run) -> float:
    """The share of the question in nearest_both with the best mean accuracy on dev."""
    from leverplus.evaluate.evaluate import best_text_share

    section = run.recipe.eval
    return best_text_share(
        evaluation_context(run, run.chosen_items("dev", section.dev_items)),
        section.shots,
    )
