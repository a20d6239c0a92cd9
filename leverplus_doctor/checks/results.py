"""Checks on evaluations: what the numbers can show, what was chosen, and what more demonstrations do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from leverplus.evaluate.names import arm_name, shots_name
from leverplus.evaluate.published import PublishedTable, compare_published
from leverplus.evaluate.record import ComparisonRow
from leverplus.evaluate.stats.power import Changes, minimum_detectable_effect
from leverplus_doctor.check import ERROR, Said, Seen, check, check_each, check_printed
from leverplus_doctor.records import Arm, PickCounts, Published, Record

Accuracies = Mapping[int, float]
check_picks = check_each(lambda record: record.picks)
_ANCHORS = re.compile(
    r"random|zero|oracle|nearest|随机|零样本|最近|上限", re.IGNORECASE
)


@check_printed
def comparison_without_n(published: Published) -> Said:
    """{comparisons}{some} printed comparisons carry no n: nothing can be concluded from them

    Error: Differences are compared without saying on how many items, so that nobody can tell them from noise.
    Looks at: printed accuracies or gains for which neither their line, their table nor their section says how
    many items
    Try: Print n, the paired interval and the number of comparisons beside every difference.
    Explains: winners_curse
    """
    rows = len(published.gains)
    for arm in published.arms:
        rows += not arm.baseline
    unsized = published.unsized
    some = ""
    if unsized != rows:
        some = f" of {rows}"
    return unsized > 0 and Seen(comparisons=unsized, some=some)


@check_printed
def accuracy_falls_with_n(published: Published) -> Said:
    """Accuracy falls as n grows, at {places} numbers of shots: {at_small:.1%} on {small_n} items, {at_large:.1%}
    on {large_n} at {shots} (prefix samples)

    Warning: Accuracy falls as more items are evaluated: the items are the first n of the file, not a random
    sample.
    Looks at: accuracy at the same number of shots, whichever variant is taken, for a smaller and a larger n
    Try: Draw the items at random once and keep their ids; never compare numbers of different n.
    Explains: difference_inside_noise
    """
    by_shots: dict[int, dict[int, list[float]]] = {}
    for arm in published.arms:
        for shots, accuracy in arm.accuracy.items():
            if arm.n is not None:
                by_n = by_shots.setdefault(shots, {})
                by_n.setdefault(arm.n, []).append(accuracy)
    falls = []
    places = set()
    for shots, by_n in sorted(by_shots.items()):
        for small, large in pairwise(sorted(by_n)):
            # even the worst at the smaller n against the best
            low = min(by_n[small])
            high = max(by_n[large])
            if low <= high:
                return None
            places.add(shots)
            falls.append((low - high, shots, small, large, low, high))
    if len(falls) < 2:
        return None
    _points, shots, small, large, low, high = max(falls, key=lambda own: own[0])
    return Seen(
        steps=len(falls),
        places=len(places),
        small_n=small,
        large_n=large,
        at_small=low,
        at_large=high,
        shots=shots_name(shots),
    )


@dataclass(frozen=True)
class PrintedDifference:
    """A printed difference from a baseline, judged as `lever compare --from-summary` judges it.

    `outside` says for every assumed share of items on which both differ whether it is outside the noise.
    """

    name: str
    shots: str
    n: int
    diff: float
    outside: tuple[bool, ...]

    @property
    def settled(self) -> bool:
        """Whether it stands whatever that share is."""
        return all(self.outside)

    @property
    def open(self) -> bool:
        """Whether it depends on that share, which nobody printed."""
        return any(self.outside) and not self.settled


def printed_differences(published: Published) -> list[PrintedDifference]:
    """Every arm against the baseline of its table, by shots and in the mean (shots "mean"), each once."""
    tables: dict[tuple[int, int], list[Arm]] = {}
    for arm, baseline in published.with_rivals():
        if arm.n is not None:
            tables.setdefault((arm.table, arm.n), [baseline]).append(arm)
    found: dict[tuple[object, ...], PrintedDifference] = {}
    for (_, n), arms in tables.items():
        shared = set(arms[0].accuracy)
        for arm in arms:
            shared &= set(arm.accuracy)
        if not shared:
            continue
        accuracies: dict[str, dict[str, float]] = {}
        for place, arm in enumerate(arms):
            by_shots = accuracies.setdefault(str(place), {})
            for shots in sorted(shared):
                by_shots[str(shots)] = arm.accuracy[shots]
        report = compare_published(PublishedTable(n, "fraction", accuracies), "0")
        for row in report.rows:
            arm = arms[int(row.arm)]
            at = row.shots
            outside = tuple(not end.within_noise for end in row.assuming)
            name = short_name(arm.name)
            difference = PrintedDifference(name, at, n, row.diff, outside)
            # the same row printed in two tables is one difference, whatever it is called
            of_arm = sorted(arm.accuracy.items())
            key = (at, *of_arm, *arms[0].accuracy.items())
            if at != "mean" or len(shared) > 1:
                found.setdefault(key, difference)
    return list(found.values())


@check
def difference_inside_noise(record: Record) -> Said:
    """n = {n} settles {count} of {comparisons} printed differences; on average {means}

    Warning: The difference is smaller than what these items can show.
    Looks at: paired interval where per-item results exist; else what `lever compare --from-summary` says of the
    table: 5 % and 30 % of the items assumed to differ, corrected for its number of comparisons
    Try: Report the paired interval; `lever plan-n --effect X` says how many items the difference needs.
    Explains: winners_curse
    """
    if record.report is not None:
        return _measured_noise(record)
    unsettled: list[PrintedDifference] = []
    singles: list[PrintedDifference] = []
    settled = 0
    for row in printed_differences(record.published):
        if row.shots != "mean":
            singles.append(row)
            settled += row.settled
        elif not row.settled:
            unsettled.append(row)
    if not unsettled or settled == len(singles):
        return None
    n = min(row.n for row in singles)
    largest = max(singles, key=lambda row: abs(row.diff))
    numbers: dict[str, Any] = {}
    each = []
    for row in sorted(unsettled, key=lambda row: -row.diff)[:3]:
        judged = "is within noise"
        if row.open:
            judged = "may be noise"
        each.append(f"{row.name} {100 * row.diff:+.2f} {judged}")
        numbers[f"mean_diff {row.name}"] = row.diff
    count = "none"
    if settled:
        count = f"only {settled}"
    return Seen(
        count=count,
        means=", ".join(each),
        n=n,
        comparisons=len(singles),
        settled=settled,
        largest_diff=largest.diff,
        mde80_at_10_percent=minimum_detectable_effect(n, Changes(0.10)),
        mde80_at_30_percent=minimum_detectable_effect(n, Changes(0.30)),
        **numbers,
    )


def _measured_noise(record: Record) -> Said:
    """The learned selector beside random demonstrations, item by item."""
    rows = record.compared("learned", "random")
    if not rows:
        return None
    for row in rows:
        low, high = row.ci95
        if low > 0.0 or high < 0.0:
            return None
    widest = max(rows, key=lambda row: abs(row.diff))
    return Seen(
        "On {n} items the selector cannot be told from random demonstrations at any number of shots",
        n=rows[0].n,
        largest_diff=widest.diff,
        mde80=widest.mde80,
    )


@check_printed
def same_run_twice(published: Published) -> Said:
    """{names} are one experiment: with clip only, kl_beta {betas} is unused{more}

    Error: Runs that are told as different experiments have the same effective settings; what they differ by is
    the noise of a run.
    Looks at: printed settings that differ only in one without effect
    Try: Read their difference as the noise, and compare every claimed gain with it.
    Explains: difference_inside_noise
    """
    same: dict[str, float] = {}
    first: Mapping[str, object] | None = None
    for label, settings in published.settings.items():
        if settings.get("clip_only") is not True or "kl_beta" not in settings:
            continue
        first = first or settings
        # equal in everything that both print, but for the weight of the KL term
        shared = (set(first) & set(settings)) - {"kl_beta"}
        if all(first[key] == settings[key] for key in shared):
            same[label] = float(settings["kl_beta"])
    if len(same) < 2:
        return None
    means: dict[str, float] = {}
    alone: dict[str, float] = {}
    for arm in published.arms:
        name = identity(arm.name)
        accuracy = arm.accuracy
        if name in same:
            means[name] = sum(accuracy.values()) / len(accuracy)
            if 1 in accuracy:
                alone[name] = accuracy[1]
    more = ""
    spread: dict[str, Any] = {}
    if len(means) > 1:
        spread["spread_of_means"] = _range(means)
        more = f"; they differ by {100 * _range(means):.2f} points on average, which is noise"
        if len(alone) > 1:
            spread["spread_at_1_shot"] = _range(alone)
    betas = sorted(set(same.values()))
    return Seen(
        runs=len(same),
        names=", ".join(same),
        betas=", ".join(map("{:g}".format, betas)),
        more=more,
        about=same,
        **spread,
    )


def _range(values: Mapping[str, float]) -> float:
    return max(values.values()) - min(values.values())


@check_printed
def identical_rows(published: Published) -> Said:
    """{right} is digit-identical to {left} at all {values} numbers of shots

    Error: Two runs have the same accuracy to the last digit at every number of shots: a copied row, or the same
    checkpoint evaluated twice.
    Looks at: equal accuracies of rows with different names
    Try: Keep predictions with the checkpoint's hash; evaluate both again.
    Explains: difference_inside_noise
    """
    # fewer equal numbers may be chance
    arms = [arm for arm in published.arms if len(arm.accuracy) >= 3]
    for left, right in combinations(arms, 2):
        names = {identity(left.name), identity(right.name)}
        if len(names) < 2 or "" in names or left.baseline:
            continue
        if left.accuracy == right.accuracy:
            return Seen(
                values=len(left.accuracy),
                first=left.accuracy[min(left.accuracy)],
                right=short_name(right.name),
                left=short_name(left.name),
            )
    return None


_DIGITS = str.maketrans("一二三四五六七八九", "123456789")
_PLAN = re.compile(
    r"(?:方案|plan|variant|exp(?:eriment)?|run)\s*#?\s*(\d+(?:[.+]\d+)*)", re.IGNORECASE
)
_PHASE = re.compile(r"(?:phase|阶段)\s*(\d+)", re.IGNORECASE)


def identity(name: str) -> str:
    """The number of a plan or run in a name ("plan 5+8 epoch 50" -> "plan 5+8"), "" where it has none."""
    plain = name.translate(_DIGITS)
    parts = []
    for word, form in (("plan", _PLAN), ("phase", _PHASE)):
        number = form.search(plain)
        if number:
            parts.append(f"{word} {number.group(1)}")
    return " ".join(parts)


def short_name(name: str) -> str:
    """A name as findings print it: the number of the plan and the epoch where it has them."""
    plan = identity(name)
    epoch = re.search(r"epoch\s*(\d+)", name, re.IGNORECASE)
    if plan and epoch:
        return f"{plan} epoch {epoch.group(1)}"
    return plan or name


@check_printed
def winners_curse(published: Published) -> Said:
    """{runs} runs were compared on the same {n} items and the best one is reported

    Warning: The best of several runs on the same items is high by luck; nothing confirms it on others.
    Looks at: number of runs compared on the same items (3 or more), and what the best of so many equal ones
    would show
    Try: Choose on dev; report the chosen one once on test.
    """
    by_n: dict[int, set[tuple[float, ...]]] = {}
    for arm, _rival in published.with_rivals():
        if arm.n is not None and len(arm.accuracy) > 1:
            _, row = zip(*sorted(arm.accuracy.items()), strict=True)
            by_n.setdefault(arm.n, set()).add(row)
    n = max(by_n, key=lambda size: len(by_n[size]), default=0)
    runs = len(by_n.get(n, ()))
    if runs < 4:
        return None
    # the largest of m standard normal values is about sqrt(2 log m); sqrt(d / n) is the standard error of a paired
    # difference at a discordance d of 10 %
    error = math.sqrt(0.1 / n)
    luck = math.sqrt(2.0 * math.log(runs)) * error
    return Seen(runs=runs, n=n, luck_at_10_percent=luck)


@check
def missing_anchors(record: Record) -> Said:
    """No printed row shows random, nearest, zero-shot or oracle demonstrations

    Warning: Without random, zero-shot and oracle rows nobody can tell skill from the model's own ability.
    Looks at: names of the printed or evaluated rows
    Try: Evaluate random, zero-shot, nearest and oracle on the same items.
    """
    if record.report is not None:
        if record.settings.get("eval.arms"):
            return None  # somebody said which are compared
        evaluated = record.report.arms
        absent = [arm for arm in ("zero_shot", "random") if arm not in evaluated]
        arms = ", ".join(absent)
        return bool(absent) and Seen(
            "Not evaluated: {arms}", missing=len(absent), arms=arms
        )
    names = {arm.name for arm in record.published.arms}
    if not names or any(map(_ANCHORS.search, names)):
        return None
    return Seen(rows=len(names))


@check_printed
def conditions_differ(published: Published) -> Said:
    """One table compares rows measured on {sizes} items

    Error: Rows of one table were measured on different numbers of items.
    Looks at: n of the rows of a table
    Try: Evaluate all of them on the same items.
    Explains: difference_inside_noise
    """
    tables: dict[int, set[int]] = {}
    for arm in published.arms:
        if arm.n is not None and arm.table:
            tables.setdefault(arm.table, set()).add(arm.n)
    for counts in tables.values():
        if len(counts) > 1:
            sizes = " and ".join(map(str, sorted(counts)))
            return Seen(smallest=min(counts), largest=max(counts), sizes=sizes)
    return None


def _seen_of(row: ComparisonRow) -> Seen:
    """The numbers of one comparison; the difference also in points."""
    return Seen(
        diff=row.diff,
        points=100 * row.diff,
        high=row.ci95[1],
        n=row.n,
        shots=row.shots,
        at=shots_name(row.shots),
    )


@check
def worse_than_random(record: Record) -> Said:
    """At {at} the selector is {points:+.1f} points from random demonstrations

    Error: The selector is worse than random demonstrations.
    Looks at: paired interval against random, below 0 at some number of shots
    Try: Look at the findings above; check that training and test build pools alike.
    Explains: below_training_free
    """
    rows = record.compared("learned", "random")
    bad = [row for row in rows if row.ci95[1] < 0.0]
    return bool(bad) and _seen_of(min(bad, key=lambda row: row.diff))


@check
def below_training_free(record: Record) -> Said:
    """The learned selector is {mean_points:+.1f} points from {rival} in the mean over shots, which needs no
    training; at worst {points:+.1f} at {at}{noise}

    Warning: The learned selector is below a way of choosing that needs no training, so its training bought
    nothing.
    Looks at: paired differences from the nearest and the diverse nearest demonstrations: below 0 in the mean
    over shots; an error where the corrected interval is below 0 at some number of shots
    Try: Use that way of choosing, or train with more calls (score.budget); other findings may say why training
    did not help.
    """
    # ways that learn nothing and see no answer; random ones have a check of their own
    means = []
    for name in ("nearest_text", "nearest_image", "nearest_both", "two_stage", "mmr"):
        rows = record.compared("learned", name)
        if rows:
            total = sum(row.diff for row in rows)
            means.append((total / len(rows), name))
    mean, rival = min(means, default=(0.0, ""))
    if mean >= 0.0:
        return None
    rows = record.compared("learned", rival)
    seen = _seen_of(min(rows, key=lambda row: row.diff))
    noise = ", which these items cannot tell from noise"
    for row in rows:
        if row.ci95[1] < 0.0 and row.p_adjusted < 0.05:
            noise = ""
            seen.severity = ERROR
    seen.values |= {"mean_diff": mean, "mean_points": 100 * mean}
    seen.values |= {"rival": arm_name(rival), "noise": noise}
    return seen


@check
def few_items(record: Record) -> Said:
    """Only {n} items were evaluated

    Info: So few items show only very large differences.
    Looks at: number of evaluated items (under 100)
    Try: Evaluate more items (eval.items).
    Explains: difference_inside_noise
    """
    if record.report is None or record.report.n >= 100:
        return None
    n = record.report.n
    return Seen(n=n, mde80_at_20_percent=minimum_detectable_effect(n, Changes(0.2)))


@check_picks
def hub_demonstrations(picks: PickCounts) -> Said:
    """Ten demonstrations make up {it.top10:.0%} of the picks at {shots}, the first of them {it.top1:.0%}

    Warning: A few demonstrations are chosen for most queries: popularity instead of fit.
    Looks at: share of the ten most chosen demonstrations (over 50 %) or of the first (over 30 %) in the picks of
    100 items or more
    Try: Shuffle queries: at least 80 % of the picks must change; check that pools differ between queries.
    Explains: more_shots_hurt
    """
    if picks.arm != "learned" or picks.items < 100:
        return None
    few = picks.top10 > 0.5 or picks.top1 > 0.3
    return few and Seen(shots=shots_name(picks.shots))


@check
def stop_collapse(record: Record) -> Said:
    """The selector that may stop shows {length:.2f} of {most} demonstrations, the same number for {same:.0%} of
    the queries

    Warning: The selector stops at the same place for every query (at once, after one, never): stopping has no
    measured alternative.
    Looks at: share of the most common length of the lists of the arm that may stop (95 % or more), at its most
    shots; with select.stop = none_only only if that is none
    Try: Measure every prefix, so that stopping competes with going on (reward.compare = all).
    Explains: more_shots_hurt
    """
    own = [picks for picks in record.picks if picks.arm == "learned_auto"]
    longest = max(own, key=lambda picks: picks.shots, default=None)
    if longest is None or longest.items < 50 or longest.shots < 2:
        return None
    # one that may only show none or all, and was taught both, should mostly show all
    shown = longest.length > 0.5 * longest.shots
    all_or_none = record.setting("select.stop") == "none_only"
    if longest.same < 0.95 or (all_or_none and shown):
        return None
    one_length = record.setting("reward.compare") == "same_shots"
    return Seen(
        length=longest.length,
        most=longest.shots,
        same=longest.same,
        fix=one_length and {"reward.compare": "all"},
    )


@check
def more_shots_hurt(record: Record) -> Said:
    """{name}: {at_first:.1%} at {first} shot, {at_last:.1%} at {last}

    Warning: Accuracy falls with every demonstration the selector adds, though it does not for random ones: it
    was trained on one length, or it repeats itself.
    Looks at: accuracy at 1 shot against the most shots (two standard errors), beside the random or baseline arm
    Try: Measure and reward every prefix; train on all lengths; let it stop.
    """
    for name, own, rival, n in _with_rivals(record):
        common = sorted(set(own) & set(rival) - {0})
        if len(common) < 2:
            continue
        first = common[0]
        last = common[-1]
        at_first = own[first]
        at_last = own[last]
        fall = at_first - at_last
        other = rival[first] - rival[last]
        # two answers of one arm differ on as many items as independent ones at the most
        lost = at_first * (1.0 - at_last)
        differ = lost + at_last * (1.0 - at_first)
        error = math.sqrt(differ / n)
        # a rival that falls as much says that the model cannot use more shots, whoever chooses them
        if fall > 2.0 * error and other < 0.5 * fall:
            return Seen(
                fall=fall,
                fall_of_rival=other,
                n=n,
                standard_error=error,
                first=first,
                at_first=at_first,
                last=last,
                at_last=at_last,
                name=name,
            )
    return None


def _with_rivals(record: Record) -> Iterator[tuple[str, Accuracies, Accuracies, int]]:
    """Name, accuracies, those of what it is held against, and the number of items."""
    own = record.accuracy_of("learned")
    rival = record.accuracy_of("random")
    if record.report is not None and own and rival:
        yield "learned", own, rival, record.report.n
    for arm, baseline in record.published.with_rivals():
        if arm.n:
            yield arm.name, arm.accuracy, baseline.accuracy, arm.n


@check
def beyond_trained_length(record: Record) -> Said:
    """Trained on {on}; at {shots} it is {points:+.1f} points from random ({low:+.1f} to {high:+.1f})

    Warning: The selector is asked for more demonstrations than it was trained on, and is no better than chance
    there.
    Looks at: eval.shots above score.shots, with an interval against random that excludes 0 within and includes
    0 beyond, and less than half of the gain
    Try: Train on the lengths that are used (score.shots), or let it stop.
    Explains: more_shots_hurt
    """
    trained = record.setting("score.shots")
    if trained is None:
        return None
    if record.setting("score.search") == "dense":
        trained = 1  # a dense table shows one demonstration per prompt, whatever score.shots says
    within = []
    beyond = []
    for row in record.compared("learned", "random"):
        gains = row.ci95[0] > 0.0
        if row.shots > trained and not gains:
            beyond.append(row)
        elif row.shots <= trained and gains:
            within.append(row.diff)
    if not within:
        return None
    # few items leave any gain inside the noise; lost is only what is also less than half of the gain within
    half = min(within) / 2
    lost = [row for row in beyond if row.diff < half]
    if not lost:
        return None
    worst = min(lost, key=lambda row: row.diff)
    longest = max(row.shots for row in lost)
    return Seen(
        trained=trained,
        shots=worst.shots,
        diff=worst.diff,
        points=100 * worst.diff,
        low=100 * worst.ci95[0],
        high=100 * worst.ci95[1],
        on=shots_name(trained),
        fix={"score.shots": longest, "score.search": "beam"},
    )


@check
def shots_identical(record: Record) -> Said:
    """{name}: {accuracy:.2%} at {shots} numbers of shots

    Warning: Accuracy is the same to the last digit from some number of shots on: the longer lists were never
    made.
    Looks at: equal accuracies at 3 or more numbers of shots
    Try: Check the bound of the decoder's loop and the size of the pool.
    """
    rows = [("learned", record.accuracy_of("learned"))]
    for arm in record.published.arms:
        rows.append((arm.name, arm.accuracy))
    for name, accuracy in rows:
        tail = [accuracy[shots] for shots in sorted(accuracy) if shots >= 2]
        if len(tail) >= 3 and len(set(tail)) == 1:
            return Seen(accuracy=tail[0], shots=len(tail), name=name)
    return None
