"""Says in a few sentences what a result shows of the learned selector, and claims no more than the numbers do."""

from __future__ import annotations

from collections.abc import Sequence

from leverplus.evaluate.names import MEAN_SHOTS, arm_name, facts_of, shots_name
from leverplus.evaluate.record import ComparisonRow, EvaluationRecord

NOTHING = "No learned selector was compared with other ways to choose."
CORRECTED = "(Differences are judged after correction for all comparisons; the intervals are not corrected.)"
CLAIMS = {
    "above": "is above it",
    "below": "is below it",
    "within noise": "cannot be told from it",
}


def _of_learned(record: EvaluationRecord) -> list[ComparisonRow]:
    return [row for row in record.comparisons if row.arm == "learned"]


def strongest(record: EvaluationRecord, *, prompts_only: bool = False) -> str | None:
    """The rival of the learned selector with the highest mean; with `prompts_only` of prompts without training."""
    known = []
    for row in _of_learned(record):
        arm = row.baseline
        facts = facts_of(row.baseline)
        fits = facts.asks_model and not facts.trained
        if arm in record.arms and (fits or not prompts_only):
            known.append(arm)
    return max(known, key=lambda arm: record.arms[arm].accuracy, default=None)


def headline(record: EvaluationRecord | None) -> ComparisonRow | None:
    """The comparison that pictures show: learned against the strongest prompt without training, at the fewest shots."""
    if record is None:
        return None
    rival = strongest(record, prompts_only=True)
    rows = [row for row in _of_learned(record) if row.baseline == rival]
    return min(rows, key=lambda row: row.shots, default=None)


def verdict(record: EvaluationRecord) -> str:
    """The learned selector against its strongest rival, and the strongest that asks the model, at every shot."""
    overall = strongest(record)
    prompt = strongest(record, prompts_only=True)
    own = record.arms.get("learned")
    rows = _of_learned(record)
    if overall is None or own is None:
        return NOTHING
    known = {row.shots for row in rows}
    if own.mean is not None:
        known = known & {*MEAN_SHOTS} or known
    shots = sorted(known)
    where = f"At {shots_name(shots[0])}"
    if len(shots) > 1:
        *first, last = map(str, shots)
        where = f"On average over {', '.join(first)} and {last} shots"
    lines = [
        f"{where} the learned selector has {_percent(own.accuracy)} on {rows[0].n:,} items."
    ]
    rivals = {overall: "Its strongest rival"}
    if prompt is not None:
        rivals.setdefault(prompt, "The strongest prompt without training")
    puzzling = False
    for rival, kind in rivals.items():
        name = arm_name(rival)
        if not facts_of(rival).asks_model:
            name += " (no model)"
        against = [row for row in rows if row.baseline == rival]
        for row in against:
            low, high = row.ci95
            puzzling |= row.within_noise and not low <= 0.0 <= high
        lines.append(
            f"{kind}, {name}, has {_percent(record.arms[rival].accuracy)}: the learned selector {_claims(against)}."
        )
    if puzzling:
        lines.append(CORRECTED)
    return " ".join(lines)


def _claims(rows: Sequence[ComparisonRow]) -> str:
    """What may be said of the comparisons with one rival; shots of which the same is said stand together."""
    by_claim: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: row.shots):
        low, high = row.ci95
        points = f"{100 * row.diff:+.1f} points, {100 * low:+.1f} to {100 * high:+.1f}"
        said = by_claim.setdefault(CLAIMS[row.verdict], [])
        said.append(f"{shots_name(row.shots)} ({points})")
    parts = [f"{claim} at {', '.join(shots)}" for claim, shots in by_claim.items()]
    return " and ".join(parts)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
