"""Shows what the stages learnt from: histograms of rewards, spreads and advantages, and how many groups are flat."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from leverplus.report.data import logged_number
from leverplus.report.figures import ACCENT, Figure, chart_text
from leverplus.report.tables import Table

Groups = Mapping[str, Mapping[str, Any]]

# A histogram of groups-STAGE.json -> title, name of the horizontal axis, what is counted.
KINDS = {
    "rewards": ("{stage}: rewards of the {sequences} sequences it learnt from", "reward", "sequences"),
    "spread": ("{stage}: best minus worst reward of the {groups} groups", "best minus worst reward", "groups"),
    "advantages": ("{stage}: advantages in the first epoch", "advantage", "sequences"),
}


def group_figures(groups: Groups) -> list[Figure]:
    """Up to three histograms per stage."""
    figures = []
    for stage, own in groups.items():
        for kind, (title, axis, counted) in KINDS.items():
            if isinstance(own.get(kind), Mapping):
                filled = title.format(stage=stage, groups=_count(own, "groups"), sequences=_count(own, "sequences"))
                figures.append(_histogram(f"{kind}-{stage}", filled, own[kind], axis, counted))
    return figures


def _count(own: Mapping[str, Any], key: str) -> str:
    value = logged_number(own, key)
    return "" if value is None else f"{value:,.0f}"


def _histogram(name: str, title: str, found: Mapping[str, Any], axis: str, counted: str) -> Figure:
    middles, widths, texts, rows = [], [], [], []
    for (low, high), count in zip(pairwise(found["edges"]), found["counts"], strict=True):
        middles.append((low + high) / 2)
        widths.append(high - low)
        texts.append(f"{low:.3g} to {high:.3g}: {count:,}")
        rows.append((f"{low:.3g} to {high:.3g}", f"{count:,}"))
    bars = {
        "type": "bar",
        "x": middles,
        "y": found["counts"],
        "width": widths,
        "text": texts,
        "textposition": "none",  # the text is shown on hovering only
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": ACCENT},
    }
    layout = {"xaxis": {"title": {"text": axis}}, "yaxis": {"title": {"text": counted}}, "bargap": 0.05}
    return Figure(name, chart_text(title), [bars], layout, Table((axis, counted), rows), height=260)


def group_table(groups: Groups) -> Table:
    """Groups and sequences of every stage, and the groups that teach a policy gradient nothing."""
    keys = ("groups", "sequences", "flat", "all_wrong", "all_right")
    rows = []
    for stage, own in groups.items():
        total = logged_number(own, "groups")
        cells = [_count(own, key) for key in keys]
        flat = logged_number(own, "flat")
        share = f"{100 * flat / total:.1f} %" if flat is not None and total else ""
        rows.append((stage, *cells[:3], share, *cells[3:]))
    return Table(("stage", "groups", "sequences", "flat", "share flat", "none right", "all right"), rows)
