"""What a result says, in two sentences that claim no more than the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leverplus.cli.console import ARM_NAMES


def verdict(report: Mapping[str, Any], shots: int = 1) -> str:
    """The learned selector against the best training-free arm at a number of shots."""
    rivals = {
        arm: values["shots"][str(shots)]
        for arm, values in report["arms"].items()
        if arm.startswith("nearest") and str(shots) in values["shots"]
    }
    if not rivals or not report["comparisons"]:
        return "No learned selector was compared."
    best = max(rivals, key=lambda arm: rivals[arm])
    row = next(r for r in report["comparisons"] if r["baseline"] == best and r["shots"] == shots)
    low, high = (100 * bound for bound in row["ci95"])
    clear = row["p_adjusted"] < 0.05 and not row["ci95"][0] <= 0 <= row["ci95"][1]
    side = "above" if row["diff"] > 0 else "below"
    claim = f"is {side}" if clear else "cannot be told from"
    return (
        f"At {shots} shot the learned selector {claim} {ARM_NAMES[best]}: {100 * row['diff']:+.1f} points, "
        f"95 % interval {low:+.1f} to {high:+.1f}, n = {row['n']}, p = {row['p_adjusted']:.2g} after correction. "
        f"It helped {row['helped']} items and harmed {row['harmed']}."
    )
