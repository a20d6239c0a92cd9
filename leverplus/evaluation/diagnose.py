"""What an accuracy hides and only the model can tell: order, regret, whether the query matters, training accuracy.

All of it is measured on a sample of the items; the calls count as evaluation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leverplus.evaluation import arms
from leverplus.evaluation.arms import Bench, asks_model
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
    return sorted(np.random.default_rng([count, wanted]).choice(count, wanted, replace=False).tolist())


def diagnoses(bench: Bench, results: Results, policy: Policy, wanted: int) -> dict[str, Callable[[], Any]]:
    """What makes the `order`, `regret` and `shuffled` entries of eval.json, to be called in this order."""
    places = sample_places(len(bench.pools), wanted)
    measured = lists_measured(results)
    return {
        "order": lambda: order_sensitivity(bench, results, places, measured),
        "regret": lambda: regret_table(bench, results, places, measured),
        "shuffled": lambda: shuffled_queries(bench, results, policy, places),
    }


def lists_measured(results: Results) -> Measured:
    """Everything the arms tried, item by item."""
    measured: Measured = defaultdict(dict)
    for arm, _, draw in results:
        if asks_model(arm):
            for own in draw:
                measured[own.item][own.demos] = own.accuracy
    return measured


def order_sensitivity(
    bench: Bench, results: Results, places: Sequence[int], measured: Measured, arm: str = "learned"
) -> dict[str, Any]:
    """What other orders of the chosen demonstrations do; every order tried is added to `measured`.

    `changed` is the share of answers that differ when the list is reversed, `accuracy` and `reversed` the accuracies of
    both, `best` that of the best order tried.
    """
    table: dict[str, Any] = {}
    for shots in results.shots(arm):
        if shots < 2:
            continue
        own = [results.draws[arm][shots][0][place] for place in places]
        tried = [(place, order) for place, given in zip(places, own, strict=True) for order in orders(given.demos)]
        pools = [bench.pools[place] for place, _ in tried]
        answers = bench.ask([order for _, order in tried], f"other orders of {shots}", pools)
        found = {(answer.item, answer.demos): answer for answer in answers}
        for answer in answers:
            measured[answer.item][answer.demos] = answer.accuracy
        turned = [found.get((given.item, given.demos[::-1]), given) for given in own]
        best = [max(a for demos, a in measured[g.item].items() if set(demos) == set(g.demos)) for g in own]
        table[str(shots)] = {
            "n": len(own),
            "changed": _changed(own, turned),
            "accuracy": _mean(own),
            "reversed": _mean(turned),
            "best": float(np.mean(best)),
        }
    return table


def regret_table(bench: Bench, results: Results, places: Sequence[int], measured: Measured) -> dict[str, Any]:
    """The misses of the selector at every number of shots, where an oracle was run."""
    if "oracle" not in results.draws:
        return {}
    ceilings = {place: ceiling(bench, bench.queries[place]) for place in places}
    table: dict[str, Any] = {}
    for arm in ("learned", "learned_auto"):
        for shots in results.shots(arm) if arm in results.draws else []:
            draw = results.draws[arm][shots][0]
            parts = [regret(ceilings[p], measured[draw[p].item], draw[p].demos) for p in places]
            table.setdefault(arm, {})[str(shots)] = {"n": len(parts), **mean_regret(parts)}
    return table


def ceiling(bench: Bench, query: Item) -> float:
    """The accuracy of the best reference answer: what a perfect model could get."""
    metric = metric_named(bench.task.metric)
    return max(metric(answer, query.answers) for answer in dict.fromkeys(query.answers))


def shuffled_queries(bench: Bench, results: Results, policy: Policy, places: Sequence[int]) -> dict[str, Any]:
    """The selector is given another item's query, but this item's candidates; this item is then asked with its picks.

    A policy that ignores its query picks the same (`same_picks` near 1) and loses nothing (`lost` near 0).
    """
    if len(places) < 2:
        return {}
    pools = [bench.pools[place] for place in places]
    others = pools[1:] + pools[:1]
    swapped = [replace(pool, query=other.query) for pool, other in zip(pools, others, strict=True)]
    shots = results.shots("learned")
    table: dict[str, Any] = {}
    for n, lists in arms.learned(policy, swapped, bench.table, shots).items():
        own = [results.draws["learned"][n][0][place] for place in places]
        other = bench.ask(lists, f"shuffled queries, {n} shots", pools)
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


def training_accuracy(bench: Bench, policy: Policy, shots: Sequence[int]) -> dict[str, Any]:
    """The selector and zero-shot on queries it was trained with: far above the other items means over-fitting."""
    results = Results.of(bench.queries)
    run_arm(results, bench, "zero_shot", {0: [() for _ in bench.pools]})
    run_arm(results, bench, "learned", arms.learned(policy, bench.pools, bench.table, sorted(shots)))
    table: dict[str, Any] = {"n": len(bench.queries)}
    for arm, by_shots in results.draws.items():
        table[arm] = {
            str(n): {
                "accuracy": float(results.accuracy(arm, n).mean()),
                "ci95": known_interval(results.accuracy(arm, n), clusters=results.images),
            }
            for n in by_shots
        }
    return table


def _changed(first: Sequence[Prediction], second: Sequence[Prediction]) -> float:
    pairs = zip(first, second, strict=True)
    return float(np.mean([normalise_answer(a.answer) != normalise_answer(b.answer) for a, b in pairs]))


def _mean(predictions: Sequence[Prediction]) -> float:
    return float(np.mean([prediction.accuracy for prediction in predictions]))
