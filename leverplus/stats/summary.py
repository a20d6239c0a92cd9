"""Tests a difference from a published table, where only the number of items and two accuracies are known.

The noise of a paired difference depends on how many items the two arms score differently, which a table does not say.
So the answer is given over a range of assumed discordance; each such item is taken to change by a full point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leverplus.errors import EvaluationError
from leverplus.stats.bootstrap import Interval
from leverplus.stats.power import Changes, minimum_detectable_effect, plan_n
from leverplus.stats.significance import mcnemar_test

DISCORDANCES = (0.05, 0.10, 0.15, 0.20, 0.25, 0.30)


@dataclass(frozen=True)
class SummaryRow:
    """Interval, p-value and power of the difference if the two arms differ on this share of items.

    `n_needed` is how many items would find a true difference of this size 80 % of the time; None when it is zero.
    """

    discordance: float
    n: int
    diff: float
    se: float
    ci95: Interval
    p_value: float
    mde80: float
    within_noise: bool
    n_needed: int | None

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "ci95": list(self.ci95)}


def compare_summary(
    n: int, accuracy: float, baseline: float, *, discordances: Sequence[float] = DISCORDANCES
) -> list[SummaryRow]:
    """One row for each assumed discordance that the difference allows (it cannot be below the difference itself).

    For a mean over several shots of the same items, n stays the number of items: the shots rise and fall together.
    """
    if n < 2:
        raise EvaluationError(f"n must be at least 2 items; got {n}")
    for name, value in (("accuracy", accuracy), ("baseline", baseline)):
        if not 0.0 <= value <= 1.0:
            raise EvaluationError(f"{name} must lie in [0, 1]; got {value:g}, divide percentages by 100")
    for discordance in discordances:
        if not 0.0 < discordance <= 1.0:
            raise EvaluationError(f"an assumed discordance is a share of items in (0, 1]; got {discordance:g}")
    diff = round(accuracy - baseline, 12)  # 0.53 - 0.5 is a little above 0.03 in floats, and 0.03 must allow it
    possible = [discordance for discordance in discordances if discordance >= abs(diff)]
    if not possible:
        raise EvaluationError(
            f"a difference of {diff:+.4f} means that at least {abs(diff):.1%} of the items differ; "
            "give a discordance at least as large"
        )
    return [_row(n, diff, discordance) for discordance in possible]


def _row(n: int, diff: float, discordance: float) -> SummaryRow:
    from scipy.special import ndtri

    # an item changes by +1, -1 or 0, so that its mean square is the discordance
    se = math.sqrt((discordance - diff * diff) / n)
    reach = float(ndtri(0.975)) * se
    ci95 = (max(diff - reach, -1.0), min(diff + reach, 1.0))
    helped = round(n * (discordance + diff) / 2)
    harmed = round(n * (discordance - diff) / 2)
    p_value = mcnemar_test(helped, harmed)
    return SummaryRow(
        discordance=discordance,
        n=n,
        diff=diff,
        se=se,
        ci95=ci95,
        p_value=p_value,
        mde80=minimum_detectable_effect(n, Changes(discordance)),
        within_noise=p_value >= 0.05 or ci95[0] <= 0.0 <= ci95[1],
        n_needed=plan_n(diff, Changes(discordance)) if diff else None,
    )
