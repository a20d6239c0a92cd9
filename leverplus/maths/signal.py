"""What a group of measured sequences can teach: the one place that says what "right", "flat" and a "tier" are.

Training, mining, the doctor and the report all ask here, so that a query is never flat for one and alive for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

FLAT = 1e-6
"""Two rewards or accuracies that differ by no more than this are equal: float32 noise, not a preference."""

TIERS: Mapping[str, tuple[float, int]] = {"high": (1.5, 3), "medium": (1.0, 2), "low": (0.0, 0)}
"""Tiers of the curriculum, best first: the least gap in `graded` between best and worst, the fewest right and wrong."""


def is_right(accuracy: float) -> bool:
    """Whether an answer counts as right: any accuracy above 0, the rule of the earlier code and of the score store."""
    return accuracy > 0.0


def graded(accuracy: float) -> float:
    """Right or wrong plus accuracy, from 0 to 2: the scale on which the tiers are set (reward `hard_plus_soft`)."""
    return float(is_right(accuracy)) + accuracy


def gap(values: Iterable[float]) -> float:
    """The largest less the smallest; 0 where there is nothing."""
    known = list(values)
    return max(known) - min(known) if known else 0.0


def is_flat(values: Iterable[float]) -> bool:
    """Whether values of a group are all the same, so that they prefer nothing."""
    return gap(values) <= FLAT


def all_right(accuracies: Iterable[float]) -> bool:
    """Whether every answer has full accuracy."""
    return all(accuracy >= 1.0 - FLAT for accuracy in accuracies)


def tier(accuracies: Sequence[float]) -> str:
    """The best tier that a group reaches: "high" needs three right and three wrong, and a gap of 1.5 of 2."""
    right = sum(is_right(accuracy) for accuracy in accuracies)
    fewest = min(right, len(accuracies) - right)
    spread = gap(graded(accuracy) for accuracy in accuracies)
    return next(name for name, (least, count) in TIERS.items() if spread >= least and fewest >= count)
