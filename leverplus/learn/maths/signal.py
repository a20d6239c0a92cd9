"""How much a group of measured sequences can teach: the one definition of "right", "flat" and "tier".

Training, mining, the doctor and the report all use these, so that all of them call the same queries flat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

FLAT = 1e-6
"""Two rewards or accuracies that differ by no more than this are equal: float32 noise, not a preference."""

TIERS: Mapping[str, tuple[float, int]] = {
    "high": (1.5, 3),
    "medium": (1.0, 2),
    "low": (0.0, 0),
}
"""Tiers of the curriculum, best first, by what a group needs to reach each: the least gap in `graded` between its best
and its worst member, and the least number both of right and of wrong members. Gaps are on a scale from 0 to 2."""


def is_right(accuracy: float) -> bool:
    """Whether an answer counts as right: any accuracy above 0, the rule of the earlier code and of the score store."""
    return accuracy > 0.0


def graded(accuracy: float) -> float:
    """Right or wrong plus accuracy, from 0 to 2: the scale on which the tiers are set (reward `hard_plus_soft`)."""
    return float(is_right(accuracy)) + accuracy


def gap(values: Iterable[float]) -> float:
    """The largest value minus the smallest; 0 for no values."""
    known = list(values)
    if not known:
        return 0.0
    return max(known) - min(known)


def is_flat(values: Iterable[float]) -> bool:
    """Whether all values of a group are equal, so that no member is preferred to another."""
    return gap(values) <= FLAT


def all_right(accuracies: Iterable[float]) -> bool:
    """Whether every answer has full accuracy."""
    return all(accuracy >= 1.0 - FLAT for accuracy in accuracies)


def tier(accuracies: Sequence[float]) -> str:
    """The best tier that a group reaches: "high" needs three right and three wrong, and a gap of 1.5 of 2."""
    right = sum(is_right(accuracy) for accuracy in accuracies)
    wrong = len(accuracies) - right
    spread = gap(graded(accuracy) for accuracy in accuracies)
    for name, (least_gap, least_count) in TIERS.items():
        if spread >= least_gap and min(right, wrong) >= least_count:
            return name
    raise AssertionError("the last tier has no conditions")
