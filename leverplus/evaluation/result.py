"""The record of an evaluation, `eval.json`: accuracies, comparisons, diagnostics, and the conditions of measurement.

It holds no times, dates or paths, so the same seed gives the same bytes. The accuracies stand first and are written as
soon as the arms are answered; every other entry is computed from them, and one that fails becomes a note and costs no
other entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from leverplus.errors import LeverError
from leverplus.evaluation.arms import EvaluationContext
from leverplus.evaluation.behaviour import copied_table, harm_table, picks_table
from leverplus.evaluation.conditions import conditions_of
from leverplus.evaluation.cost import call_cost
from leverplus.evaluation.diagnose import diagnoses, training_accuracy
from leverplus.evaluation.evaluate import accuracies, compared_pairs, comparisons, gap_closed, spreads
from leverplus.evaluation.predictions import Results
from leverplus.metrics import CiderScores
from leverplus.policies.base import Policy
from leverplus.recipe.sections import EvalSection
from leverplus.scoring.scorer import EVALUATION, TRAINING
from leverplus.types import ItemId

Makers = Mapping[str, Callable[[], Any]]
"""The function that computes each entry of eval.json, by the entry's name."""


@runtime_checkable
class JudgesCaptions(Protocol):
    """A task whose metric judges all captions of a split together."""

    def cider(self, captions: Mapping[ItemId, str]) -> CiderScores: ...


def cider_table(results: Results, task: JudgesCaptions) -> dict[str, dict[str, float]]:
    """CIDEr-D (0 to 10) of every arm by shots, averaged over draws.

    It needs all captions of a split; while searching, a caption is scored alone by the task's own metric.
    """
    table: dict[str, dict[str, float]] = {}
    for arm, by_shots in results.draws.items():
        table[arm] = {}
        for shots, draws in by_shots.items():
            means = []
            for draw in draws:
                captions = {prediction.item: prediction.answer for prediction in draw}
                means.append(task.cider(captions).mean)
            table[arm][str(shots)] = float(np.mean(means))
    return table


def first_record(context: EvaluationContext, results: Results, *, split: str) -> dict[str, Any]:
    """A whole eval.json from the answers alone; `entry_makers` fills in its comparisons and diagnostics later."""
    scorer, table = context.scorer, accuracies(results)
    return {
        "task": context.task.name,
        "split": split,
        "n": len(results.items),
        "model_calls": scorer.meter.calls(TRAINING),
        "eval_calls": scorer.meter.calls(EVALUATION),
        "arms": table,
        "gap_closed": gap_closed(table),
        "comparisons": [],
        "context": scorer.context.digest.hex(),
        "conditions": conditions_of(scorer.context, split, results.items, context.pools),
        "notes": [],
    }


def entry_makers(
    context: EvaluationContext,
    results: Results,
    policy: Policy | None,
    section: EvalSection,
    *,
    record: Mapping[str, Any],
    trained: Callable[[], EvaluationContext],
) -> dict[str, Callable[[], Any]]:
    """The functions that compute the other entries, in this order; later ones may read earlier ones from `record`.

    `trained` gives the training queries, on which the selector is measured as well.
    """
    found: dict[str, Callable[[], Any]] = {
        "arms": lambda: {arm: {**record["arms"][arm], **own} for arm, own in spreads(results).items()},
        "comparisons": lambda: comparisons(results, compared_pairs(results)),
        "harm": lambda: harm_table(results),
        "copied": lambda: copied_table(results, lambda demo: context.task.item(demo).answer),
        "picks": lambda: picks_table(results),
    }
    task = context.task
    if isinstance(task, JudgesCaptions):
        found["cider"] = lambda: cider_table(results, task)
    if policy is not None and section.diagnostics:
        found |= diagnoses(context, results, policy, section.diagnostic_items)
        found["train"] = partial(_training_accuracy, trained, policy, section)
    found["cost"] = lambda: call_cost(record["arms"], record["comparisons"], record["model_calls"])
    return found


def _training_accuracy(
    trained: Callable[[], EvaluationContext], policy: Policy, section: EvalSection
) -> dict[str, Any]:
    return training_accuracy(trained(), policy, section.shots)


def fill_entries(record: dict[str, Any], entries: Makers, say: Callable[[str], None]) -> None:
    """Computes entries into a record; one that fails stays as it is, and a note says so.

    Whatever goes wrong in one of them, even a mistake in this program, must not cost the answers that were paid for.
    """
    for name, make in entries.items():
        try_or_note(record, name, partial(_put, record, name, make), say)


def _put(record: dict[str, Any], name: str, make: Callable[[], Any]) -> None:
    record[name] = make()


def try_or_note(record: dict[str, Any], what: str, work: Callable[[], Any], say: Callable[[str], None]) -> None:
    """Do a piece of work that other work does not need; where it fails, the record gets a note and the user is told."""
    try:
        work()
    except Exception as error:  # everything: see `fill_entries`
        why = str(error) if isinstance(error, LeverError) else f"{type(error).__name__}: {error}"
        record["notes"] = [*record["notes"], f"{what} is missing: {why}"]
        say(f"note: {what} is missing ({why}). The answers are kept; type the command again to make it up.")
