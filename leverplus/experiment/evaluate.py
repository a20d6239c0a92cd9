"""Evaluating a run: every way of choosing demonstrations on the same items and pools. Nothing is trained here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from leverplus import rundir
from leverplus.experiment.pilot import fixed_lists, pilot_of
from leverplus.experiment.ranking import rankings_of
from leverplus.experiment.run import Run
from leverplus.recipe.pools import WHOLE_CORPUS
from leverplus.rundir import read_json, write_json

if TYPE_CHECKING:
    from leverplus.evaluation.arms import EvaluationContext
    from leverplus.evaluation.predictions import Results
    from leverplus.policies.base import Policy
    from leverplus.ranking.ranking import Rankings
    from leverplus.types import Item


def evaluation_context(run: Run, queries: Sequence[Item]) -> EvaluationContext:
    """What all arms share on some queries."""
    from leverplus.evaluation.arms import EvaluationContext

    pools, table = run.pools(queries)
    return EvaluationContext(
        run.task,
        run.scorer,
        queries,
        pools,
        table,
        run.demonstrations,
        run.demonstration_vectors,
        whole_corpus=run.recipe.pool.kind in WHOLE_CORPUS,
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
) -> dict[str, Any]:
    """Every arm on the same items and pools; writes eval.json and predictions.parquet (eval-dev.json, ... on dev).

    `checkpoint` names what `policy` is if it is not the run's last; a second one on test needs `force`. With `advise`
    an evaluation on test ends with what to use, by dev figures, unless eval.advice = false.
    """
    from leverplus.evaluation.checkpoints import guard_test
    from leverplus.evaluation.conditions import require_unseen
    from leverplus.evaluation.cost import query_cost
    from leverplus.evaluation.evaluate import run_arms
    from leverplus.evaluation.predictions import write_predictions
    from leverplus.evaluation.result import entry_makers, fill_entries, first_record, try_or_note
    from leverplus.scoring.scorer import ADVICE, EVALUATION
    from leverplus.training.given import names_elsewhere

    section = run.recipe.eval
    path = run.folder / rundir.of_split(rundir.EVAL, split)
    chosen_on_test = guard_test(split, checkpoint, read_json(path) if path.is_file() else None, force)
    run.scorer.meter.asked[EVALUATION].clear()  # eval_calls are those of this evaluation
    context = evaluation_context(run, run.chosen_items(split, section.items if items is None else items))
    if split != "train":  # items of the training split are asked with pools that leave out their own picture
        require_unseen(context.queries, run.demonstrations)
    text_share = choose_text_share(run)
    fixed = fixed_lists(run) if split != "train" else None  # lists hold items of train, which cannot show themselves
    rankings = rankings_of(run, text_share) if section.ranked else None
    mmr = run.recipe.pool.mmr_lambda
    results = run_arms(context, section, policy, text_share, mmr, fixed=fixed, rankings=rankings)
    found = first_record(context, results, split=split)
    if rankings is not None:
        found["rankings"] = rankings.about()
    found["nearest_both_text_share"] = text_share
    found["checkpoint"] = checkpoint or (list(run.recipe.stages)[-1] if policy is not None else None)
    found["chosen_on_test"] = chosen_on_test
    if run.recipe.score.pilot:
        found["pilot"] = pilot_of(run)
    if checkpoint is not None and names_elsewhere(checkpoint):
        found["model_calls"] = 0  # this run did not train it
    write_predictions(results, run.folder / rundir.of_split(rundir.PREDICTIONS, split))
    write_json(path, found)  # the answers were paid for: from here on nothing that fails can lose them
    trained = partial(_training_context, run)
    fill_entries(found, entry_makers(context, results, policy, section, record=found, trained=trained), run.say)
    found["eval_calls"] = run.scorer.meter.calls(EVALUATION)
    if advise and section.advice and split == "test":
        fill_entries(found, {"advice": lambda: advice_of(run, policy, text_share, results, rankings)}, run.say)
        found["dev_calls"] = run.scorer.meter.calls(ADVICE)
    try_or_note(found, "the cost of a query", lambda: run.remember({"query_cost": query_cost(results)}), run.say)
    write_json(path, found)
    return found


def advice_of(
    run: Run, policy: Policy | None, text_share: float, test: Results, rankings: Rankings | None
) -> dict[str, Any]:
    """Which arm to use at which number of shots, by the accuracy of every arm that can be deployed on dev."""
    from leverplus.evaluation.advice import advise
    from leverplus.evaluation.evaluate import run_arms
    from leverplus.scoring.scorer import ADVICE

    run.scorer.meter.asked[ADVICE].clear()
    section = replace(run.recipe.eval, oracle=False, random_draws=1)
    context = replace(evaluation_context(run, run.chosen_items("dev", section.dev_items)), purpose=ADVICE)
    mmr = run.recipe.pool.mmr_lambda
    own = run_arms(context, section, policy, text_share, mmr, fixed=fixed_lists(run), rankings=rankings)
    return advise(own, test)


def _training_context(run: Run) -> EvaluationContext:
    """The training queries on which the selector is asked: far better than elsewhere means over-fitting."""
    return evaluation_context(run, run.training_queries()[: run.recipe.eval.diagnostic_items])


def choose_text_share(run: Run) -> float:
    """The share of the question in nearest_both with the best mean accuracy on dev."""
    from leverplus.evaluation.evaluate import best_text_share

    section = run.recipe.eval
    return best_text_share(evaluation_context(run, run.chosen_items("dev", section.dev_items)), section.shots)
