"""The charts of a result as plotly specifications, each with the table of the numbers it draws."""

from __future__ import annotations

import html
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leverplus.evaluation.names import arm_name, shots_name
from leverplus.evaluation.predictions import Results
from leverplus.report.data import number
from leverplus.report.tables import Table, rival
from leverplus.report.verdict import within_noise
from leverplus.stats import known_interval

ACCENT, GREY = "#e0592a", "#9aa0a6"
STYLES = {
    "learned": (ACCENT, "solid"),
    "nearest_both": ("#2f7fc1", "solid"),
    "nearest_text": ("#2a9d8f", "solid"),
    "nearest_image": ("#8f6bc4", "solid"),
    "random": (GREY, "solid"),
    "zero_shot": (GREY, "dot"),
    "oracle": ("#c79a1b", "dash"),
}
"""Colour and line of the arms that every run has; the colours are readable on white and on dark grey."""
HIDDEN = ("majority", "label_vote", "oracle_any", "oracle_exhaustive")
"""Arms of the accuracy chart that appear when their name is clicked; their numbers are in its table."""
LABEL = 30
"""Characters of a name beside a chart."""
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


def plain(text: str) -> str:
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
        return cls(float(np.asarray(scores, dtype=np.float64).mean()), known_interval(scores, clusters=clusters))

    def __str__(self) -> str:
        if self.interval is None:
            return f"{100 * self.value:.1f}"
        low, high = self.interval
        return f"{100 * self.value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


Estimates = Mapping[str, Mapping[int, Estimate]]


def estimates(results: Results) -> Estimates:
    """Accuracy of every arm at every number of shots, with an interval over images."""
    return {
        arm: {n: Estimate.of(results.accuracy(arm, n), results.images) for n in results.shots(arm)}
        for arm in results.draws
    }


def error_bars(values: Sequence[Estimate]) -> dict[str, Any]:
    """Plotly error bars in points, from the value to the ends of its interval."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if e.interval is None else 100 * (e.interval[1] - e.value) for e in values],
        "arrayminus": [0.0 if e.interval is None else 100 * (e.value - e.interval[0]) for e in values],
        "thickness": 1.2,
        "width": 3,
    }


def accuracy_figure(measured: Estimates, n: int) -> Figure:
    """Accuracy by shots for all arms; zero-shot is a level line."""
    arms = list(measured)
    most = max((shots for by_shots in measured.values() for shots in by_shots), default=1)
    side_by_side = [arm for arm in arms if arm not in HIDDEN and set(measured[arm]) != {0}]
    data = []
    for arm in arms:
        colour, dash = style(arm, arms)
        place = side_by_side.index(arm) if arm in side_by_side else 0
        shots = sorted(measured[arm])
        values = [measured[arm][s] for s in shots]
        shift = 0.05 * (place - (len(side_by_side) - 1) / 2)  # error bars beside each other
        trace: dict[str, Any] = {
            "name": arm_name(arm),
            "x": [s + shift if s else 0 for s in shots],
            "y": [100 * e.value for e in values],
            "text": [f"{plain(arm_name(arm))}, {shots_name(s)}<br>{e}" for s, e in zip(shots, values, strict=True)],
            "hoverinfo": "text",
            "mode": "lines+markers",
            "line": {"color": colour, "dash": dash, "width": 3 if arm == "learned" else 1.6},
            "marker": {"size": 8 if arm == "learned" else 6},
            "error_y": {**error_bars(values), "color": colour},
            "visible": arm not in HIDDEN,
        }
        data.append(trace)
        if shots == [0] and arm not in HIDDEN:
            level: dict[str, Any] = {
                "x": [0, most + 0.25],
                "y": [100 * values[0].value] * 2,
                "mode": "lines",
                "line": trace["line"],
            }
            data.append({**level, "showlegend": False, "hoverinfo": "skip"})
    layout = {
        "xaxis": {
            "title": {"text": "demonstrations shown"},
            "dtick": 1,
            "range": [-0.25, most + 0.3],
            "zeroline": False,
        },
        "yaxis": {"title": {"text": "accuracy, %"}, "rangemode": "tozero"},
    }
    head = ("who chooses", *(shots_name(s) for s in range(most + 1) if any(s in m for m in measured.values())))
    columns = [s for s in range(most + 1) if any(s in m for m in measured.values())]
    rows = [(arm_name(arm), *(str(measured[arm].get(s, "")) for s in columns)) for arm in arms]
    title = f"Accuracy by shots, % with 95 % intervals, n = {n}"
    return Figure("accuracy", title, data, layout, Table(head, rows), height=460)


FOREST = "Learned minus baseline, points with 95 % intervals (baseline · shots)"


def forest_figure(
    comparisons: Sequence[Mapping[str, Any]], compared: Sequence[str] | None = None, title: str = FOREST
) -> Figure:
    """Paired differences with their intervals; those inside the noise are grey.

    `compared` are the names of the rows, by default whom the learned arm is compared with.
    """
    compared = [rival(r) for r in comparisons] if compared is None else compared
    names = [f"{name} · {r['shots']}" for name, r in zip(compared, comparisons, strict=True)]
    labels = [plain(name if len(name) <= LABEL else f"{name[: LABEL - 1]}…") for name in names]
    data = []
    for name, colour, noise in (("clear", ACCENT, False), ("inside the noise", GREY, True)):
        picked = [k for k, row in enumerate(comparisons) if within_noise(row) is noise]
        rows = [comparisons[k] for k in picked]
        data.append(
            {
                "name": name,
                "x": [100 * r["diff"] for r in rows],
                "y": picked,
                "text": [f"{plain(names[k])}<br>{difference(comparisons[k])}" for k in picked],
                "hoverinfo": "text",
                "mode": "markers",
                "marker": {"color": colour, "size": 8, "symbol": "circle-open" if noise else "circle"},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [100 * (r["ci95"][1] - r["diff"]) for r in rows],
                    "arrayminus": [100 * (r["diff"] - r["ci95"][0]) for r in rows],
                    "color": colour,
                    "thickness": 1.6,
                    "width": 0,
                },
            }
        )
    layout = {
        "xaxis": {"rangemode": "tozero", "zeroline": True, "zerolinewidth": 2},
        "yaxis": {
            "tickvals": list(range(len(labels))),
            "ticktext": labels,
            "range": [len(labels) - 0.3, -0.7],
            "zeroline": False,
            "automargin": False,
        },
        # a margin that is found by drawing again and again does not settle beside long names on a narrow screen
        "margin": {"l": 12 + 7 * max(map(len, labels), default=0), "r": 12, "t": 10, "b": 36},
    }
    rows_shown = [
        (
            name,
            str(r["n"]),
            f"{100 * r['diff']:+.1f}",
            f"{100 * r['ci95'][0]:+.1f} to {100 * r['ci95'][1]:+.1f}",
            f"{r['p_adjusted']:.2g}",
            f"{100 * r['mde80']:.1f}",
            f"{100 * r['mde80_adjusted']:.1f}" if "mde80_adjusted" in r else "not known",
            "inside the noise" if within_noise(r) else "above" if r["diff"] > 0 else "below",
        )
        for name, r in zip(names, comparisons, strict=True)
    ]
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
    muted = frozenset(k for k, row in enumerate(comparisons) if within_noise(row))
    return Figure("forest", title, data, layout, Table(head, rows_shown, muted), height=120 + 22 * len(comparisons))


def difference(row: Mapping[str, Any]) -> str:
    low, high = row["ci95"]
    return (
        f"{100 * row['diff']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}], n = {row['n']}, p = {row['p_adjusted']:.2g}"
    )


def cost_figure(results: Results, model_calls: int, log: Sequence[Mapping[str, Any]]) -> Figure:
    """Mean accuracy against the calls spent on training; arms that need none are level lines."""
    arms = list(results.draws)
    means = {arm: mean for arm in arms if (mean := mean_over_shots(results, arm)) is not None}
    untrained = {arm: e.value for arm, e in means.items() if not arm.startswith(("learned", "oracle"))}
    best = max(untrained, key=lambda arm: untrained[arm], default=None)
    chooser = max((arm for arm in untrained if arm not in HIDDEN), key=lambda arm: untrained[arm], default=None)
    said = {chooser: ", the best that chooses without training", best: ", the best without training"}
    data: list[dict[str, Any]] = []
    for arm in dict.fromkeys(("zero_shot", "random", chooser, best, "oracle")):
        if arm in means:
            colour, dash = style(arm, arms)
            name = arm_name(arm) + said.get(arm, "")
            line = {"color": colour, "dash": dash, "width": 1.6}
            level = {"x": [0, 1.08 * model_calls], "y": [100 * means[arm].value] * 2, "mode": "lines", "line": line}
            data.append({**level, "name": name, "hovertemplate": f"{plain(name)}: {means[arm]}<extra></extra>"})
    steps = [
        (calls, value)
        for line in log
        if (calls := number(line, "lvlm_calls")) is not None and (value := number(line, "val/reward")) is not None
    ]
    if steps:
        data.append(
            {
                "name": "learned on dev, epoch by epoch",
                "x": [calls for calls, _ in steps],
                "y": [100 * value for _, value in steps],
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
    rows = [(arm_name(a), f"{model_calls if a.startswith('learned') else 0:,}", str(e)) for a, e in means.items()]
    table = Table(("who chooses", "training calls", "mean accuracy, %"), rows)
    return Figure("cost", "Mean accuracy over shots against training calls", data, layout, table, height=400)


def mean_over_shots(results: Results, arm: str) -> Estimate | None:
    """The mean of an arm over the shots 1-4 that were evaluated, item by item; None if it lacks some of them.

    An arm that shows nothing has one value at any number of shots.
    """
    evaluated = {n for other in results.draws for n in results.shots(other) if 1 <= n <= 4}
    shots = sorted(evaluated) if results.shots(arm) != [0] else [0]
    if not shots or not set(shots) <= set(results.shots(arm)):
        return None
    return Estimate.of(np.mean([results.accuracy(arm, n) for n in shots], axis=0), results.images)


REGRET = {"pool": "#8f6bc4", "count": "#c79a1b", "choice": ACCENT, "order": "#2f7fc1"}


def regret_figure(regret: Mapping[str, Mapping[str, float]]) -> Figure:
    """What the learned selector loses by shots, in points, split by where it loses it."""
    shots = sorted(regret, key=int)
    data = [
        {
            "type": "bar",
            "name": kind,
            "x": [shots_name(int(n)) for n in shots],
            "y": [100 * regret[n].get(kind, 0.0) for n in shots],
            "marker": {"color": colour},
            "hovertemplate": f"{kind}: %{{y:.1f}}<extra></extra>",
        }
        for kind, colour in REGRET.items()
        if any(kind in regret[n] for n in shots)
    ]
    layout = {"barmode": "relative", "bargap": 0.5, "yaxis": {"title": {"text": "points lost"}}, "xaxis": {}}
    keys = [*REGRET, "total"]
    counts = [str(regret[n].get("n", "")) for n in shots]  # it is measured on some of the items only
    rows = [
        (shots_name(int(n)), count, *(percent(regret[n].get(key)) for key in keys))
        for n, count in zip(shots, counts, strict=True)
    ]
    items = f", n = {' and '.join(dict.fromkeys(counts))}" if all(counts) else ""
    table = Table(("shots", "n", *keys), rows)
    return Figure("regret", f"Points lost, by where{items}", data, layout, table, height=340)
