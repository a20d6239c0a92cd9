"""Checks on exploration: does the policy still choose, and does it look at the query?"""

from __future__ import annotations

from statistics import median

from leverplus.doctor.findings import Finding, read_texts
from leverplus.doctor.records import Record
from leverplus.evaluation.names import shots_name

TEXTS = read_texts("exploration")


TRIED = 10
"""With fewer queries for each demonstration, effects that are hidden by noise say nothing about the corpus."""
FEW = 4
"""So few demonstrations for all probe queries (64 in our runs) are a fixed list, not a choice."""


def entropy_collapsed(record: Record) -> list[Finding]:
    """Certain, early or late."""
    text = TEXTS["entropy_collapsed"]
    for series in record.stages("grpo"):
        values = [value for _, value in series.values("entropy/norm")]
        low = 0.05  # of the entropy of a uniform choice
        if len(values) < 2:
            values = [value for _, value in series.values("entropy")]  # in nats: compared with its own beginning
            low = 0.1 * max(values[: max(1, len(values) // 5)], default=0.0)
        if len(values) < 2 or values[0] <= 0.0:
            continue
        fifth = max(1, len(values) // 5)
        if median(values[-fifth:]) >= low:
            continue
        when = next(place for place, value in enumerate(values) if value < low)
        half = text.say("half_first") if when < max(1, len(values) // 2) else text.say("half_second")
        title = text.say("seen", first=values[0], last=values[-1], half=half)
        fix = {"grpo.entropy_bonus": 0.01} if record.settings and not record.setting("grpo.entropy_bonus") else None
        evidence = {"entropy": values[-1], "first": values[0], "collapsed_at": when + 1, "of": len(values)}
        return text.found(title, evidence, fix=fix, about=[series.label])
    return []


def entropy_stuck(record: Record) -> list[Finding]:
    """Undecided to the end."""
    text = TEXTS["entropy_stuck"]
    for series in record.stages("grpo"):
        values = [value for _, value in series.values("entropy/norm")]
        if len(values) >= 3 and min(values) > 0.97:  # 1 is a uniform choice; any learnt preference is below this
            title = text.say("seen", lowest=min(values))
            return text.found(title, {"entropy": min(values), "epochs": len(values)})
    return []


def hub_demonstrations(record: Record) -> list[Finding]:
    """Ten demonstrations for everybody."""
    text = TEXTS["hub_demonstrations"]
    for picks in record.picks:
        if picks.arm == "learned" and picks.items >= 100 and picks.top10 > 0.5:
            title = text.say("seen", top10=picks.top10, shots=shots_name(picks.shots))
            evidence = {"top10": picks.top10, "distinct": picks.distinct, "items": picks.items}
            return text.found(title, evidence)
    return []


def query_ignored(record: Record) -> list[Finding]:
    """One demonstration for everybody."""
    text = TEXTS["query_ignored"]
    for series in record.series:
        different = [value for _, value in series.values("picks/unique_demos")]
        count = median(different[-3:]) if len(different) >= 2 else None
        if count is not None and count <= FEW:
            title = text.say("seen", count=count, stage=series.stage)
            return text.found(title, {"unique_demos": count}, about=[series.label])
    for picks in record.picks:
        if picks.arm == "learned" and picks.items >= 100 and picks.top1 > 0.3:
            title = text.say("seen_top", top1=picks.top1, shots=shots_name(picks.shots))
            evidence = {"top1": picks.top1, "distinct": picks.distinct, "items": picks.items}
            return text.found(title, evidence)
    return []


def stop_collapse(record: Record) -> list[Finding]:
    """Stops at the same place for everybody."""
    text = TEXTS["stop_collapse"]
    own = [picks for picks in record.picks if picks.arm == "learned_auto" and picks.items >= 50]
    picks = max(own, key=lambda found: found.shots, default=None)
    if picks is None or picks.shots < 2 or picks.same < 0.95:
        return []
    if record.setting("select.stop") == "none_only" and picks.length > 0.5 * picks.shots:
        return []  # it may only show none or all, and was taught both: all is what it should mostly show
    title = text.say("seen", length=picks.length, shots=picks.shots, same=picks.same)
    fix = {"reward.compare": "all"} if record.setting("reward.compare") == "same_shots" else None
    evidence = {"length": picks.length, "most": picks.shots, "same": picks.same}
    return text.found(title, evidence, fix=fix)


def effects_are_noise(record: Record) -> list[Finding]:
    """Demonstrations that were tried often and do not differ."""
    text, own = TEXTS["effects_are_noise"], record.effects
    if own is None or not own["is_noise"] or own["answers"] < TRIED * own["demonstrations"]:
        return []
    title = text.say("seen", count=own["demonstrations"], tried=own["answers"] / own["demonstrations"])
    return text.found(title, {name: own[name] for name in ("answers", "effect_sd", "reliability")})
