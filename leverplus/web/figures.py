"""The charts of a result, each with the table of the numbers it draws; assets/report.js gives them their looks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from leverplus.evaluate.names import arm_name, facts_of, shots_name
from leverplus.evaluate.record import (
    Advice,
    ArmResult,
    ComparisonRow,
    EvaluationRecord,
    Interval,
    Misses,
)

HIDDEN = ("oracle_any", "oracle_exhaustive")
"""Arms of the accuracy chart that appear when their name is clicked, as those that ask no model."""
MISSES = ("pool", "count", "choice", "order")
"""Where accuracy is lost, in the order of the choice; docs/evaluation.md says how each is measured."""

Line = Mapping[str, Any]
"""A line of the run log, or a finding."""
Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column is a name, the others are numbers. Rows in `muted` are shown grey."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    muted: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Series:
    """A line, points or bars of a chart; `ends` are the ends of the interval around each value.

    `role` is what its colour goes by, such as the name of an arm. What a reader sees who points at it is in `texts`.
    """

    name: str
    x: Sequence[Any]
    y: Numbers
    role: str = ""
    ends: Sequence[Interval | None] = ()
    texts: Sequence[str] = ()
    hidden: bool = False


@dataclass(frozen=True)
class Figure:
    """A chart: what it shows in words, its series and its numbers; `x` and `y` name the axes.

    `kind` is lines, points, bars, or forest (points with intervals from left to right, beside `labels`). `marks` are
    upright lines: place, text and role.
    """

    id: str
    title: str
    kind: str
    series: Sequence[Series]
    table: Table
    x: str = ""
    y: str = ""
    labels: Sequence[str] = ()
    marks: Sequence[tuple[float, str, str]] = ()


def figure_values(figures: Sequence[Figure]) -> dict[str, Any]:
    """Charts by id, as assets/report.js draws them."""
    found = {}
    for figure in figures:
        found[figure.id] = {**asdict(figure), "table": None}
    return found


def percent(value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f}"


def _cell(own: ArmResult, shots: int) -> str:
    """An accuracy with its interval."""
    value = percent(own.shots.get(shots))
    ends = own.ci95.get(shots)
    if ends is None:
        return value
    return f"{value} [{percent(ends[0])}, {percent(ends[1])}]"


def _points(ends: Interval | None) -> Interval | None:
    if ends is None:
        return None
    return 100 * ends[0], 100 * ends[1]


def accuracy_figure(record: EvaluationRecord) -> Figure:
    """Accuracy by shots for all arms. The arm that is advised is never hidden."""
    columns = record.every_shots()
    advised = (record.advice or Advice()).arm
    series = []
    rows = []
    for arm, own in record.arms.items():
        name = arm_name(arm)
        shots = sorted(own.shots)
        quiet = arm in HIDDEN or not facts_of(arm).asks_model
        line = Series(
            name,
            shots,
            [100 * own.shots[n] for n in shots],
            role=arm,
            ends=[_points(own.ci95.get(n)) for n in shots],
            texts=[f"{name}, {shots_name(n)}: {_cell(own, n)}" for n in shots],
            hidden=quiet and arm != advised,
        )
        series.append(line)
        rows.append((name, *(_cell(own, n) for n in columns)))
    head = ("who chooses", *map(shots_name, columns))
    title = f"Accuracy by shots, % with 95 % intervals, n = {record.n}"
    axes = ("demonstrations shown", "accuracy, %")
    table = Table(head, rows)
    return Figure("accuracy", title, "lines", series, table, *axes)


def forest_figures(comparisons: Sequence[ComparisonRow]) -> list[Figure]:
    """The comparisons of an evaluation, a chart for every arm that is compared with others."""
    found: list[Figure] = []
    for arm in dict.fromkeys(row.arm for row in comparisons):
        rows = [row for row in comparisons if row.arm == arm]
        title = f"{arm_name(arm)} minus baseline, points with 95 % intervals (baseline · shots)"
        names = [arm_name(row.baseline) for row in rows]
        found.append(forest_figure(f"forest-{len(found) + 1}", rows, names, title))
    return found


def forest_figure(
    name: str, comparisons: Sequence[ComparisonRow], names: Sequence[str], title: str
) -> Figure:
    """Paired differences with their intervals; those within noise are grey. `names` are those of the rows."""
    labels = []
    rows = []
    places_of: tuple[list[int], list[int]] = ([], [])  # clear, within noise
    for place, row in enumerate(comparisons):
        low, high = (100 * bound for bound in row.ci95)
        label = f"{names[place]} · {row.shots}"
        cells = (
            str(row.n),
            f"{100 * row.diff:+.1f}",
            f"{low:+.1f} to {high:+.1f}",
            f"{row.p_adjusted:.2g}",
            percent(row.mde80),
            percent(row.mde80_adjusted) or "not known",
            f"{row.helped} / {row.harmed}",
            row.verdict,
        )
        labels.append(label)
        rows.append((label, *cells))
        places_of[row.within_noise].append(place)
    series = []
    for role, places in zip(("clear", "within noise"), places_of, strict=True):
        points = Series(
            role,
            [100 * comparisons[place].diff for place in places],
            places,
            role,
            [_points(comparisons[place].ci95) for place in places],
            [" · ".join(rows[place]) for place in places],
        )
        series.append(points)
    head = ("compared · shots", "n", "difference", "95 % interval", "p, corrected")
    more = ("detectable", "corrected", "higher / lower", "outcome")
    table = Table((*head, *more), rows, frozenset(places_of[True]))
    return Figure(name, title, "forest", series, table, labels=labels)


def cost_figure(record: EvaluationRecord) -> Figure:
    """Mean accuracy over shots against the calls spent on training."""
    series = []
    rows = []
    for arm, own in record.arms.items():
        if own.mean is not None:
            name = arm_name(arm)
            cells = (name, f"{own.training_calls:,}", percent(own.mean))
            point = Series(
                name,
                [own.training_calls],
                [100 * own.mean],
                role=arm,
                texts=[", ".join(cells)],
                hidden=arm in HIDDEN,
            )
            series.append(point)
            rows.append(cells)
    table = Table(("who chooses", "training calls", "mean accuracy, %"), rows)
    title = "Mean accuracy over shots against training calls"
    _, calls, accuracy = table.head
    return Figure("cost", title, "points", series, table, calls, accuracy)


def regret_figure(regret: Mapping[int, Misses]) -> Figure:
    """What the learned selector loses by shots, in points, split by where it loses it."""
    series = []
    rows = []
    names = list(map(shots_name, regret))
    for kind in MISSES:
        lost = [100 * getattr(own, kind) for own in regret.values()]
        series.append(Series(kind, names, lost, kind))
    for name, own in zip(names, regret.values(), strict=True):
        losses = [percent(getattr(own, key)) for key in (*MISSES, "total")]
        rows.append((name, str(own.n), *losses))
    table = Table(("shots", "n", *MISSES, "total"), rows)
    sizes = dict.fromkeys(str(own.n) for own in regret.values())
    counts = " and ".join(sizes)
    title = f"Points lost, by where, n = {counts}"
    return Figure("regret", title, "bars", series, table, y="points lost")


def gap_table(record: EvaluationRecord) -> Table:
    """Share of the way from random to the greedy oracle that each arm goes, by shots."""
    shots = record.every_shots()
    rows = []
    for arm, values in record.gap_closed.items():
        cells = dict.fromkeys([*map(str, shots), "mean"], "")
        for key, value in values.items():
            cells[key] = f"{100 * value:.0f} %"
        if values:
            rows.append((arm_name(arm), *cells.values()))
    return Table(("who chooses", *map(shots_name, shots), "mean"), rows)


CURVES = {
    "Loss": ("train/loss/total",),
    "Reward on dev": ("val/reward", *(f"val/reward@{n}" for n in range(9))),
    "Negative log-likelihood, nats per sequence": ("train/nll",),
    "KL, nats per sequence": ("train/kl", "train/kl_prox"),
    "Entropy per step, nats": ("train/entropy",),
    "Share of probe picks that changed in the epoch": ("train/picks/changed_frac",),
    "Rewards of the groups": (
        *("train/reward/oracle_in_group", "train/reward", "train/reward_std"),
    ),
    "Flat groups, share": (
        *("train/frac_reward_zero_std", "train/frac_reward_all_zero"),
        "train/frac_reward_all_one",
    ),
    "Advantages": ("train/adv/max", "train/adv/std", "train/adv/frac_active"),
}
"""Title of a chart -> the metrics of the run log that it draws."""


def curve_figures(log: Sequence[Line], findings: Sequence[Line]) -> list[Figure]:
    """Training curves, one chart per group of metrics that the log holds; a curve that repeats another is left out.

    A finding is marked by its number in the list of findings, at the epoch it fired.
    """
    figures: list[Figure] = []
    drawn: list[Numbers] = []
    epochs = [f"{line.get('stage', '')} {line.get('epoch', '')}" for line in log]
    places = list(range(1, len(log) + 1))
    marks = _marks(log, findings)
    for title, keys in CURVES.items():
        series = []
        cells = [epochs]
        for key in keys:
            column = [logged_number(line, key) for line in log]
            if column not in drawn and column.count(None) < len(column):
                drawn.append(column)
                name = key.removeprefix("train/").removeprefix("val/")
                series.append(Series(name, places, column))
                cells.append(["" if own is None else f"{own:.4g}" for own in column])
        if series:
            head = ("epoch", *(own.name for own in series))
            table = Table(head, list(zip(*cells, strict=True)))
            name = f"curve-{len(figures)}"
            figure = Figure(name, title, "lines", series, table, "epoch", marks=marks)
            figures.append(figure)
    return figures


def _marks(
    log: Sequence[Line], findings: Sequence[Line]
) -> list[tuple[float, str, str]]:
    """Lines at the beginnings of stages, and at the epochs at which findings fired."""
    starts = stage_starts(log)
    fired: dict[int, list[str]] = {}
    for number, finding in enumerate(findings, 1):
        row = finding_row(finding, log)
        if row is not None:
            fired.setdefault(row, []).append(str(number))
    marks: list[tuple[float, str, str]] = []
    if len(starts) > 1:
        for row, stage in starts.items():
            marks.append((row + 0.5, stage, "stage"))
    for row, numbers in sorted(fired.items()):
        marks.append((row + 1, ", ".join(numbers), "finding"))
    return marks


def stage_starts(log: Sequence[Line]) -> dict[int, str]:
    """The rows of the log at which a stage begins, with its name."""
    starts: dict[int, str] = {}
    before = None
    for row, line in enumerate(log):
        stage = line.get("stage", "")
        if row == 0 or stage != before:
            starts[row] = str(stage)
        before = stage
    return starts


def finding_row(finding: Line, log: Sequence[Line]) -> int | None:
    """The row of the log at which a finding fired, from the stage, epoch or step it names; None if it names none."""
    place = dict(finding)
    evidence = finding.get("evidence")
    if isinstance(evidence, Mapping):
        place = {**evidence, **finding}
    epoch = logged_number(place, "epoch")
    step = logged_number(place, "step")
    for row, line in enumerate(log):
        if place.get("stage") in (None, line.get("stage")):
            if epoch is not None and logged_number(line, "epoch") == epoch:
                return row
            reached = logged_number(line, "step") or 0.0
            if epoch is None and step is not None and reached >= step:
                return row
    return None


def fired_at(finding: Line, log: Sequence[Line]) -> str:
    """Where a finding fired, in words; "" if it names no epoch of the log."""
    row = finding_row(finding, log)
    if row is None:
        return ""
    return f"{log[row].get('stage', '')}, epoch {log[row].get('epoch', row + 1)}"


def logged_number(line: Line, key: str) -> float | None:
    """A number of a log line, None where it is absent or was not finite."""
    value = line.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if math.isfinite(value):
        return float(value)
    return None


HISTOGRAMS = {
    "rewards": ("rewards of the sequences it learnt from", "reward", "sequences"),
    "spread": ("rewards in its groups", "best minus worst reward", "groups"),
    "advantages": ("advantages in the first epoch", "advantage", "sequences"),
}
"""A histogram of groups-STAGE.json -> its title, the name of its axis, what is counted."""


def group_figures(groups: Mapping[str, Line]) -> list[Figure]:
    """What the stages learnt from: up to three histograms per stage."""
    figures = []
    for stage, own in groups.items():
        for kind, (title, axis, counted) in HISTOGRAMS.items():
            if kind not in own:
                continue
            counts = own[kind]["counts"]
            edges = pairwise(own[kind]["edges"])
            names = []
            middles = []
            rows = []
            for (low, high), count in zip(edges, counts, strict=True):
                names.append(f"{low:.3g} to {high:.3g}")
                middles.append((low + high) / 2)
                rows.append((names[-1], f"{count:,}"))
            table = Table((axis, counted), rows)
            bars = [Series(counted, middles, counts, texts=names)]
            name = f"{kind}-{stage}"
            shown = f"{stage}: {title}"
            figure = Figure(name, shown, "bars", bars, table, axis, counted)
            figures.append(figure)
    return figures


def group_table(groups: Mapping[str, Line]) -> Table:
    """Groups and sequences of every stage, and the groups that teach a policy gradient nothing."""
    rows = []
    keys = ("groups", "sequences", "flat", "all_wrong", "all_right")
    for stage, own in groups.items():
        cells = [str(own.get(key, "")) for key in keys]
        rows.append((stage, *cells))
    head = ("stage", "groups", "sequences", "flat", "none right", "all right")
    return Table(head, rows)
