"""Checks that an eval.json has the form this version shows; the page says so in a sentence where it has not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

NUMBERS = ("diff", "p_adjusted", "mde80")
COUNTS = ("shots", "n", "helped", "harmed")


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)  # a bool is an int


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_results(value: dict[str, Any]) -> bool:
    """Whether everything that is shown of an eval.json is there and of the right type; optional parts may be absent."""
    rows: Any = value.get("comparisons")
    arms: Any = value.get("arms")
    if not is_count(value.get("n")) or not isinstance(rows, list) or not _is_object_of(arms, _is_arm):
        return False
    for row in rows:
        if not isinstance(row, dict) or not _is_comparison(row):
            return False
        if _is_headline_candidate(row):
            baseline = arms.get(row["baseline"], {"shots": {}})
            if str(row["shots"]) not in baseline["shots"]:
                return False
    for key in ("model_calls", "eval_calls"):
        if value.get(key) is not None and not is_count(value[key]):
            return False
    return _is_object_of(value.get("gap_closed", {}), _is_gap) and _is_object_of(value.get("regret", {}), _is_regret)


def _is_gap(value: Any) -> bool:
    """{"1": number, ..., "mean": number}"""
    return _is_object_of(value, is_number, lambda key: key == "mean" or _is_shots(key))


def _is_regret(value: Any) -> bool:
    """{"1": {kind: number, ...}, ...}"""
    return _is_object_of(value, lambda part: _is_object_of(part, is_number), _is_shots)


def _is_shots(key: str) -> bool:
    """Whether a key of a JSON object is a number of shots."""
    return key.isascii() and key.isdigit()


def _is_object_of(value: Any, kind: Callable[[Any], bool], named: Callable[[str], bool] = lambda _: True) -> bool:
    """Whether a value is a JSON object whose entries are of a kind and named as they should be."""
    return isinstance(value, dict) and all(named(key) and kind(entry) for key, entry in value.items())


def _is_headline_candidate(row: dict[str, Any]) -> bool:
    """Whether the verdict may speak of a comparison, and so needs the accuracy of its baseline."""
    return str(row["arm"]) == "learned" and str(row["baseline"]).startswith("nearest")


def _is_arm(value: Any) -> bool:
    """{"shots": {"1": number, ...}, "mean": number or null}"""
    if not isinstance(value, dict):
        return False
    mean = value.get("mean")
    if mean is not None and not is_number(mean):
        return False
    return _is_object_of(value.get("shots"), is_number, _is_shots)


def _is_comparison(row: dict[str, Any]) -> bool:
    ends = row.get("ci95")
    if not isinstance(ends, list) or len(ends) != 2 or not all(is_number(end) for end in ends):
        return False
    return (
        all(isinstance(row.get(key), str) for key in ("arm", "baseline"))
        and all(is_number(row.get(key)) for key in NUMBERS)
        and all(is_count(row.get(key)) for key in COUNTS)
    )
