"""Whether results are of the form this version shows: those of another are a sentence, never a stack trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

NUMBERS = ("diff", "p_adjusted", "mde80")
COUNTS = ("shots", "n", "helped", "harmed")


def is_number(value: Any) -> TypeGuard[int | float]:
    """A finite number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_results(value: dict[str, Any]) -> bool:
    """Whether all that is shown of an eval.json is there and of its kind; what may be left out may be absent."""
    rows: Any = value.get("comparisons")
    arms: Any = value.get("arms")
    if not is_count(value.get("n")) or not isinstance(rows, list) or not _holds(arms, _is_arm):
        return False
    if not all(isinstance(row, dict) and _is_comparison(row) for row in rows):
        return False
    if any(str(row["shots"]) not in arms.get(row["baseline"], {"shots": {}})["shots"] for row in rows if _leads(row)):
        return False
    calls = all(value.get(key) is None or is_count(value[key]) for key in ("model_calls", "eval_calls"))
    gap = _holds(
        value.get("gap_closed", {}), lambda own: _holds(own, is_number, lambda key: key == "mean" or _shots(key))
    )
    split = _holds(value.get("regret", {}), lambda own: _holds(own, lambda part: _holds(part, is_number), _shots))
    return calls and gap and split


def _shots(key: str) -> bool:
    return key.isascii() and key.isdigit()


def _holds(value: Any, kind: Callable[[Any], bool], named: Callable[[str], bool] = lambda _: True) -> bool:
    """Whether a value is a JSON object whose entries are of a kind and named as they should be."""
    return isinstance(value, dict) and all(named(key) and kind(entry) for key, entry in value.items())


def _leads(row: dict[str, Any]) -> bool:
    """Whether the verdict may speak of a comparison, and so needs the accuracy of its baseline."""
    return str(row["arm"]) == "learned" and str(row["baseline"]).startswith("nearest")


def _is_arm(value: Any) -> bool:
    mean = value.get("mean") if isinstance(value, dict) else None
    return (
        isinstance(value, dict) and _holds(value.get("shots"), is_number, _shots) and (mean is None or is_number(mean))
    )


def _is_comparison(row: dict[str, Any]) -> bool:
    ends = row.get("ci95")
    return (
        all(isinstance(row.get(key), str) for key in ("arm", "baseline"))
        and all(is_number(row.get(key)) for key in NUMBERS)
        and all(is_count(row.get(key)) for key in COUNTS)
        and isinstance(ends, list)
        and len(ends) == 2
        and all(map(is_number, ends))
    )
