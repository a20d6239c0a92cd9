"""Diagnostics that ask the model again: order, regret, whether the query matters, accuracy on training queries.

All of it is measured on a sample of the items; the calls count as evaluation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leverplus.evaluation import arms
from leverplus.evaluation.arms import EvaluationContext, asks_model
from leverplus.evaluation.evaluate import run_arm
from leverplus.evaluation.predictions import Prediction, Results
from leverplus.evaluation.regret import mean_regret, orders, regret
from leverplus.metrics import metric_named, normalise_answer
from leverplus.policies.base import Policy
from leverplus.stats import compare, known_interval
from leverplus.types import Demos, Item, ItemId

Measured = dict[ItemId, dict[Demos, float]]
"""The accuracy of every list that was tried for an item."""


def sample_places(count: int, wanted: int) -> list[int]:
    """Places of a fixed random sample of `wanted` of `count` items, ascending; all of them if there are no more."""
    if wanted >= count:
        return list(range(count))
    rng = np.random.default_rng([count, wanted])
    return sorted(rng.choice(count, wanted, replace=False).tolist())


def diagnoses(
    context: EvaluationContext, results: Results, policy: Policy, wanted: int
) -> dict[str, Callable[[], Any]]:
    """Functions that compute the `order`, `regret` and `shuffled` entries of eval.json, to be called in this order.

    `order` adds the orders it tries to `measured`, from which `regret` is computed.
    """
    places = sample_places(len(context.pools), wanted)
    measured = lists_measured(results)
    return {
        "order": lambda: order_sensitivity(context, results, places, measured),
        "regret": lambda: regret_table(context, results, places, measured),
        "shuffled": lambda: shuffled_queries(context, results, policy, places),
    }


def lists_measured(results: Results) -> Measured:
    """The accuracy of every list that the arms tried, item by item."""
    measured: Measured = defaultdict(dict)
    for arm, _, draw in results:
        if asks_model(arm):
            for own in draw:
                measured[own.item][own.demos] = own.accuracy
    return measured


def order_sensitivity(
    context: EvaluationContext, results: Results, places: Sequence[int], measured: Measured, arm: str = "learned"
) -> dict[str, Any]:
    """Accuracies of other orders of the chosen demonstrations; every order tried is added to `measured`.

    `changed` is the share of answers that differ when the list is reversed, `accuracy` and `reversed` the accuracies of
    both, `best` that of the best order tried.
    """
    table: dict[str, Any] = {}
    for shots in results.shots(arm):
        if shots < 2:
            continue
        own = [results.draws[arm][shots][0][place] for place in places]
        tried: list[Demos] = []
        pools = []
        for place, given in zip(places, own, strict=True):
            for order in orders(given.demos):
                tried.append(order)
                pools.append(context.pools[place])
        answers = context.ask(tried, f"other orders of {shots}", pools)
        found = {(answer.item, answer.demos): answer for answer in answers}
        for answer in answers:
            measured[answer.item][answer.demos] = answer.accuracy
        # a list that reads the same backwards was not asked again
        turned = [found.get((given.item, given.demos[::-1]), given) for given in own]
        best = [_best_order(measured[given.item], given.demos) for given in own]
        table[str(shots)] = {
            "n": len(own),
            "changed": _changed(own, turned),
            "accuracy": _mean(own),
            "reversed": _mean(turned),
            "best": float(np.mean(best)),
        }
    return table


def regret_table(
    context: EvaluationContext, results: Results, places: Sequence[int], measured: Measured
) -> dict[str, Any]:
    """The mean regret of the selector at every number of shots, where an oracle was run."""
    if "oracle" not in results.draws:
        return {}
    ceilings = {place: best_reference_accuracy(context, context.queries[place]) for place in places}
    table: dict[str, Any] = {}
    for arm in ("learned", "learned_auto"):
        if arm not in results.draws:
            continue
        for shots in results.shots(arm):
            draw = results.draws[arm][shots][0]
            parts = []
            for place in places:
                own = draw[place]
                parts.append(regret(ceilings[place], measured[own.item], own.demos))
            table.setdefault(arm, {})[str(shots)] = {"n": len(parts), **mean_regret(parts)}
    return table


def best_reference_accuracy(context: EvaluationContext, query: Item) -> float:
    """The accuracy of the best reference answer, the most that a perfect model could get."""
    metric = metric_named(context.task.metric)
    return max(metric(answer, query.answers) for answer in dict.fromkeys(query.answers))


def shuffled_queries(
    context: EvaluationContext, results: Results, policy: Policy, places: Sequence[int]
) -> dict[str, Any]:
    """Accuracy when the selector sees another item's query: does it look at the query at all?

    It chooses from this item's candidates for another item's query, and the model answers this item with its picks. A
    policy that ignores its query picks the same (`same_picks` near 1) and loses nothing (`lost` near 0).
    """
    if len(places) < 2:
        return {}
    pools = [context.pools[place] for place in places]
    others = pools[1:] + pools[:1]  # every pool gets the query of the next one
    swapped = [replace(pool, query=other.query) for pool, other in zip(pools, others, strict=True)]
    shots = results.shots("learned")
    table: dict[str, Any] = {}
    for n, lists in arms.learned(policy, swapped, context.table, shots).items():
        own = [results.draws["learned"][n][0][place] for place in places]
        other = context.ask(lists, f"shuffled queries, {n} shots", pools)
        images = [results.images[place] for place in places]
        found = compare([a.accuracy for a in own], [a.accuracy for a in other], clusters=images)
        table[str(n)] = {
            "n": len(own),
            "same_picks": float(np.mean([a.demos == b.demos for a, b in zip(own, other, strict=True)])),
            "accuracy": _mean(own),
            "shuffled": _mean(other),
            "lost": found.diff,
            "ci95": list(found.ci95),
            "p_value": found.p_value,
        }
    return table


def training_accuracy(context: EvaluationContext, policy: Policy, shots: Sequence[int]) -> dict[str, Any]:
    """The selector and zero-shot on queries it was trained with: far above the other items means over-fitting."""
    results = Results.of(context.queries)
    run_arm(results, context, "zero_shot", {0: [() for _ in context.pools]})
    run_arm(results, context, "learned", arms.learned(policy, context.pools, context.table, sorted(shots)))
    table: dict[str, Any] = {"n": len(context.queries)}
    for arm, by_shots in results.draws.items():
        table[arm] = {}
        for n in by_shots:
            accuracy = results.accuracy(arm, n)  # (items,)
            interval = known_interval(accuracy, clusters=results.images)
            table[arm][str(n)] = {"accuracy": float(accuracy.mean()), "ci95": interval}
    return table


def _best_order(measured: Mapping[Demos, float], chosen: Demos) -> float:
    """The accuracy of the best order tried of the same demonstrations."""
    return max(accuracy for demos, accuracy in measured.items() if set(demos) == set(chosen))


def _changed(first: Sequence[Prediction], second: Sequence[Prediction]) -> float:
    pairs = zip(first, second, strict=True)
    return float(np.mean([normalise_answer(a.answer) != normalise_answer(b.answer) for a, b in pairs]))


def _mean(predictions: Sequence[Prediction]) -> float:
    return float(np.mean([prediction.accuracy for prediction in predictions]))
