"""Regret: how far a choice is from a perfect answer, split into four causes ("misses").

For one item, let `ceiling` be the accuracy of the best reference answer and `measured` the accuracies of all lists that
were tried from its pool, the chosen one among them. Then

    pool miss   = ceiling - best of all lists measured       the pool (or the model) never gave the answer
    count miss  = best of all - best with as many demos      another number of demonstrations would have
    choice miss = best with as many - best order of these    other demonstrations would have
    order miss  = best order of these - the chosen list      another order of the same would have

Each compares a set of lists with one that contains it, so none is negative, and they sum to ceiling - accuracy. What
was not tried cannot be found: pool miss is an upper bound, order miss a lower one where not all orders were tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from leverplus.data.types import Demos, ItemId
from leverplus.errors import NotMeasured
from leverplus.evaluate.evaluate import EvaluationContext
from leverplus.evaluate.names import YARDSTICKS, asks_model, facts_of
from leverplus.evaluate.predictions import Results
from leverplus.evaluate.record import Misses

ALL_ORDERS_UP_TO = 3  # 3 demonstrations have 6 orders, 4 have 24: too many calls
Measured = dict[ItemId, dict[Demos, float]]
"""The accuracy of every list that was tried for an item."""


@dataclass(frozen=True)
class Regret:
    """The four misses of a choice, in accuracy; they sum to its regret."""

    pool: float
    count: float
    choice: float
    order: float

    @property
    def total(self) -> float:
        return self.pool + self.count + self.choice + self.order


def regret(ceiling: float, measured: Mapping[Demos, float], chosen: Demos) -> Regret:
    """The misses of one item; `measured` holds the accuracy of every list tried, in any order and number."""
    if chosen not in measured:
        raise NotMeasured(
            f"the chosen list ({', '.join(chosen) or 'none'}) was not measured; score it first"
        )
    everything = equally_many = these = measured[chosen]
    for demos, value in measured.items():
        everything = max(everything, value)
        if len(demos) == len(chosen):
            equally_many = max(equally_many, value)
        if set(demos) == set(chosen):
            these = max(these, value)
    # a metric may score an answer above every reference: no miss is negative
    top = max(ceiling, everything)
    return Regret(
        pool=top - everything,
        count=everything - equally_many,
        choice=equally_many - these,
        order=these - measured[chosen],
    )


def mean_regret(parts: Sequence[Regret]) -> Misses:
    """The mean misses over items, and their sum."""
    means = {}
    for name in ("pool", "count", "choice", "order"):
        values = [getattr(part, name) for part in parts]
        means[name] = float(np.mean(values))
    return Misses(n=len(parts), **means, total=sum(means.values()))


def orders(demos: Demos) -> list[Demos]:
    """Other orders of a list: all of them up to 3 demonstrations, else its rotations and its reverse."""
    if len(demos) <= ALL_ORDERS_UP_TO:
        tried = list(permutations(demos))
    else:
        rotations = [demos[cut:] + demos[:cut] for cut in range(1, len(demos))]
        tried = [*rotations, demos[::-1]]
    return [order for order in dict.fromkeys(tried) if order != demos]


def sample_places(count: int, wanted: int) -> list[int]:
    """Places of a fixed random sample of `wanted` of `count` items, ascending; all of them if there are no more."""
    if wanted >= count:
        return list(range(count))
    rng = np.random.default_rng([count, wanted])
    return sorted(rng.choice(count, wanted, replace=False).tolist())


def regret_table(
    context: EvaluationContext, results: Results, wanted: int
) -> dict[str, dict[int, Misses]]:
    """The mean regret of every trained arm by shots, on a sample of items, where an oracle was run.

    The model is asked other orders of what `learned` chose; these calls count as evaluation.
    """
    if "oracle" not in results.draws or "learned" not in results.draws:
        return {}
    places = sample_places(len(context.queries), wanted)
    measured: Measured = defaultdict(dict)
    for arm, _, draw in results:
        if asks_model(arm) and not facts_of(arm).combines:
            for own in draw:
                measured[own.item][own.demos] = own.accuracy
    _try_other_orders(context, results, places, measured)
    table: dict[str, dict[int, Misses]] = {}
    for arm in results.draws:
        if arm in YARDSTICKS or not (facts_of(arm).trained and asks_model(arm)):
            continue
        for shots in results.shots(arm):
            draw = results.first(arm, shots)
            parts = []
            for place in places:
                own = draw[place]
                query = context.queries[place]
                ceiling = context.task.answers.ceiling(query)
                parts.append(regret(ceiling, measured[own.item], own.demos))
            table.setdefault(arm, {})[shots] = mean_regret(parts)
    return table


def _try_other_orders(
    context: EvaluationContext,
    results: Results,
    places: Sequence[int],
    measured: Measured,
) -> None:
    """Ask with other orders of what the selector chose, and add them to `measured`."""
    for shots in results.shots("learned"):
        tried = []
        items = []
        for place in places:
            for order in orders(results.first("learned", shots)[place].demos):
                tried.append(order)
                items.append(context.queries[place])
        answers = context.ask(tried, f"other orders of {shots}", items) if tried else []
        for answer in answers:
            measured[answer.item][answer.demos] = answer.accuracy
