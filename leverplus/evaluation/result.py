"""The record an evaluation leaves, `eval.json`: accuracies, comparisons, what they hide, and under which conditions.

It holds no times, dates or paths, so the same seed gives the same bytes. The accuracies stand first and are written as
soon as the arms are answered; every other entry is computed from them, and one that fails is a note, not a lost result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from leverplus.errors import LeverError
from leverplus.evaluation.arms import Bench
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
"""What computes each entry of eval.json."""


@runtime_checkable
class JudgesCaptions(Protocol):
    """A task whose metric judges all captions of a split together."""

    def cider(self, captions: Mapping[ItemId, str]) -> CiderScores: ...


def cider_table(results: Results, task: JudgesCaptions) -> dict[str, dict[str, float]]:
    """CIDEr-D (0 to 10) of every arm by shots, averaged over draws; search judges one caption alone."""
    return {
        arm: {
            str(shots): float(np.mean([task.cider({p.item: p.answer for p in draw}).mean for draw in draws]))
            for shots, draws in by_shots.items()
        }
        for arm, by_shots in results.draws.items()
    }


def first_record(bench: Bench, results: Results, *, split: str) -> dict[str, Any]:
    """What the answers alone say: a whole eval.json whose comparisons and diagnostics are still to come."""
    scorer, table = bench.scorer, accuracies(results)
    return {
        "task": bench.task.name,
        "split": split,
        "n": len(results.items),
        "model_calls": scorer.meter.calls(TRAINING),
        "eval_calls": scorer.meter.calls(EVALUATION),
        "arms": table,
        "gap_closed": gap_closed(table),
        "comparisons": [],
        "context": scorer.context.digest.hex(),
        "conditions": conditions_of(scorer.context, split, results.items, bench.pools),
        "notes": [],
    }


def makers(
    bench: Bench,
    results: Results,
    policy: Policy | None,
    section: EvalSection,
    *,
    record: Mapping[str, Any],
    trained: Callable[[], Bench],
) -> dict[str, Callable[[], Any]]:
    """What is computed from the answers, entry by entry, in this order; later ones may look at earlier ones.

    `trained` gives the training queries on which the selector is asked as well.
    """
    found: dict[str, Callable[[], Any]] = {
        "arms": lambda: {arm: {**record["arms"][arm], **own} for arm, own in spreads(results).items()},
        "comparisons": lambda: comparisons(results, compared_pairs(results)),
        "harm": lambda: harm_table(results),
        "copied": lambda: copied_table(results, lambda demo: bench.task.item(demo).answer),
        "picks": lambda: picks_table(results),
    }
    task = bench.task
    if isinstance(task, JudgesCaptions):
        found["cider"] = lambda: cider_table(results, task)
    if policy is not None and section.diagnostics:
        found |= diagnoses(bench, results, policy, section.diagnostic_items)
        found["train"] = partial(_training_accuracy, trained, policy, section)
    found["cost"] = lambda: call_cost(record["arms"], record["comparisons"], record["model_calls"])
    return found


def _training_accuracy(trained: Callable[[], Bench], policy: Policy, section: EvalSection) -> dict[str, Any]:
    return training_accuracy(trained(), policy, section.shots)


def fill(record: dict[str, Any], entries: Makers, say: Callable[[str], None]) -> None:
    """Compute entries into a record; one that fails is left as it is and becomes a note that says so.

    Whatever goes wrong in one of them, be it a mistake of this program, must not cost the answers that were paid for.
    """
    for name, make in entries.items():
        alone(record, name, partial(_put, record, name, make), say)


def _put(record: dict[str, Any], name: str, make: Callable[[], Any]) -> None:
    record[name] = make()


def alone(record: dict[str, Any], what: str, work: Callable[[], Any], say: Callable[[str], None]) -> None:
    """Do a piece of work that may fail alone: then the record has a note, and the user is told what is missing."""
    try:
        work()
    except Exception as error:
        why = str(error) if isinstance(error, LeverError) else f"{type(error).__name__}: {error}"
        record["notes"] = [*record["notes"], f"{what} is missing: {why}"]
        say(f"note: {what} is missing ({why}). The answers are kept; type the command again to make it up.")
