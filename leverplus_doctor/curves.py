"""How a logged metric went, through its noise: where it began, where it ended, and whether that is a change at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import mean, median

from leverplus_doctor.records import Series

FIFTH = 5  # the beginning and the end of a curve are a fifth of it each: enough to average out noise
SMALLEST = 0.02
"""Changes under this share of the largest value are none, however smooth the curve is."""


@dataclass(frozen=True)
class Curve:
    """The values of a metric in order; `early` and `late` are the means of the first and last fifth.

    >>> Curve((0.1, 0.2, 0.3, 0.4, 0.5)).rises
    True
    """

    values: tuple[float, ...]

    @property
    def early(self) -> float:
        return mean(self.values[: self._part])

    @property
    def late(self) -> float:
        return mean(self.values[-self._part :])

    @property
    def change(self) -> float:
        return self.late - self.early

    @cached_property
    def middle(self) -> float:
        return median(self.values)

    @cached_property
    def noise(self) -> float:
        """Standard deviation of a value around the course of the curve, from second differences (a line has none)."""
        bends = []
        for (before, here), (_, after) in pairwise(pairwise(self.values)):
            bends.append(abs(before - 2.0 * here + after))
        if not bends:
            return 0.0
        # 1.4826 makes a median of absolute values a standard deviation of normal ones; var(a - 2b + c) = 6 var
        return 1.4826 * median(bends) / math.sqrt(6.0)

    @property
    def error(self) -> float:
        """Standard error of `change`, with a floor for curves that are printed without noise."""
        # a difference of two means of `_part` values each
        of_noise = self.noise * math.sqrt(2.0 / self._part)
        largest = max(map(abs, self.values))
        # `rises` asks for three standard errors, so that this floor makes SMALLEST the smallest change
        return max(of_noise, SMALLEST / 3.0 * largest)

    @property
    def rises(self) -> bool:
        return self.change > 3.0 * self.error

    @property
    def falls(self) -> bool:
        return self.change < -3.0 * self.error

    @property
    def moves(self) -> bool:
        return self.rises or self.falls

    @property
    def rose_for_a_while(self) -> bool:
        """Whether the curve was well above its beginning at some time, wherever it ended."""
        rose = max(self.values) - self.early
        return rose > max(5.0 * self.noise, 0.05)

    @property
    def fell_from_its_best(self) -> bool:
        """Whether its last fifth lies below the best run of as many values: one lucky value is not enough."""
        best = -math.inf
        part = self._part
        for end in range(part, len(self.values) + 1):
            best = max(best, mean(self.values[end - part : end]))
        return best - self.late > 4.0 * self.error

    @property
    def _part(self) -> int:
        return max(1, len(self.values) // FIFTH)


def curve(series: Series, metric: str, fewest: int = 3) -> Curve | None:
    """The curve of a metric; None where it was measured less than `fewest` times."""
    values = tuple(series.numbers(metric))
    if len(values) < fewest:
        return None
    return Curve(values)


def first_curve(series: Series, metrics: Sequence[str]) -> tuple[str, Curve] | None:
    """The first of these metrics that was measured often enough."""
    for metric in metrics:
        found = curve(series, metric)
        if found is not None:
            return metric, found
    return None


def rises(series: Series, *metrics: str) -> bool:
    """Whether any of these metrics rose."""
    for metric in metrics:
        found = curve(series, metric)
        if found is not None and found.rises:
            return True
    return False


def held_out_error(series: Series, metric: str = "val/reward") -> float | None:
    """Standard error of a held-out measure: at most 0.5 / sqrt(queries), else from how it jumps between evaluations."""
    queries = series.recipe.get("score.dev_queries")
    if queries:
        # no value in [0, 1] has a deviation above 0.5
        return float(0.5 / math.sqrt(queries))
    found = curve(series, metric, 4)
    if found is None:
        return None
    # rounded values may show no noise at all
    largest = max(map(abs, found.values))
    return max(found.noise, 0.01 * largest)


def chance_level(series: Series) -> float | None:
    """The negative log-likelihood of a uniform policy on the sequences of a stage, from nll_skill = 1 - nll / it."""
    nll = series.last("nll")
    skill = series.last("nll_skill")
    if nll is None or skill is None or skill >= 1.0:
        return None
    return nll / (1.0 - skill)


def unmoved(series: Series) -> list[str]:
    """What was measured and did not move at all; empty where anything moved, or too little was measured to say."""
    still = []
    kl = curve(series, "kl", 8)
    step = curve(series, "kl_prox", 8)
    if kl is not None:
        if abs(kl.late) > 1e-4:
            return []
        still.append(f"KL {kl.late:.1g}")
    if step is not None:
        if abs(step.middle) > 1e-6:
            return []
        still.append(f"KL of an update {step.middle:.1g}")
    if still:
        # what the policy earns by chance says nothing where the policy itself stands still
        return still
    judged = ["reward", "val/reward", "val/loss", "val/accuracy", "update/param_rel"]
    if series.stage not in ("grpo", "ppo"):
        judged.insert(0, "loss/total")
    for metric in judged:
        fewest = 8
        if metric.startswith("val/"):
            fewest = 3
        found = curve(series, metric, fewest)
        if found is None:
            continue
        if found.moves:
            return []
        name = metric_in_words(metric)
        still.append(f"{name} {found.early:.3g} to {found.late:.3g}")
    return still


_IN_WORDS = {
    "loss/total": "loss",
    "grad_norm": "gradient norm",
    "rewards/acc/mean": "accuracy",
    "val/group_reward": "held-out reward of groups",
}


def metric_in_words(metric: str) -> str:
    """A metric of a log as sentences name it."""
    plain = metric.replace("val/", "held-out ").replace("_", " ")
    return _IN_WORDS.get(metric, plain)
