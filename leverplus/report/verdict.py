"""What a result says, in two sentences that claim no more than the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leverplus.report.names import arm_name, shots_name
from leverplus.stats.comparison import LEVEL


def within_noise(row: Mapping[str, Any]) -> bool:
    """Whether a comparison of eval.json supports no claim: not significant after correction, or zero in its interval.

    The same rule as `stats.Comparison.within_noise`, for records read back from a file.
    """
    low, high = row["ci95"]
    return bool(row["p_adjusted"] >= LEVEL or low <= 0.0 <= high)


def headline(report: Mapping[str, Any], shots: int | None = None) -> Mapping[str, Any] | None:
    """The comparison the verdict speaks of: learned against the best nearest arm; None where there is none.

    `shots` defaults to the fewest that were compared.
    """
    rows = [r for r in report["comparisons"] if r["arm"] == "learned" and r["baseline"].startswith("nearest")]
    wanted = min((r["shots"] for r in rows), default=0) if shots is None else shots
    rows = [r for r in rows if r["shots"] == wanted]
    return max(rows, key=lambda r: float(report["arms"][r["baseline"]]["shots"][str(wanted)]), default=None)


def verdict(report: Mapping[str, Any], shots: int | None = None) -> str:
    """The learned selector against the best nearest arm, at a number of shots (default: the fewest compared)."""
    row = headline(report, shots)
    if row is None:
        return "No learned selector was compared with a nearest arm."
    low, high = (100 * bound for bound in row["ci95"])
    noise = within_noise(row)
    claim = "cannot be told from" if noise else "is above" if row["diff"] > 0 else "is below"
    rival = f"{arm_name(row['baseline'])}, the best nearest arm"
    small = (
        f"; {row['n']} items miss a true difference below {100 * row['mde80']:.1f} points more than one time in five"
    )
    return (
        f"At {shots_name(row['shots'])} the learned selector {claim} {rival}: "
        f"{100 * row['diff']:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}, n = {row['n']}, "
        f"p = {row['p_adjusted']:.2g} after correction. "
        f"It helped {row['helped']} items and harmed {row['harmed']}{small if noise else ''}."
    )
