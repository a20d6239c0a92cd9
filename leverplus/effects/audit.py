"""Which demonstrations of a corpus help and which harm, from recorded one-shot answers, and a pilot out of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leverplus.effects.estimate import Effects, Floats, Measured, estimate_effects
from leverplus.errors import DataError

FEWEST = 3
"""Answers that a demonstration must have been shown for to be listed."""
COMMON = 0.1
"""Share of the queries that a demonstration of a pilot was asked with."""


@dataclass(frozen=True)
class AuditLine:
    """A demonstration with its effect and standard error, in accuracy, and how many queries it was shown to."""

    demo: str
    effect: float
    error: float
    shown: int


@dataclass(frozen=True)
class Audit:
    """Effects of all demonstrations of a table; `names[d]` is the id of demonstration d."""

    names: Sequence[str]
    effects: Effects
    rows: int
    queries: int

    def ranked(self) -> list[AuditLine]:
        """Demonstrations that were shown often enough, most useful first."""
        own = self.effects
        places = [place for place in np.argsort(-own.effect, kind="stable").tolist() if own.counts[place] >= FEWEST]
        return [AuditLine(self.names[p], float(own.effect[p]), float(own.error[p]), int(own.counts[p])) for p in places]

    @property
    def is_noise(self) -> bool:
        """Whether the effects could be the luck of few answers: no spread, or next to none of what is seen is real."""
        return self.effects.spread == 0.0 or self.effects.reliability < 0.05


def audit(data: Measured, names: Sequence[str]) -> Audit:
    """Effects from one-shot rows; demonstrations are numbered as in `names`."""
    return Audit(names, estimate_effects(data), len(data.scores), len(np.unique(data.queries)))


def pilot_table(data: Measured, most_queries: int, most_demos: int, seed: int = 0) -> Floats:
    """A full table (Q, D) out of recorded rows: demonstrations that many queries share, with queries that had them all.

    DataError where no two demonstrations were asked with common queries; a pilot then has to be asked.
    """
    count = len(np.unique(data.queries))
    frequent = {demo for demo, shown in Counter(data.demos.tolist()).items() if shown >= COMMON * count}
    found: dict[int, dict[int, float]] = {}
    for query, demo, score in zip(data.queries.tolist(), data.demos.tolist(), data.scores.tolist(), strict=True):
        if demo in frequent:
            found.setdefault(query, {}).setdefault(demo, score)
    sets = Counter(frozenset(own) for own in found.values() if len(own) > 1)
    if not sets:
        raise DataError(
            "no two demonstrations were asked with the same queries, so variance cannot be split; ask ten "
            "demonstrations with sixty queries each and give that table"
        )
    common, _ = max(sets.items(), key=lambda pair: (pair[1] * len(pair[0]), sorted(pair[0])))
    rng = np.random.default_rng(seed)
    columns = sorted(common)[:most_demos]
    rows = sorted(query for query, own in found.items() if common <= own.keys())
    chosen = rng.permutation(rows)[:most_queries].tolist()
    return np.array([[found[query][demo] for demo in columns] for query in chosen])
