"""Checks on many shots: what one demonstration gains, do four keep?"""

from __future__ import annotations

import math
from collections.abc import Mapping

from leverplus.doctor.findings import Finding, read_texts
from leverplus.doctor.records import Record
from leverplus.evaluation.names import shots_name

TEXTS = read_texts("shots")


def more_shots_hurt(record: Record) -> list[Finding]:
    """Every added demonstration costs."""
    text = TEXTS["more_shots_hurt"]
    # name, accuracy by shots, that of the rival by shots, and the number of items
    pairs: list[tuple[str, Mapping[int, float], Mapping[int, float], int]] = []
    if record.report is not None:
        arms = record.report.get("arms", {})
        if "learned" in arms and "random" in arms:
            pairs.append(("learned", _shots(arms["learned"]), _shots(arms["random"]), int(record.report["n"])))
    if record.published is not None:
        for arm in record.published.arms:
            rivals = [other for other in record.published.arms if other.table == arm.table and other.baseline]
            if rivals and not arm.baseline and arm.n:
                pairs.append((arm.name, arm.accuracy, rivals[0].accuracy, arm.n))
    for name, own, rival, n in pairs:
        common = sorted(set(own) & set(rival) - {0})
        if len(common) < 2:
            continue
        first, last = common[0], common[-1]
        fall, other = own[first] - own[last], rival[first] - rival[last]
        # of a difference of paired 0/1 answers, at the most
        error = math.sqrt(_discordance(own[first], own[last]) / n)
        # a rival that falls as much says that the model cannot use more shots, whoever chooses them
        if fall > 2.0 * error and other < 0.5 * fall:
            title = text.say("seen", name=name, at_first=own[first], first=first, at_last=own[last], last=last)
            evidence = {"fall": fall, "fall_of_rival": other, "n": n, "standard_error": error}
            return text.found(title, evidence)
    return []


def _shots(arm: Mapping[str, Mapping[str, float]]) -> dict[int, float]:
    return {int(shots): value for shots, value in arm["shots"].items()}


def _discordance(left: float, right: float) -> float:
    """Most items that two arms can be expected to score differently: those of independent answers."""
    return left * (1.0 - right) + right * (1.0 - left)


def beyond_trained_length(record: Record) -> list[Finding]:
    """Asked for more than was taught."""
    text = TEXTS["beyond_trained_length"]
    trained = record.setting("score.shots")
    if trained is None or record.report is None:
        return []
    if record.setting("score.search") == "dense":
        trained = 1  # a dense table shows one demonstration per prompt, whatever score.shots says
    rows = [r for r in record.report.get("comparisons", ()) if r["arm"] == "learned" and r["baseline"] == "random"]
    within = [r for r in rows if 0 < r["shots"] <= trained and r["ci95"][0] > 0.0]
    # few items leave any gain inside the noise; lost is only what is also less than half of the gain within
    least = min((r["diff"] for r in within), default=0.0) / 2
    beyond = [r for r in rows if r["shots"] > trained and r["ci95"][0] <= 0.0 and r["diff"] < least]
    if not within or not beyond:
        return []
    worst = min(beyond, key=lambda r: r["diff"])
    low, high = (100 * end for end in worst["ci95"])
    own = {"points": 100 * worst["diff"], "low": low, "high": high}
    title = text.say("seen", trained=shots_name(trained), shots=worst["shots"], **own)
    evidence = {"trained": trained, "shots": worst["shots"], "diff": worst["diff"]}
    fix = {"score.shots": max(r["shots"] for r in beyond), "score.search": "beam"}
    return text.found(title, evidence, fix=fix)


def later_steps_uniform(record: Record) -> list[Finding]:
    """Only the first step decides."""
    text = TEXTS["later_steps_uniform"]
    pool = record.setting("pool.size")
    for series in record.series if pool else ():
        shares: dict[int, float] = {}
        for step in range(1, min(pool, 16)):
            entropy = series.last(f"entropy/step{step}")
            if entropy is not None:
                shares[step] = entropy / math.log(pool - step + 1)  # of a uniform choice among those not shown yet
        later = {step: share for step, share in shares.items() if step > 1}
        if not later or shares.get(1, 1.0) >= 0.8 or max(later.values()) <= 0.95:
            continue
        step = max(later, key=lambda place: later[place])
        title = text.say("seen", stage=series.stage, step=step, later=later[step], first=shares[1])
        evidence: dict[str, float | int | str] = {"place": step, "later": later[step], "first": shares[1]}
        kl = series.last(f"kl/step{step}")
        if kl is not None:
            evidence["kl_later"] = kl
        mixed = record.setting("score.search") == "mixed" and record.setting("score.prefixes") is False
        fix = {"score.prefixes": True} if mixed else None
        return text.found(title, evidence, fix=fix)
    return []


def shots_identical(record: Record) -> list[Finding]:
    """The same digits at several numbers of shots."""
    text = TEXTS["shots_identical"]
    found: list[tuple[str, Mapping[int, float]]] = []
    if record.report is not None and "learned" in record.report.get("arms", {}):
        found.append(("learned", _shots(record.report["arms"]["learned"])))
    if record.published is not None:
        found += [(arm.name, arm.accuracy) for arm in record.published.arms]
    for name, accuracy in found:
        tail = [accuracy[shots] for shots in sorted(accuracy) if shots >= 2]
        if len(tail) >= 3 and len(set(tail)) == 1:
            title = text.say("seen", name=name, value=tail[0], count=len(tail))
            return text.found(title, {"accuracy": tail[0], "shots": len(tail)})
    return []


def single_length_data(record: Record) -> list[Finding]:
    """One length only."""
    text = TEXTS["single_length_data"]
    counted = record.groups.lengths if record.groups else {}
    lengths = {length for length in counted if length > 0}
    if len(lengths) != 1 or lengths == {1}:
        return []
    (length,) = lengths
    return text.found(text.say("seen", length=length), {"length": length})
