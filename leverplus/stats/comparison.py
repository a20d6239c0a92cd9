"""The comparison of two arms on the same items: difference, interval, p-value, detectable effect, help and harm."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from leverplus.errors import EvaluationError
from leverplus.stats.bootstrap import RESAMPLES, Interval, paired_bootstrap
from leverplus.stats.paired import Floats, blocks, check_clusters, check_ids, paired_differences
from leverplus.stats.power import USUAL, Changes, minimum_detectable_effect
from leverplus.stats.significance import holm, mcnemar_test, sign_flip_test

Test = Literal["sign_flip", "mcnemar"]

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
    ci95: Interval
    p_value: float
    p_adjusted: float
    mde80: float
    helped: int
    harmed: int
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
        return minimum_detectable_effect(self.pieces, self.changes, alpha=LEVEL / comparisons)

    def as_json(self) -> dict[str, Any]:
        """The record as `eval.json` holds it, without the names of the arms."""
        shown = {name: value for name, value in vars(self).items() if name not in ("pieces", "changes")}
        return {**shown, "ci95": list(self.ci95)}


def compare(
    a: ArrayLike,
    b: ArrayLike,
    *,
    ids: Sequence[Hashable] | None = None,
    clusters: Sequence[Hashable] | None = None,
    test: Test = "sign_flip",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compares arm a with arm b on the same items, given in the same order, each score in [0, 1].

    `ids` names the items, each once. `clusters` names each item's image where several items share one: images are then
    drawn, swapped and counted as the independent pieces. `test` is `sign_flip` (any scores) or `mcnemar` (0 or 1 only,
    no clusters). A single item or image says nothing about noise: its interval is [-1, 1] and its p-value 1.
    """
    differences = paired_differences(a, b, least=1)
    if ids is not None:
        check_ids(ids, len(differences))
    helped = int(np.count_nonzero(differences > 0))
    harmed = int(np.count_nonzero(differences < 0))
    check_clusters(clusters, len(differences))
    independent = len(differences) if clusters is None else len(set(clusters))
    if independent < 2:
        return Comparison(
            n=len(differences),
            diff=float(differences.mean()),
            ci95=(-1.0, 1.0),
            p_value=1.0,
            p_adjusted=1.0,
            mde80=1.0,
            helped=helped,
            harmed=harmed,
        )
    if test == "mcnemar":
        _require_binary(differences, clusters)
        p_value = mcnemar_test(helped, harmed)
    elif test == "sign_flip":
        p_value = sign_flip_test(a, b, clusters=clusters, seed=seed)
    else:
        raise EvaluationError(f"there is no test called '{test}'; known: mcnemar, sign_flip")
    pieces = blocks(differences, clusters)
    changes = Changes.seen_in(pieces)
    detectable = minimum_detectable_effect(len(pieces), changes)
    return Comparison(
        n=len(differences),
        diff=float(differences.mean()),
        ci95=paired_bootstrap(a, b, clusters=clusters, resamples=resamples, seed=seed),
        p_value=p_value,
        p_adjusted=p_value,
        mde80=detectable,
        helped=helped,
        harmed=harmed,
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
        adjusted.append(replace(comparison, p_adjusted=p_adjusted, mde80_adjusted=detectable))
    return adjusted


def _require_binary(differences: Floats, clusters: Sequence[Hashable] | None) -> None:
    if clusters is not None:
        raise EvaluationError("McNemar's test takes items as independent; use test='sign_flip' with clusters")
    if not np.all(np.isin(differences, (-1.0, 0.0, 1.0))):
        raise EvaluationError("McNemar's test needs scores of 0 or 1, and these are graded; use test='sign_flip'")
