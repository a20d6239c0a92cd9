"""Schedules of the learning rate and other settings (step in, number out), and the rule for the KL term's weight."""

from __future__ import annotations

import math
from dataclasses import dataclass

SHAPES = ("constant", "linear", "cosine")


def warm_up(
    step: int,
    steps: int,
) -> float:
    """A factor that rises from 1/steps at step 0 to 1; always 1 when there is no warm-up."""
    if steps > 0:
        return min(1.0, (step + 1) / steps)
    return 1.0


def decay(
    shape: str,
    step: int,
    total: int,
) -> float:
    """A factor from 1 at step 0 to 0 at the last step: constant, linear or cosine."""
    if shape == "constant":
        return 1.0
    progress = min(
        max(step / max(total - 1, 1), 0.0), 1.0
    )  # 0 at the first step, 1 at the last and beyond
    if shape == "linear":
        return 1.0 - progress
    if shape == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    raise ValueError(f"unknown schedule '{shape}'; known: {', '.join(SHAPES)}")


def learning_rate(
    base: float,
    shape: str,
    step: int,
    total: int,
    *,
    warmup: int,
) -> float:
    """The learning rate of a step: warm-up, then decay over the steps that remain."""
    if step < warmup:
        return base * warm_up(step, warmup)
    return base * decay(shape, step - warmup, total - warmup)


def interpolate(
    start: float,
    end: float,
    step: int,
    total: int,
) -> float:
    """Linear from `start` at step 0 to `end` at step total - 1; `start` when there is a single step."""
    progress = min(step / max(total - 1, 1), 1.0)
    return start + (end - start) * progress


@dataclass(frozen=True)
class BetaRule:
    """Adapts the weight of the KL term: multiplies it by `factor` when the KL is above `high`, divides below `low`.

    To be applied once per epoch with the mean KL of that epoch. Applied after every batch, as the earlier code did, the
    weight runs into its limits within one epoch (1.5 ** 12 is already a factor of 130).
    """

    low: float
    high: float
    factor: float
    minimum: float
    maximum: float

    def next(
        self,
        beta: float,
        kl: float,
    ) -> float:
        """The weight to use from now on."""
        if kl > self.high:
            beta *= self.factor
        elif kl < self.low:
            beta /= self.factor
        return min(max(beta, self.minimum), self.maximum)
