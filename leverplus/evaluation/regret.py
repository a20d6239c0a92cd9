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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import permutations

import numpy as np

from leverplus.errors import NotMeasured
from leverplus.types import Demos

ALL_ORDERS_UP_TO = 3  # 3 demonstrations have 6 orders, 4 have 24: too many calls


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
        raise NotMeasured(f"the chosen list ({', '.join(chosen) or 'none'}) was not measured; score it first")
    everything = max(measured.values())
    equally_many = max(value for demos, value in measured.items() if len(demos) == len(chosen))
    these = max(value for demos, value in measured.items() if set(demos) == set(chosen))
    top = max(ceiling, everything)  # a metric may score an answer above every reference: no miss is negative
    return Regret(
        pool=top - everything,
        count=everything - equally_many,
        choice=equally_many - these,
        order=these - measured[chosen],
    )


def mean_regret(parts: Sequence[Regret]) -> dict[str, float]:
    """The mean misses over items, and their sum."""
    means = {}
    for field in fields(Regret):
        means[field.name] = float(np.mean([getattr(part, field.name) for part in parts]))
    return {**means, "total": sum(means.values())}


def orders(demos: Demos) -> list[Demos]:
    """Other orders of a list: all of them up to 3 demonstrations, else its rotations and its reverse."""
    if len(demos) <= ALL_ORDERS_UP_TO:
        tried = list(permutations(demos))
    else:
        rotations = [demos[cut:] + demos[:cut] for cut in range(1, len(demos))]
        tried = [*rotations, demos[::-1]]
    return [order for order in dict.fromkeys(tried) if order != demos]
