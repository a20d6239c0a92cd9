"""Checks on many shots: what one demonstration gains, do four keep?"""

from __future__ import annotations

import math
from collections.abc import Mapping

from leverplus.doctor.findings import INFO, WARNING, Finding, Text, table
from leverplus.doctor.records import Record

TEXTS = table(
    Text(
        "more_shots_hurt",
        WARNING,
        "Accuracy falls with every demonstration the selector adds, though it does not for random ones: it was trained "
        "on one length, or it repeats itself.",
        "accuracy at 1 shot against the most shots (two standard errors), beside the random or baseline arm",
        "Measure and reward every prefix; train on all lengths; let it stop.",
    ),
    Text(
        "beyond_trained_length",
        WARNING,
        "The selector is asked for more demonstrations than it was trained on, and is no better than chance there.",
        "eval.shots above score.shots, with an interval against random that excludes 0 within and includes 0 beyond",
        "Train on the lengths that are used (score.shots), or let it stop.",
        ("more_shots_hurt",),
    ),
    Text(
        "later_steps_uniform",
        WARNING,
        "The first choice was learnt and the later ones were not: only whole lists are rewarded, or only single "
        "demonstrations were measured.",
        "entropy of a later step over 95 % of that of a uniform choice while the first is under 80 %",
        "Measure and reward every prefix (score.prefixes, beam search), or use listwise, which compares next picks.",
        ("more_shots_hurt", "beyond_trained_length"),
    ),
    Text(
        "shots_identical",
        WARNING,
        "Accuracy is the same to the last digit from some number of shots on: the longer lists were never made.",
        "equal accuracies at 3 or more numbers of shots",
        "Check the bound of the decoder's loop and the size of the pool.",
    ),
    Text(
        "single_length_data",
        INFO,
        "All sequences have one length, so that nothing is known about other numbers of shots.",
        "lengths of the members",
        "Measure prefixes too: every list of two holds a list of one.",
        ("beyond_trained_length", "more_shots_hurt"),
    ),
)


def more_shots_hurt(record: Record) -> list[Finding]:
    """Every added demonstration costs."""
    pairs: list[tuple[str, Mapping[int, float], Mapping[int, float], int]] = []
    if record.report is not None:
        arms = record.report.get("arms", {})
        if "learned" in arms and "random" in arms:
            pairs.append(("learned", _shots(arms["learned"]), _shots(arms["random"]), int(record.report["n"])))
    if record.published is not None:
        for arm in record.published.arms:
            rivals = [a for a in record.published.arms if a.table == arm.table and a.baseline]
            if rivals and not arm.baseline and arm.n:
                pairs.append((arm.name, arm.accuracy, rivals[0].accuracy, arm.n))
    for name, own, rival, n in pairs:
        common = sorted(set(own) & set(rival) - {0})
        if len(common) < 2:
            continue
        first, last = common[0], common[-1]
        fall, other = own[first] - own[last], rival[first] - rival[last]
        error = math.sqrt(_discordance(own[first], own[last]) / n)
        if fall > 2.0 * error and other < 0.5 * fall:
            title = f"{name}: {own[first]:.1%} at {first} shot, {own[last]:.1%} at {last}"
            evidence = {"fall": fall, "fall_of_rival": other, "n": n, "standard_error": error}
            return TEXTS["more_shots_hurt"].found(title, evidence)
    return []


def _shots(arm: Mapping[str, Mapping[str, float]]) -> dict[int, float]:
    return {int(shots): value for shots, value in arm["shots"].items()}


def _discordance(left: float, right: float) -> float:
    """Most items that two arms can be expected to score differently: those of independent answers."""
    return left * (1.0 - right) + right * (1.0 - left)


def beyond_trained_length(record: Record) -> list[Finding]:
    """Asked for more than was taught."""
    trained = record.setting("score.shots")
    if trained is None or record.report is None:
        return []
    if record.setting("score.search") == "dense":
        trained = 1
    rows = [r for r in record.report.get("comparisons", ()) if r["arm"] == "learned" and r["baseline"] == "random"]
    within = [r for r in rows if 0 < r["shots"] <= trained and r["ci95"][0] > 0.0]
    beyond = [r for r in rows if r["shots"] > trained and r["ci95"][0] <= 0.0]
    if not within or not beyond:
        return []
    worst = min(beyond, key=lambda r: r["diff"])
    title = f"Trained on {trained} shots; at {worst['shots']} it is {100 * worst['diff']:+.1f} points from random"
    evidence = {"trained": trained, "shots": worst["shots"], "diff": worst["diff"]}
    fix = {"score.shots": max(r["shots"] for r in beyond), "score.search": "beam"}
    return TEXTS["beyond_trained_length"].found(title, evidence, fix=fix)


def later_steps_uniform(record: Record) -> list[Finding]:
    """Only the first step decides."""
    pool = record.setting("pool.size")
    for series in record.series if pool else ():
        shares: dict[int, float] = {}
        for step in range(1, min(pool, 16)):
            entropy = series.last(f"entropy/step{step}")
            if entropy is not None:
                shares[step] = entropy / math.log(pool - step + 1)
        later = {step: share for step, share in shares.items() if step > 1}
        if not later or shares.get(1, 1.0) >= 0.8 or max(later.values()) <= 0.95:
            continue
        step = max(later, key=lambda place: later[place])
        title = (
            f"{series.stage}: the choice at place {step} is {later[step]:.0%} as undecided as a uniform one, "
            f"the first {shares[1]:.0%}"
        )
        evidence: dict[str, float | int | str] = {"place": step, "later": later[step], "first": shares[1]}
        kl = series.last(f"kl/step{step}")
        if kl is not None:
            evidence["kl_later"] = kl
        mixed = record.setting("score.search") == "mixed" and record.setting("score.prefixes") is False
        fix = {"score.prefixes": True} if mixed else None
        return TEXTS["later_steps_uniform"].found(title, evidence, fix=fix)
    return []


def shots_identical(record: Record) -> list[Finding]:
    """The same digits at several numbers of shots."""
    found: list[tuple[str, Mapping[int, float]]] = []
    if record.report is not None and "learned" in record.report.get("arms", {}):
        found.append(("learned", _shots(record.report["arms"]["learned"])))
    if record.published is not None:
        found += [(arm.name, arm.accuracy) for arm in record.published.arms]
    for name, accuracy in found:
        tail = [accuracy[shots] for shots in sorted(accuracy) if shots >= 2]
        if len(tail) >= 3 and len(set(tail)) == 1:
            title = f"{name}: {tail[0]:.2%} at {len(tail)} numbers of shots"
            return TEXTS["shots_identical"].found(title, {"accuracy": tail[0], "shots": len(tail)})
    return []


def single_length_data(record: Record) -> list[Finding]:
    """One length only."""
    lengths = {length for length in (record.groups.lengths if record.groups else {}) if length > 0}
    if len(lengths) != 1 or lengths == {1}:
        return []
    (length,) = lengths
    return TEXTS["single_length_data"].found(f"All sequences have {length} demonstrations", {"length": length})
