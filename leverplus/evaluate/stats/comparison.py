"""The comparison of two arms on the same items: difference, interval, p-value, detectable effect, help and harm."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leverplus.evaluate.stats.bootstrap import RESAMPLES, Interval, paired_bootstrap
from leverplus.evaluate.stats.paired import (
    blocks,
    check_clusters,
    paired_differences,
)
from leverplus.evaluate.stats.power import USUAL, Changes, minimum_detectable_effect
from leverplus.evaluate.stats.significance import holm, sign_flip_test

LEVEL = 0.05  # of every test, before Holm's correction


@dataclass(frozen=True)
class Comparison:
    """Two arms on n common items; `diff` is the first minus the second, in accuracy.

    `p_adjusted` is corrected for all that is compared (see `adjust`); alone it equals `p_value`. `mde80` is the
    smallest true difference that this one test at 5 % finds 80 % of the time on these items, `mde80_adjusted` the same
    under the correction, by which verdicts are given. `helped` and `harmed` count the items that the first arm scores
    above and below the second. The detectable differences are computed from `pieces` and `changes`.
    """

    n: int
    diff: float
    helped: int
    harmed: int
    ci95: Interval = (-1.0, 1.0)
    p_value: float = 1.0
    p_adjusted: float = 1.0
    mde80: float = 1.0
    mde80_adjusted: float = 1.0
    pieces: int = field(default=1, repr=False)
    changes: Changes = field(default=USUAL, repr=False)

    @property
    def within_noise(self) -> bool:
        """Whether nothing may be claimed: not significant after correction, or zero lies in the interval."""
        return self.p_adjusted >= LEVEL or self.ci95[0] <= 0.0 <= self.ci95[1]

    def detectable(self, comparisons: int) -> float:
        """The difference found 80 % of the time when p is corrected by Holm's rule over this many comparisons.

        Holm's first step asks for p < 5 % / comparisons; a difference that is real while the others are not has to pass
        that step.
        """
        return minimum_detectable_effect(
            self.pieces, self.changes, alpha=LEVEL / comparisons
        )

    def as_json(self) -> dict[str, Any]:
        """The record as `eval.json` holds it, without the names of the arms."""
        shown = {**vars(self), "ci95": list(self.ci95)}
        del shown["pieces"], shown["changes"]
        return shown


def compare(
    a: ArrayLike,
    b: ArrayLike,
    *,
    clusters: Sequence[Hashable] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compares arm a with arm b on the same items, given in the same order, each score in [0, 1].

    `clusters` names each item's image where several items share one: images are then
    drawn, swapped and counted as the independent pieces. A single item or image says nothing about noise: its interval
    is [-1, 1] and its p-value 1.
    """
    differences = paired_differences(a, b, least=1)
    check_clusters(clusters, len(differences))
    known = Comparison(
        n=len(differences),
        diff=float(differences.mean()),
        helped=int(np.count_nonzero(differences > 0)),
        harmed=int(np.count_nonzero(differences < 0)),
    )
    independent = len(differences) if clusters is None else len(set(clusters))
    if independent < 2:
        return known
    pieces = blocks(differences, clusters)
    changes = Changes.seen_in(pieces)
    p_value = sign_flip_test(a, b, clusters=clusters, seed=seed)
    detectable = minimum_detectable_effect(len(pieces), changes)
    return replace(
        known,
        ci95=paired_bootstrap(a, b, clusters=clusters, resamples=resamples, seed=seed),
        p_value=p_value,
        p_adjusted=p_value,
        mde80=detectable,
        mde80_adjusted=detectable,
        pieces=len(pieces),
        changes=changes,
    )


def adjust(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The same comparisons with `p_adjusted` and `mde80_adjusted` corrected by Holm's rule over all of them."""
    corrected = holm([comparison.p_value for comparison in comparisons])
    adjusted = []
    for comparison, p_adjusted in zip(comparisons, corrected, strict=True):
        detectable = comparison.detectable(len(comparisons))
        adjusted.append(
            replace(comparison, p_adjusted=p_adjusted, mde80_adjusted=detectable)
        )
    return adjusted
