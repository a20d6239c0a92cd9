"""Says in a few sentences what a result shows, and claims no more than the numbers do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leverplus.evaluation.names import MEAN_SHOTS, MODEL_FREE, TRAINED, arm_name, shots_name
from leverplus.stats.comparison import LEVEL

CORRECTED = "(Differences are judged after correction for all comparisons; the intervals are not corrected.)"


def within_noise(row: Mapping[str, Any]) -> bool:
    """Whether a comparison of eval.json supports no claim: not significant after correction, or zero in its interval.

    The same rule as `stats.Comparison.within_noise`, for records read back from a file.
    """
    low, high = row["ci95"]
    return bool(row["p_adjusted"] >= LEVEL or low <= 0.0 <= high)


def strongest(report: Mapping[str, Any], *, prompts_only: bool = False) -> str | None:
    """The rival of the learned selector with the highest mean; with `prompts_only` of prompts without training."""
    rivals = dict.fromkeys(row["baseline"] for row in report["comparisons"] if row["arm"] == "learned")
    known = [arm for arm in rivals if arm in report["arms"]]
    if prompts_only:
        known = [arm for arm in known if arm not in MODEL_FREE and not arm.startswith(TRAINED)]
    return max(known, key=lambda arm: mean_accuracy(report["arms"][arm]), default=None)


def mean_accuracy(arm: Mapping[str, Any]) -> float:
    """An arm's mean accuracy over 1 to 4 shots, or over the shots it has where it lacks some of these."""
    if arm.get("mean") is not None:
        return float(arm["mean"])
    values = [float(value) for value in arm["shots"].values()]
    return sum(values) / max(len(values), 1)


def headline(report: Mapping[str, Any], shots: int | None = None) -> Mapping[str, Any] | None:
    """The comparison that pictures show: learned against the strongest prompt without training; None without one.

    `shots` defaults to the fewest that were compared.
    """
    rival = strongest(report, prompts_only=True)
    rows: list[Mapping[str, Any]] = []
    for row in report["comparisons"]:
        if row["arm"] == "learned" and row["baseline"] == rival:
            rows.append(row)
    if shots is None:
        shots = min((row["shots"] for row in rows), default=0)
    for row in rows:
        if row["shots"] == shots:
            return row
    return None


def verdict(report: Mapping[str, Any]) -> str:
    """The learned selector against its strongest rival, and the strongest that asks the model, at every shot."""
    overall, prompt = strongest(report), strongest(report, prompts_only=True)
    if overall is None:
        return "No learned selector was compared with other ways to choose."
    arms = report["arms"]
    rows = [row for row in report["comparisons"] if row["arm"] == "learned"]
    compared = sorted({row["shots"] for row in rows})
    shots = compared
    if arms.get("learned", {}).get("mean") is not None:
        shots = [n for n in compared if n in MEAN_SHOTS] or compared
    where = f"On average over {_listed(shots)} shots" if len(shots) > 1 else f"At {shots_name(shots[0])}"
    own = "it is compared"
    if "learned" in arms:
        own = f"the learned selector has {_percent(mean_accuracy(arms['learned']))}"
    lines = [f"{where} {own} on {rows[0]['n']:,} items."]
    rivals = [overall]
    if prompt is not None and prompt != overall:
        rivals.append(prompt)
    for rival in rivals:
        kind = "Its strongest rival" if rival == overall else "The strongest prompt without training"
        without_model = " (no model)" if rival in MODEL_FREE else ""
        name = f"{kind}, {arm_name(rival)}{without_model},"
        said = _by_claim([row for row in rows if row["baseline"] == rival])
        lines.append(f"{name} has {_percent(mean_accuracy(arms[rival]))}: the learned selector {said}.")
    if any(
        within_noise(row) and not row["ci95"][0] <= 0.0 <= row["ci95"][1] for row in rows if row["baseline"] in rivals
    ):
        lines.append(CORRECTED)
    return " ".join(lines)


def _by_claim(rows: Sequence[Mapping[str, Any]]) -> str:
    """What may be said of the comparisons with one rival; shots of which the same is said stand together."""
    by_claim: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: int(row["shots"])):
        claim = "is above it" if row["diff"] > 0 else "is below it"
        if within_noise(row):
            claim = "cannot be told from it"
        by_claim.setdefault(claim, []).append(f"{shots_name(row['shots'])} ({_difference(row)})")
    return " and ".join(f"{claim} at {', '.join(shots)}" for claim, shots in by_claim.items())


def _difference(row: Mapping[str, Any]) -> str:
    low, high = (100 * bound for bound in row["ci95"])
    return f"{100 * row['diff']:+.1f} points, {low:+.1f} to {high:+.1f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:-1])) + f" and {values[-1]}"


def advice(report: Mapping[str, Any]) -> str:
    """Which arm to use, as the evaluation advises; "" where it did not."""
    found = report.get("advice")
    return str(found.get("why", "")) if isinstance(found, Mapping) else ""


def notes(report: Mapping[str, Any]) -> list[str]:
    """What could not be computed in the evaluation."""
    found = report.get("notes")
    return [str(note) for note in found] if isinstance(found, list) else []
