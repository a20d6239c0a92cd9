"""How a logged metric went, through its noise: where it began, where it ended, and whether that is a change at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, median

from leverplus.doctor.records import Series

FIFTH = 5  # the beginning and the end of a curve are a fifth of it each: enough to average out noise
SMALLEST = 0.02
"""Changes under this share of the largest value are none, however smooth the curve is."""


@dataclass(frozen=True)
class Curve:
    """The values of a metric in order; `early` and `late` are the means of the first and last fifth."""

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
        triples = zip(self.values, self.values[1:], self.values[2:], strict=False)
        bends = [abs(before - 2.0 * here + after) for before, here, after in triples]
        if not bends:
            return 0.0
        # 1.4826 makes a median of absolute values a standard deviation of normal ones; var(a - 2b + c) = 6 var
        return 1.4826 * median(bends) / math.sqrt(6.0)

    @property
    def error(self) -> float:
        """Standard error of `change`, with a floor for curves that are printed without noise."""
        of_noise = self.noise * math.sqrt(2.0 / self._part)  # difference of two means of `_part` values each
        # `rises` asks for three standard errors, so that this floor makes SMALLEST the smallest change
        return max(of_noise, SMALLEST / 3.0 * max(map(abs, self.values)))

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
        return max(self.values) - self.early > max(5.0 * self.noise, 0.05)

    @property
    def fell_from_its_best(self) -> bool:
        """Whether its last fifth lies below the best run of as many values: one lucky value is not enough."""
        starts = range(len(self.values) - self._part + 1)
        best = max(mean(self.values[start : start + self._part]) for start in starts)
        return best - self.late > 4.0 * self.error

    @property
    def _part(self) -> int:
        return max(1, len(self.values) // FIFTH)


def curve(series: Series, metric: str, fewest: int = 3) -> Curve | None:
    """The curve of a metric; None where it was measured less than `fewest` times."""
    values = tuple(value for _, value in series.values(metric))
    return Curve(values) if len(values) >= fewest else None


def first_curve(series: Series, metrics: Sequence[str], fewest: int = 3) -> tuple[str, Curve] | None:
    """The first of these metrics that was measured often enough."""
    for metric in metrics:
        found = curve(series, metric, fewest)
        if found is not None:
            return metric, found
    return None


def rises(series: Series, *metrics: str) -> bool:
    """Whether any of these metrics rose."""
    curves = (curve(series, metric) for metric in metrics)
    return any(found is not None and found.rises for found in curves)
