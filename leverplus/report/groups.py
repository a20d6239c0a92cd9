"""What the stages learnt from: histograms of rewards, spreads and advantages, and how many groups are flat."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from leverplus.report.data import number
from leverplus.report.figures import ACCENT, Figure, plain
from leverplus.report.tables import Table

Groups = Mapping[str, Mapping[str, Any]]

KINDS = {
    "rewards": ("{stage}: rewards of the {sequences} sequences it learnt from", "reward", "sequences"),
    "spread": ("{stage}: best minus worst reward of the {groups} groups", "best minus worst reward", "groups"),
    "advantages": ("{stage}: advantages in the first epoch", "advantage", "sequences"),
}


def group_figures(groups: Groups) -> list[Figure]:
    """Up to three histograms a stage."""
    return [
        _histogram(f"{kind}-{stage}", title.format(stage=stage, **_counts(own)), own[kind], axis, of)
        for stage, own in groups.items()
        for kind, (title, axis, of) in KINDS.items()
        if isinstance(own.get(kind), Mapping)
    ]


def _counts(own: Mapping[str, Any]) -> dict[str, str]:
    return {key: _count(own, key) for key in ("groups", "sequences")}


def _count(own: Mapping[str, Any], key: str) -> str:
    value = number(own, key)
    return "" if value is None else f"{value:,.0f}"


def _histogram(name: str, title: str, found: Mapping[str, Any], axis: str, of: str) -> Figure:
    edges, counts = found["edges"], found["counts"]
    pairs = list(pairwise(edges))
    bars = {
        "type": "bar",
        "x": [(low + high) / 2 for low, high in pairs],
        "y": counts,
        "width": [high - low for low, high in pairs],
        "text": [f"{low:.3g} to {high:.3g}: {count:,}" for (low, high), count in zip(pairs, counts, strict=True)],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": ACCENT},
    }
    rows = [(f"{low:.3g} to {high:.3g}", f"{count:,}") for (low, high), count in zip(pairs, counts, strict=True)]
    layout = {"xaxis": {"title": {"text": axis}}, "yaxis": {"title": {"text": of}}, "bargap": 0.05}
    return Figure(name, plain(title), [bars], layout, Table((axis, of), rows), height=260)


def group_table(groups: Groups) -> Table:
    """Groups and sequences of every stage, and the groups that teach a policy gradient nothing."""
    keys = ("groups", "sequences", "flat", "all_wrong", "all_right")
    rows = []
    for stage, own in groups.items():
        total = number(own, "groups")
        cells = [_count(own, key) for key in keys]
        flat = number(own, "flat")
        share = f"{100 * flat / total:.1f} %" if flat is not None and total else ""
        rows.append((stage, *cells[:3], share, *cells[3:]))
    return Table(("stage", "groups", "sequences", "flat", "share flat", "none right", "all right"), rows)
