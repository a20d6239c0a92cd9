"""Checks on evaluations: what the printed numbers can show, and what they cannot."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from leverplus.doctor.findings import ERROR, WARNING, Finding, read_texts
from leverplus.doctor.records import Arm, Published, Record
from leverplus.doctor.words import phrase, shots_in_words
from leverplus.evaluation.names import arm_name, shots_name

TEXTS = read_texts("evaluation")
_ANCHORS = re.compile(r"random|zero|oracle|nearest|随机|零样本|最近|上限", re.IGNORECASE)


def comparison_without_n(record: Record) -> list[Finding]:
    """Nobody says on how many items."""
    text = TEXTS["comparison_without_n"]
    published = record.published
    if published is None or not published.unsized:
        return []
    printed = sum(not arm.baseline for arm in published.arms) + len(published.gains)
    some = "" if published.unsized == printed else text.say("of_printed", printed=printed)
    title = text.say("seen", unsized=published.unsized, some=some)
    return text.found(title, {"comparisons": published.unsized, "printed": printed})


def accuracy_falls_with_n(record: Record) -> list[Finding]:
    """The more items, the lower."""
    text = TEXTS["accuracy_falls_with_n"]
    if record.published is None:
        return []
    steps: list[tuple[int, int, int, float, float]] = []  # shots, smaller n, larger n, accuracy at each
    rises = 0
    shots = sorted({s for arm in record.published.arms for s in arm.accuracy})
    for shot in shots:
        by_n: dict[int, list[float]] = {}
        for arm in record.published.arms:
            if arm.n is not None and shot in arm.accuracy:
                by_n.setdefault(arm.n, []).append(arm.accuracy[shot])
        sizes = sorted(by_n)
        for small, large in pairwise(sizes):
            low, high = min(by_n[small]), max(by_n[large])  # even the worst at the smaller n against the best
            if low > high:
                steps.append((shot, small, large, low, high))
            else:
                rises += 1
    if len(steps) < 2 or rises:
        return []
    shot, small, large, low, high = max(steps, key=lambda step: step[3] - step[4])
    places = len({step[0] for step in steps})
    title = text.say("seen", places=places, low=low, small=small, high=high, large=large, shots=shots_in_words(shot))
    evidence = {"steps": len(steps), "small_n": small, "large_n": large, "at_small": low, "at_large": high}
    return text.found(title, evidence)


@dataclass(frozen=True)
class _Printed:
    """A printed difference and its p-values over the assumed discordances."""

    name: str
    shots: str
    n: int
    diff: float
    p_values: tuple[float, ...]


def difference_inside_noise(record: Record) -> list[Finding]:
    """Nothing is shown, or nothing is settled."""
    text = TEXTS["difference_inside_noise"]
    if record.report is not None:
        return _measured(record)
    if record.published is None:
        return []
    means = _differences(record.published, means=True)
    singles = _differences(record.published, means=False)
    if not singles:
        return []
    settled = _settled(singles)
    unsettled_means = [row for row, stands in zip(means, _settled(means), strict=True) if not stands]
    if all(settled) or not unsettled_means:
        return []
    n = min(row.n for row in singles)
    best = sorted(unsettled_means, key=lambda row: -row.diff)[:3]
    count = text.say("settles_some", count=sum(settled)) if any(settled) else text.say("settles_none")
    each = []
    for row in best:
        judged = text.say("within_noise") if min(row.p_values) > 0.05 else text.say("may_be_noise")
        each.append(text.say("each_mean", name=row.name, points=100 * row.diff, judged=judged))
    title = text.say("seen", n=n, count=count, comparisons=len(singles)) + ", ".join(each)
    evidence: dict[str, float | int | str] = {
        "n": n,
        "comparisons": len(singles),
        "settled": sum(settled),
        "largest_diff": max((row.diff for row in singles), key=abs),
        "mde80_at_10_percent": _mde(n, 0.10),
        "mde80_at_30_percent": _mde(n, 0.30),
    }
    evidence |= {f"mean_diff {row.name}": row.diff for row in best}
    return text.found(title, evidence)


def settled_differences(record: Record) -> list[str]:
    """What printed accuracies do show: differences that stand at every assumed discordance, after correction."""
    rows = [] if record.published is None else _differences(record.published, means=False)
    found = []
    for row, stands in zip(rows, _settled(rows), strict=True):
        if stands:
            shots = shots_in_words(row.shots)
            found.append(phrase("settled", name=row.name, points=100 * row.diff, shots=shots, n=row.n))
    return found


def count_differences(record: Record) -> int:
    """How many printed accuracies stand beside a baseline and on a number of items, so that they can be judged."""
    return 0 if record.published is None else len(_differences(record.published, means=False))


def _measured(record: Record) -> list[Finding]:
    text = TEXTS["difference_inside_noise"]
    rows = [r for r in (record.report or {}).get("comparisons", ()) if r["baseline"] == "random" and r["shots"] > 0]
    rows = [r for r in rows if r["arm"] == "learned"]
    if not rows or any(not r["ci95"][0] <= 0.0 <= r["ci95"][1] for r in rows):
        return []
    widest = max(rows, key=lambda r: abs(r["diff"]))
    title = text.say("seen_measured", n=rows[0]["n"])
    evidence = {"n": rows[0]["n"], "largest_diff": widest["diff"], "mde80": widest["mde80"]}
    return text.found(title, evidence)


def _differences(published: Published, *, means: bool) -> list[_Printed]:
    """Every arm against the baseline of its table, by shots or as a mean, each once."""
    found: dict[tuple[object, ...], _Printed] = {}
    for arm in published.arms:
        rivals = [other for other in published.arms if other.table == arm.table and other.baseline]
        if arm.baseline or not rivals or arm.n is None:
            continue
        shared = sorted(set(arm.accuracy) & set(rivals[0].accuracy))
        if means:
            own = sum(arm.accuracy[s] for s in shared) / len(shared) if shared else 0.0
            other = sum(rivals[0].accuracy[s] for s in shared) / len(shared) if shared else 0.0
            values = [("mean", own, other)] if len(shared) > 1 else []
        else:
            values = [(str(s), arm.accuracy[s], rivals[0].accuracy[s]) for s in shared]
        for shots, own, other in values:
            row = _Printed(short_name(arm.name), shots, arm.n, own - other, _p_values(arm.n, own, other))
            # the same row printed in two tables is one difference, whatever it is called
            key = (shots, *sorted(arm.accuracy.items()), *sorted(rivals[0].accuracy.items()))
            found.setdefault(key, row)
    return list(found.values())


def _p_values(n: int, left: float, right: float) -> tuple[float, ...]:
    """p-values of the exact paired test at discordances from 5 % to that of independent answers.

    A text prints two accuracies and not on which items they differ. The test needs that share, the discordance d: of
    n d discordant items n (d + diff) / 2 favour the one side, the others the other.
    """
    from leverplus.stats.significance import mcnemar_test

    diff = left - right
    independent = left * (1.0 - right) + right * (1.0 - left)
    assumed = [share for share in (0.05, 0.1, 0.2, 0.3, 0.4) if abs(diff) < share < independent]
    found = []
    for share in (*assumed, independent):
        wins, losses = round(n * (share + diff) / 2), round(n * (share - diff) / 2)
        found.append(mcnemar_test(wins, losses))
    return tuple(found)


def _settled(rows: Sequence[_Printed]) -> list[bool]:
    """Which differences stand at every assumed discordance, after Holm's correction for all of them."""
    from leverplus.stats.significance import holm

    if not rows:
        return []
    corrected = holm([max(row.p_values) for row in rows])
    return [float(p) < 0.05 for p in corrected]


def _mde(n: int, discordance: float) -> float:
    from leverplus.stats.power import Changes, minimum_detectable_effect

    return minimum_detectable_effect(n, Changes(discordance))


def same_run_twice(record: Record) -> list[Finding]:
    """Different names, the same settings."""
    text = TEXTS["same_run_twice"]
    printed = record.published.settings if record.published is not None else {}
    labels = [label for label, values in printed.items() if values.get("clip_only") is True and "kl_beta" in values]
    same = [b for b in labels[1:] if _alike(printed[labels[0]], printed[b])]
    if not same:
        return []
    same.insert(0, labels[0])
    betas = sorted({float(printed[label]["kl_beta"]) for label in same})
    title = text.say("seen", names=", ".join(same), betas=", ".join(f"{b:g}" for b in betas))
    evidence: dict[str, float | int | str] = {"runs": len(same)}
    printed_arms = record.published.arms if record.published else ()
    arms = [arm for arm in printed_arms if identity(arm.name) in same]
    for name, values in _spread(arms).items():
        evidence[name] = values
    if "spread_of_means" in evidence:
        title += text.say("and_spread", points=100 * float(evidence["spread_of_means"]))
    return text.found(title, evidence, about=same)


def _alike(left: Mapping[str, object], right: Mapping[str, object]) -> bool:
    """Equal in everything that both print, but for the weight of the KL term."""
    shared = (set(left) & set(right)) - {"kl_beta"}
    return all(left[key] == right[key] for key in shared)


def _spread(arms: Sequence[Arm]) -> dict[str, float]:
    """Largest difference between runs, of the means and at one shot."""
    rows = {identity(arm.name): arm.accuracy for arm in arms}
    if len(rows) < 2:
        return {}
    means = [sum(values.values()) / len(values) for values in rows.values()]
    one = [values[1] for values in rows.values() if 1 in values]
    spread = {"spread_of_means": max(means) - min(means)}
    return {**spread, "spread_at_1_shot": max(one) - min(one)} if len(one) > 1 else spread


def identical_rows(record: Record) -> list[Finding]:
    """The same digits under another name."""
    text = TEXTS["identical_rows"]
    printed_arms = record.published.arms if record.published else ()
    arms = [arm for arm in printed_arms if len(arm.accuracy) >= 3]  # fewer equal numbers may be chance
    for index, left in enumerate(arms):
        for right in arms[index + 1 :]:
            names = identity(left.name), identity(right.name)
            if all(names) and names[0] != names[1] and left.accuracy == right.accuracy and not left.baseline:
                count = len(left.accuracy)
                title = text.say("seen", right=short_name(right.name), left=short_name(left.name), count=count)
                evidence = {"values": count, "first": left.accuracy[min(left.accuracy)]}
                return text.found(title, evidence)
    return []


_DIGITS = str.maketrans("一二三四五六七八九", "123456789")
_PLAN = re.compile(r"(?:方案|plan|variant|exp(?:eriment)?|run)\s*#?\s*(\d+(?:[.+]\d+)*)", re.IGNORECASE)
_PHASE = re.compile(r"(?:phase|阶段)\s*(\d+)", re.IGNORECASE)


def identity(name: str) -> str:
    """The number of a plan or run in a name ("plan 5+8 epoch 50" -> "plan 5+8"), "" where it has none."""
    plain = name.translate(_DIGITS)
    plan, phase = _PLAN.search(plain), _PHASE.search(plain)
    parts = [f"plan {plan.group(1)}"] if plan else []
    return " ".join(parts + ([f"phase {phase.group(1)}"] if phase else []))


def short_name(name: str) -> str:
    """A name as findings print it: the number of the plan and the epoch where it has them."""
    plan, epoch = identity(name), re.search(r"epoch\s*(\d+)", name, re.IGNORECASE)
    if not plan:
        return name
    return f"{plan} epoch {epoch.group(1)}" if epoch else plan


def winners_curse(record: Record) -> list[Finding]:
    """The best of many."""
    text = TEXTS["winners_curse"]
    if record.published is None:
        return []
    by_n: dict[int, set[tuple[float, ...]]] = {}
    rated = {arm.table for arm in record.published.arms if arm.baseline}
    for arm in record.published.arms:
        if not arm.baseline and arm.table in rated and arm.n is not None and len(arm.accuracy) > 1:
            by_n.setdefault(arm.n, set()).add(tuple(arm.accuracy[s] for s in sorted(arm.accuracy)))
    if not by_n:
        return []
    n = max(by_n, key=lambda size: len(by_n[size]))
    runs = len(by_n[n])
    if runs < 4:
        return []
    # the largest of m standard normal values is about sqrt(2 log m); sqrt(d / n) is the standard error of a paired
    # difference at a discordance d of 10 %
    luck = math.sqrt(2.0 * math.log(runs)) * math.sqrt(0.1 / n)
    title = text.say("seen", runs=runs, n=n)
    return text.found(title, {"runs": runs, "n": n, "luck_at_10_percent": luck})


def missing_anchors(record: Record) -> list[Finding]:
    """No random, zero-shot or oracle row."""
    text = TEXTS["missing_anchors"]
    if record.report is not None:
        absent = [arm for arm in ("zero_shot", "random") if arm not in record.report.get("arms", {})]
        if absent and record.report.get("arms"):
            title = text.say("seen", arms=", ".join(absent))
            return text.found(title, {"missing": len(absent)})
        return []
    arms = record.published.arms if record.published is not None else ()
    if not arms or any(_ANCHORS.search(arm.name) for arm in arms):
        return []
    title = text.say("seen_in_print")
    return text.found(title, {"rows": len({arm.name for arm in arms})})


def conditions_differ(record: Record) -> list[Finding]:
    """Rows of one table with different n."""
    text = TEXTS["conditions_differ"]
    tables: dict[int, set[int]] = {}
    for arm in record.published.arms if record.published is not None else ():
        if arm.n is not None and arm.table:
            tables.setdefault(arm.table, set()).add(arm.n)
    for sizes in tables.values():
        if len(sizes) > 1:
            title = text.say("seen", sizes=" and ".join(map(str, sorted(sizes))))
            return text.found(title, {"smallest": min(sizes), "largest": max(sizes)})
    return []


def worse_than_random(record: Record) -> list[Finding]:
    """Random demonstrations do better."""
    text = TEXTS["worse_than_random"]
    rows = [r for r in (record.report or {}).get("comparisons", ()) if r["baseline"] == "random" and r["shots"] > 0]
    bad = [r for r in rows if r["arm"] == "learned" and r["ci95"][1] < 0.0]
    if not bad:
        return []
    worst = min(bad, key=lambda r: r["diff"])
    title = text.say("seen", shots=shots_name(worst["shots"]), points=100 * worst["diff"])
    evidence = {"diff": worst["diff"], "high": worst["ci95"][1], "n": worst["n"], "shots": worst["shots"]}
    return text.found(title, evidence)


TRAINING_FREE = ("nearest_text", "nearest_image", "nearest_both", "two_stage", "mmr")
"""Ways of choosing demonstrations that learn nothing and see no answer; random ones have a check of their own."""


def below_training_free(record: Record) -> list[Finding]:
    """The nearest demonstrations do better."""
    text = TEXTS["below_training_free"]
    rivals: dict[str, list[Mapping[str, Any]]] = {}
    for row in (record.report or {}).get("comparisons", ()):
        if row["arm"] == "learned" and row["baseline"] in TRAINING_FREE and row["shots"] > 0:
            rivals.setdefault(row["baseline"], []).append(row)
    means = {}
    for name, rows in rivals.items():
        means[name] = sum(row["diff"] for row in rows) / len(rows)
    if not means or min(means.values()) >= 0.0:
        return []
    rival = min(means, key=lambda name: means[name])
    worst = min(rivals[rival], key=lambda row: float(row["diff"]))
    clear = [row for row in rivals[rival] if row["ci95"][1] < 0.0 and row["p_adjusted"] < 0.05]
    points, shots = 100 * worst["diff"], shots_in_words(worst["shots"])
    title = text.say("seen", mean=100 * means[rival], rival=arm_name(rival), worst=points, shots=shots)
    if not clear:
        title += text.say("inside_noise")
    evidence = {"mean_diff": means[rival], "diff": worst["diff"], "high": worst["ci95"][1], "n": worst["n"]}
    return text.found(title, {**evidence, "rival": rival}, severity=ERROR if clear else WARNING)


def oracle_beaten(record: Record) -> list[Finding]:
    """Above what sees the answers."""
    text = TEXTS["oracle_beaten"]
    arms = (record.report or {}).get("arms", {})
    top = arms.get("oracle", {}).get("shots", {})
    for arm, values in arms.items():
        for shots, value in values["shots"].items():
            if arm not in ("oracle", "oracle_any", "oracle_exhaustive") and shots in top and value > top[shots] + 1e-9:
                title = text.say("seen", arm=arm_name(arm), value=value, shots=shots_name(shots), oracle=top[shots])
                return text.found(title, {"arm": value, "oracle": top[shots]})
    return []


def few_items(record: Record) -> list[Finding]:
    """Too few items for anything but large differences."""
    text = TEXTS["few_items"]
    n = None if record.report is None else record.report.get("n")
    if n is None or n >= 100:
        return []
    return text.found(text.say("seen", n=n), {"n": n, "mde80_at_20_percent": _mde(n, 0.2)})
