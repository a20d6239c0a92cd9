"""The record an evaluation leaves, `eval.json`: accuracies, comparisons, what they hide, and under which conditions.

It holds no times, dates or paths, so the same seed gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from leverplus.evaluation.arms import Bench
from leverplus.evaluation.behaviour import copied_table, harm_table, picks_table
from leverplus.evaluation.conditions import conditions_of
from leverplus.evaluation.cost import call_cost
from leverplus.evaluation.diagnose import diagnose, training_accuracy
from leverplus.evaluation.evaluate import compared_pairs, comparisons, summary
from leverplus.evaluation.predictions import Results
from leverplus.metrics import CiderScores
from leverplus.policies.base import Policy
from leverplus.recipe.sections import EvalSection
from leverplus.scoring.scorer import EVALUATION, TRAINING
from leverplus.types import ItemId


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


def report(
    bench: Bench, results: Results, policy: Policy | None, section: EvalSection, *, split: str, trained: Bench | None
) -> dict[str, Any]:
    """Everything eval.json says of the arms; `trained` holds the training queries on which the selector is asked."""
    scorer = bench.scorer
    table = summary(results)
    compared = comparisons(results, compared_pairs(results))
    hidden: dict[str, Any] = {
        "harm": harm_table(results),
        "copied": copied_table(results, lambda demo: bench.task.item(demo).answer),
        "picks": picks_table(results),
    }
    if isinstance(bench.task, JudgesCaptions):
        hidden["cider"] = cider_table(results, bench.task)
    if policy is not None and section.diagnostics:
        hidden |= diagnose(bench, results, policy, section.diagnostic_items)
        if trained is not None:
            hidden["train"] = training_accuracy(trained, policy, section.shots)
    model_calls = scorer.meter.calls(TRAINING)
    return {
        "task": bench.task.name,
        "split": split,
        "n": len(results.items),
        "model_calls": model_calls,
        "eval_calls": scorer.meter.calls(EVALUATION),
        **table,
        "comparisons": compared,
        **hidden,
        "cost": call_cost(table["arms"], compared, model_calls),
        "context": scorer.context.digest.hex(),
        "conditions": conditions_of(scorer.context, split, results.items, bench.pools),
    }
