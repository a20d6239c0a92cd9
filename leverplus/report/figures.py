"""Makes the charts of a result: plotly specifications, each with the table of the numbers it draws."""

from __future__ import annotations

import html
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leverplus.evaluation.names import MODEL_FREE, arm_name, shots_name
from leverplus.evaluation.predictions import Results
from leverplus.report.data import logged_number
from leverplus.report.tables import Table, by_arm
from leverplus.report.verdict import within_noise
from leverplus.stats import known_interval

ACCENT, GREY = "#e0592a", "#9aa0a6"
STYLES = {
    "learned": (ACCENT, "solid"),
    "nearest_both": ("#2f7fc1", "solid"),
    "nearest_text": ("#2a9d8f", "solid"),
    "nearest_image": ("#8f6bc4", "solid"),
    "fixed": ("#d1478c", "solid"),
    "random": (GREY, "solid"),
    "zero_shot": (GREY, "dot"),
    "oracle": ("#c79a1b", "dash"),
}
"""Colour and line of the arms that every run has; the colours are readable on white and on dark grey."""
HIDDEN = (*MODEL_FREE, "oracle_any", "oracle_exhaustive")
"""Arms of the accuracy chart that appear when their name is clicked; their numbers are in its table."""
LABEL = 30
"""Most characters of a name beside a chart."""
# Colours of the other arms, in order.
SPARE = ("#c05780", "#5b8c3a", "#a0664a", "#4a6fa5", "#7a9a01", "#b07aa1", "#6c757d")


@dataclass(frozen=True)
class Figure:
    """A chart: plotly data and layout, what it shows in words, and its numbers."""

    id: str
    title: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    table: Table | None = None
    height: int = field(default=380)


def figure_values(figures: Sequence[Figure]) -> dict[str, Any]:
    """Charts by id, as assets/report.js draws them."""
    found = {}
    for figure in figures:
        found[figure.id] = {"data": figure.data, "layout": figure.layout, "height": figure.height}
    return found


def chart_text(text: str) -> str:
    """Text for a chart, where plotly would otherwise read a few tags as markup."""
    return html.escape(str(text), quote=False)


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def style(arm: str, arms: Sequence[str]) -> tuple[str, str]:
    """Colour and line of an arm; arms without their own take the spare colours in order."""
    if arm in STYLES:
        return STYLES[arm]
    others = [name for name in arms if name not in STYLES]
    return SPARE[others.index(arm) % len(SPARE)], "solid"


@dataclass(frozen=True)
class Estimate:
    """A mean accuracy and its 95 % interval; a single item or picture has none."""

    value: float
    interval: Sequence[float] | None

    @classmethod
    def of(cls, scores: ArrayLike, clusters: Sequence[Hashable]) -> Estimate:
        """The mean of scores (N,); items with the same cluster, a picture, are drawn together for the interval."""
        mean = float(np.asarray(scores, dtype=np.float64).mean())
        return cls(mean, known_interval(scores, clusters=clusters))

    def __str__(self) -> str:
        if self.interval is None:
            return f"{100 * self.value:.1f}"
        low, high = self.interval
        return f"{100 * self.value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


Estimates = Mapping[str, Mapping[int, Estimate]]


def estimates(results: Results) -> Estimates:
    """Accuracy of every arm at every number of shots, with an interval over images, or over items that share none."""
    found: dict[str, dict[int, Estimate]] = {}
    for arm in results.draws:
        found[arm] = {}
        for shots in results.shots(arm):
            found[arm][shots] = Estimate.of(results.accuracy(arm, shots), results.images)
    return found


def error_bars(values: Sequence[Estimate]) -> dict[str, Any]:
    """Plotly error bars in points, from the value to the ends of its interval."""
    above, below = [], []
    for estimate in values:
        low, high = estimate.interval or (estimate.value, estimate.value)
        above.append(100 * (high - estimate.value))
        below.append(100 * (estimate.value - low))
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.2, "width": 3}


def accuracy_figure(measured: Estimates, n: int, advised: str | None = None) -> Figure:
    """Accuracy by shots for all arms; zero-shot is a level line. The arm that is advised is never hidden."""
    arms = list(measured)
    hidden = [arm for arm in HIDDEN if arm != advised]
    evaluated: set[int] = set()
    for by_shots in measured.values():
        evaluated.update(by_shots)
    columns = sorted(evaluated)
    most = max(columns, default=1)
    side_by_side = [arm for arm in arms if arm not in hidden and set(measured[arm]) != {0}]
    data = []
    for arm in arms:
        place = side_by_side.index(arm) if arm in side_by_side else 0
        shift = 0.05 * (place - (len(side_by_side) - 1) / 2)  # so that error bars stand beside each other
        trace = {**_accuracy_trace(arm, measured[arm], style(arm, arms), shift), "visible": arm not in hidden}
        data.append(trace)
        if set(measured[arm]) == {0} and arm not in hidden:
            data.append(
                {
                    "x": [0, most + 0.25],
                    "y": [100 * measured[arm][0].value] * 2,
                    "mode": "lines",
                    "line": trace["line"],
                    "showlegend": False,
                    "hoverinfo": "skip",
                }
            )
    layout = {
        "xaxis": {
            "title": {"text": "demonstrations shown"},
            "dtick": 1,
            "range": [-0.25, most + 0.3],
            "zeroline": False,
        },
        "yaxis": {"title": {"text": "accuracy, %"}, "rangemode": "tozero"},
    }
    head = ("who chooses", *(shots_name(shots) for shots in columns))
    rows = []
    for arm in arms:
        cells = [str(measured[arm].get(shots, "")) for shots in columns]
        rows.append((arm_name(arm), *cells))
    title = f"Accuracy by shots, % with 95 % intervals, n = {n}"
    return Figure("accuracy", title, data, layout, Table(head, rows), height=460)


def _accuracy_trace(
    arm: str, by_shots: Mapping[int, Estimate], colour_and_dash: tuple[str, str], shift: float
) -> dict[str, Any]:
    """The line of one arm; its points are moved by `shift` along the axis of shots, but for the one at 0."""
    colour, dash = colour_and_dash
    x, y, texts, values = [], [], [], []
    for shots, estimate in sorted(by_shots.items()):
        x.append(shots + shift if shots else 0)
        y.append(100 * estimate.value)
        texts.append(f"{chart_text(arm_name(arm))}, {shots_name(shots)}<br>{estimate}")
        values.append(estimate)
    return {
        "name": arm_name(arm),
        "x": x,
        "y": y,
        "text": texts,
        "hoverinfo": "text",
        "mode": "lines+markers",
        "line": {"color": colour, "dash": dash, "width": 3 if arm == "learned" else 1.6},
        "marker": {"size": 8 if arm == "learned" else 6},
        "error_y": {**error_bars(values), "color": colour},
    }


def forest_figures(comparisons: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """The comparisons of an evaluation, a chart for every arm that is compared with others."""
    found = []
    for number, (arm, rows) in enumerate(by_arm(comparisons).items(), start=1):
        name = arm_name(arm)
        title = f"{name[:1].upper()}{name[1:]} minus baseline, points with 95 % intervals (baseline · shots)"
        figure = forest_figure(rows, [arm_name(row["baseline"]) for row in rows], title)
        found.append(figure if number == 1 else replace(figure, id=f"forest-{number}"))
    return found


def forest_figure(comparisons: Sequence[Mapping[str, Any]], compared: Sequence[str], title: str) -> Figure:
    """Paired differences with their intervals; those within noise are grey. `compared` are the names of the rows."""
    names, labels = [], []
    for name, row in zip(compared, comparisons, strict=True):
        shots = f" · {row['shots']}"
        room = LABEL - len(shots)
        names.append(f"{name}{shots}")
        labels.append(chart_text((name if len(name) <= room else f"{name[: room - 1]}…") + shots))
    noisy = frozenset(place for place, row in enumerate(comparisons) if within_noise(row))
    clear = [place for place in range(len(comparisons)) if place not in noisy]
    data = [
        _forest_trace("clear", clear, names, comparisons, colour=ACCENT, symbol="circle"),
        _forest_trace("within noise", sorted(noisy), names, comparisons, colour=GREY, symbol="circle-open"),
    ]
    layout = {
        "xaxis": {"rangemode": "tozero", "zeroline": True, "zerolinewidth": 2},
        "yaxis": {
            "tickvals": list(range(len(labels))),
            "ticktext": labels,
            "range": [len(labels) - 0.3, -0.7],  # reversed: the first comparison stands at the top
            "zeroline": False,
            "automargin": False,
        },
        # About 7 pixels per character. Plotly's own margin, found by drawing again and again, does not settle beside
        # long names on a narrow screen.
        "margin": {"l": 12 + 7 * max(map(len, labels), default=0), "r": 12, "t": 10, "b": 36},
    }
    rows = [_forest_row(name, row) for name, row in zip(names, comparisons, strict=True)]
    head = (
        "compared · shots",
        "n",
        "difference",
        "95 % interval",
        "p, corrected",
        "detectable",
        "corrected",
        "outcome",
    )
    return Figure("forest", title, data, layout, Table(head, rows, noisy), height=120 + 22 * len(comparisons))


def _forest_trace(
    name: str,
    picked: Sequence[int],
    names: Sequence[str],
    comparisons: Sequence[Mapping[str, Any]],
    *,
    colour: str,
    symbol: str,
) -> dict[str, Any]:
    """The picked comparisons as points with error bars, each at the height of its place in the list."""
    x, texts, above, below = [], [], [], []
    for place in picked:
        row = comparisons[place]
        low, high = row["ci95"]
        x.append(100 * row["diff"])
        above.append(100 * (high - row["diff"]))
        below.append(100 * (row["diff"] - low))
        texts.append(f"{chart_text(names[place])}<br>{difference_text(row)}")
    return {
        "name": name,
        "x": x,
        "y": list(picked),
        "text": texts,
        "hoverinfo": "text",
        "mode": "markers",
        "marker": {"color": colour, "size": 8, "symbol": symbol},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "color": colour,
            "thickness": 1.6,
            "width": 0,
        },
    }


def _forest_row(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = row["ci95"]
    detectable = f"{100 * row['mde80_adjusted']:.1f}" if "mde80_adjusted" in row else "not known"
    outcome = "above" if row["diff"] > 0 else "below"
    if within_noise(row):
        outcome = "within noise"
    return (
        name,
        str(row["n"]),
        f"{100 * row['diff']:+.1f}",
        f"{100 * low:+.1f} to {100 * high:+.1f}",
        f"{row['p_adjusted']:.2g}",
        f"{100 * row['mde80']:.1f}",
        detectable,
        outcome,
    )


def difference_text(row: Mapping[str, Any]) -> str:
    """A difference in points with its interval, n and p-value."""
    low, high = row["ci95"]
    return (
        f"{100 * row['diff']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}], n = {row['n']}, p = {row['p_adjusted']:.2g}"
    )


def cost_figure(results: Results, model_calls: int, log: Sequence[Mapping[str, Any]]) -> Figure:
    """Mean accuracy against the calls spent on training; arms that need none are level lines."""
    arms = list(results.draws)
    means = {}
    for arm in arms:
        mean = mean_over_shots(results, arm)
        if mean is not None:
            means[arm] = mean
    data = _level_lines(means, arms, 1.08 * model_calls)
    dev_calls, dev_values = [], []
    for line in log:
        calls, value = logged_number(line, "lvlm_calls"), logged_number(line, "val/reward")
        if calls is not None and value is not None:
            dev_calls.append(calls)
            dev_values.append(100 * value)
    if dev_calls:
        data.append(
            {
                "name": "learned on dev, epoch by epoch",
                "x": dev_calls,
                "y": dev_values,
                "mode": "markers",
                "marker": {"size": 5, "color": ACCENT, "symbol": "circle-open"},
                "hovertemplate": "%{x:,} calls: %{y:.1f}<extra>dev</extra>",
            }
        )
    if "learned" in means:
        data.append(
            {
                "name": "learned",
                "x": [model_calls],
                "y": [100 * means["learned"].value],
                "mode": "markers",
                "marker": {"color": ACCENT, "size": 11},
                "hovertemplate": f"learned: {means['learned']}<extra></extra>",
                "error_y": {**error_bars([means["learned"]]), "color": ACCENT},
            }
        )
    calls_axis = {"title": {"text": "training calls"}, "rangemode": "tozero"}
    layout = {"xaxis": {**calls_axis, "tickformat": ","}, "yaxis": {"title": {"text": "mean accuracy, %"}}}
    rows = []
    for arm, mean in means.items():
        spent = model_calls if arm.startswith("learned") else 0
        rows.append((arm_name(arm), f"{spent:,}", str(mean)))
    table = Table(("who chooses", "training calls", "mean accuracy, %"), rows)
    return Figure("cost", "Mean accuracy over shots against training calls", data, layout, table, height=400)


def _level_lines(means: Mapping[str, Estimate], arms: Sequence[str], end: float) -> list[dict[str, Any]]:
    """Level lines from 0 to `end` calls: zero-shot, random, the best arms without training, and the oracle."""
    untrained = {arm: mean.value for arm, mean in means.items() if not arm.startswith(("learned", "oracle"))}
    choosers = [arm for arm in untrained if arm not in HIDDEN]
    best = max(untrained, key=lambda arm: untrained[arm], default="")
    chooser = max(choosers, key=lambda arm: untrained[arm], default="")
    additions = {chooser: ", the best that chooses without training", best: ", the best without training"}
    lines = []
    for arm in dict.fromkeys(("zero_shot", "random", chooser, best, "oracle")):  # each once
        if arm in means:
            colour, dash = style(arm, arms)
            name = arm_name(arm) + additions.get(arm, "")
            lines.append(
                {
                    "x": [0, end],
                    "y": [100 * means[arm].value] * 2,
                    "mode": "lines",
                    "line": {"color": colour, "dash": dash, "width": 1.6},
                    "name": name,
                    "hovertemplate": f"{chart_text(name)}: {means[arm]}<extra></extra>",
                }
            )
    return lines


def mean_over_shots(results: Results, arm: str) -> Estimate | None:
    """The mean of an arm over the shots 1-4 that were evaluated, item by item; None if it lacks some of them.

    An arm that shows nothing has one value at any number of shots.
    """
    evaluated: set[int] = set()
    for other in results.draws:
        evaluated.update(n for n in results.shots(other) if 1 <= n <= 4)
    shots = sorted(evaluated) if results.shots(arm) != [0] else [0]
    if not shots or not set(shots) <= set(results.shots(arm)):
        return None
    by_shots = [results.accuracy(arm, n) for n in shots]  # (items,) each
    return Estimate.of(np.mean(by_shots, axis=0), results.images)


# Where accuracy is lost, in the order of the choice, and its colour; docs/evaluation.md says how each is measured.
REGRET = {"pool": "#8f6bc4", "count": "#c79a1b", "choice": ACCENT, "order": "#2f7fc1"}


def regret_figure(regret: Mapping[str, Mapping[str, float]]) -> Figure:
    """What the learned selector loses by shots, in points, split by where it loses it."""
    shots = sorted(regret, key=int)
    data = []
    for kind, colour in REGRET.items():
        if not any(kind in regret[n] for n in shots):
            continue
        data.append(
            {
                "type": "bar",
                "name": kind,
                "x": [shots_name(int(n)) for n in shots],
                "y": [100 * regret[n].get(kind, 0.0) for n in shots],
                "marker": {"color": colour},
                "hovertemplate": f"{kind}: %{{y:.1f}}<extra></extra>",
            }
        )
    layout = {"barmode": "relative", "bargap": 0.5, "yaxis": {"title": {"text": "points lost"}}, "xaxis": {}}
    keys = [*REGRET, "total"]
    counts = [str(regret[n].get("n", "")) for n in shots]  # it is measured on some of the items only
    rows = []
    for n, count in zip(shots, counts, strict=True):
        losses = [percent(regret[n].get(key)) for key in keys]
        rows.append((shots_name(int(n)), count, *losses))
    items = ""
    if all(counts):
        distinct = list(dict.fromkeys(counts))
        items = f", n = {' and '.join(distinct)}"
    table = Table(("shots", "n", *keys), rows)
    return Figure("regret", f"Points lost, by where{items}", data, layout, table, height=340)
