"""Checks on exploration: does the policy still choose, and does it look at the query?"""

from __future__ import annotations

from statistics import median

from leverplus.doctor.findings import WARNING, Finding, Text, table
from leverplus.doctor.records import Record

TEXTS = table(
    Text(
        "entropy_collapsed",
        WARNING,
        "The policy became certain and no longer tries anything else.",
        "normalised entropy under 0.05, or another under a tenth of that of the start, at the end of the log",
        "Raise clip_high or the entropy bonus, halve the learning rate.",
        ("overfits", "flat_groups", "advantage_std_tiny", "reward_constant"),
    ),
    Text(
        "entropy_stuck",
        WARNING,
        "The policy is as undecided as at the start: no signal reached it.",
        "normalised entropy over 0.97 in every one of 3 epochs or more",
        "Mend the signal first: flat groups, selection before the baseline, tiny learning rate, heavy KL term.",
        ("difference_inside_noise",),
    ),
    Text(
        "hub_demonstrations",
        WARNING,
        "A few demonstrations are chosen for most queries: popularity instead of fit.",
        "share of the ten most chosen demonstrations (over 50 % of the picks of 100 items or more)",
        "Shuffle queries: at least 80 % of the picks must change; check that pools differ between queries.",
        ("more_shots_hurt",),
    ),
    Text(
        "query_ignored",
        WARNING,
        "One demonstration is chosen for most queries: the query is not used, or the pool is fixed.",
        "share of the most chosen demonstration (over 30 % of 100 items or more), or different demonstrations "
        "among the greedy "
        "picks of the probe queries (at most 4)",
        "Check that every query has its own pool and that the query reaches the score.",
        ("hub_demonstrations", "difference_inside_noise"),
    ),
    Text(
        "stop_collapse",
        WARNING,
        "The selector stops at the same place for every query (at once, after one, never): stopping has no measured "
        "alternative.",
        "share of the most common length of the lists of the arm that may stop (95 % or more), at its most shots; with "
        "select.stop = none_only only if that is none",
        "Measure every prefix, so that stopping competes with going on (reward.compare = all).",
        ("more_shots_hurt",),
    ),
)


FEW = 4
"""So few demonstrations for all probe queries (64 in our runs) are a fixed list, not a choice."""


def entropy_collapsed(record: Record) -> list[Finding]:
    """Certain, early or late."""
    for series in record.stages("grpo"):
        values = [value for _, value in series.values("entropy/norm")]
        low = 0.05
        if len(values) < 2:
            values = [value for _, value in series.values("entropy")]
            low = 0.1 * max(values[: max(1, len(values) // 5)], default=0.0)
        if len(values) < 2 or median(values[-max(1, len(values) // 5) :]) >= low or values[0] <= 0.0:
            continue
        when = next(place for place, value in enumerate(values) if value < low)
        half = "first" if when < max(1, len(values) // 2) else "second"
        title = (
            f"The entropy falls from {values[0]:.2g} to {values[-1]:.2g}, most of it in the {half} half of the stage"
        )
        fix = {"grpo.entropy_bonus": 0.01} if record.settings and not record.setting("grpo.entropy_bonus") else None
        evidence = {"entropy": values[-1], "first": values[0], "collapsed_at": when + 1, "of": len(values)}
        return TEXTS["entropy_collapsed"].found(title, evidence, fix=fix, about=[series.label])
    return []


def entropy_stuck(record: Record) -> list[Finding]:
    """Undecided to the end."""
    for series in record.stages("grpo"):
        values = [value for _, value in series.values("entropy/norm")]
        if len(values) >= 3 and min(values) > 0.97:
            title = f"The normalised entropy never leaves {min(values):.2f}"
            return TEXTS["entropy_stuck"].found(title, {"entropy": min(values), "epochs": len(values)})
    return []


def hub_demonstrations(record: Record) -> list[Finding]:
    """Ten demonstrations for everybody."""
    for picks in record.picks:
        if picks.arm == "learned" and picks.items >= 100 and picks.top10 > 0.5:
            title = f"Ten demonstrations make up {picks.top10:.0%} of the picks at {picks.shots} shots"
            evidence = {"top10": picks.top10, "distinct": picks.distinct, "items": picks.items}
            return TEXTS["hub_demonstrations"].found(title, evidence)
    return []


def query_ignored(record: Record) -> list[Finding]:
    """One demonstration for everybody."""
    for series in record.series:
        different = [value for _, value in series.values("picks/unique_demos")]
        if len(different) >= 2 and median(different[-3:]) <= FEW:
            count = median(different[-3:])
            title = f"Greedy picks show {count:g} different demonstrations over all probe queries of {series.stage}"
            return TEXTS["query_ignored"].found(title, {"unique_demos": count}, about=[series.label])
    for picks in record.picks:
        if picks.arm == "learned" and picks.items >= 100 and picks.top1 > 0.3:
            title = f"One demonstration makes up {picks.top1:.0%} of the picks at {picks.shots} shots"
            evidence = {"top1": picks.top1, "distinct": picks.distinct, "items": picks.items}
            return TEXTS["query_ignored"].found(title, evidence)
    return []


def stop_collapse(record: Record) -> list[Finding]:
    """Stops at the same place for everybody."""
    own = [picks for picks in record.picks if picks.arm == "learned_auto" and picks.items >= 50]
    picks = max(own, key=lambda found: found.shots, default=None)
    if picks is None or picks.shots < 2 or picks.same < 0.95:
        return []
    if record.setting("select.stop") == "none_only" and picks.length > 0.5 * picks.shots:
        return []  # it may only show none or all, and was taught both: all is what it should mostly show
    title = (
        f"The selector that may stop shows {picks.length:.2f} of {picks.shots} demonstrations, the same number for "
        f"{picks.same:.0%} of the queries"
    )
    fix = {"reward.compare": "all"} if record.setting("reward.compare") == "same_shots" else None
    evidence = {"length": picks.length, "most": picks.shots, "same": picks.same}
    return TEXTS["stop_collapse"].found(title, evidence, fix=fix)
