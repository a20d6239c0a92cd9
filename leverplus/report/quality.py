"""Writes the data quality of a store, an RL file or a run as a page of charts, in one file that opens anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leverplus.doctor.findings import Finding
from leverplus.doctor.records import GroupStats, Record
from leverplus.doctor.tables import quality_rows, source_rows
from leverplus.report.build import fill_template
from leverplus.report.figures import ACCENT, GREY, Figure, percent
from leverplus.report.tables import Table


def quality_figures(groups: GroupStats) -> list[Figure]:
    """Charts of what was measured: accuracies, tiers, right members, members, lengths, origins, calibration."""
    figures = []
    if groups.scale == "accuracy":
        figures += [
            _bars("accuracies", "Members by accuracy", "accuracy", groups.bins),
            _bars("tiers", "Queries by what they can teach", "tier", groups.tiers),
        ]
    figures += [
        _bars("positives", "Queries by number of right members", "right members", groups.positives),
        _bars("sizes", "Queries by number of members", "members", groups.sizes),
        _bars("lengths", "Members by number of demonstrations", "demonstrations", groups.lengths),
    ]
    if len(groups.sources) > 1:
        figures.append(_origins(groups))
    if groups.calibration and groups.scale == "accuracy":
        figures.append(_calibration(groups.calibration))
    return [figure for figure in figures if figure.data[0]["x"]]  # without those that have nothing to show


def _bars(name: str, title: str, axis: str, counts: Mapping[Any, int]) -> Figure:
    """Counts as bars; every value keeps its name, in order."""
    bars = {"type": "bar", "x": [str(value) for value in counts], "y": list(counts.values())}
    layout = {"xaxis": {"title": {"text": axis}, "type": "category"}, "yaxis": {"title": {"text": "count"}}}
    total = max(sum(counts.values()), 1)
    rows = [(str(value), f"{count:,}", percent(count / total)) for value, count in counts.items()]
    data = [{**bars, "marker": {"color": ACCENT}}]
    return Figure(f"quality-{name}", title, data, layout, Table((axis, "count", "%"), rows), height=280)


def _origins(groups: GroupStats) -> Figure:
    names = list(groups.sources)
    head, rows = source_rows(groups)
    right = [100 * source.positive for source in groups.sources.values()]
    accuracy = [100 * source.accuracy for source in groups.sources.values()]
    data = [
        {"type": "bar", "name": "right", "x": names, "y": right, "marker": {"color": ACCENT}},
        {"type": "bar", "name": "mean accuracy", "x": names, "y": accuracy, "marker": {"color": GREY}},
    ]
    layout = {"barmode": "group", "xaxis": {"type": "category"}, "yaxis": {"title": {"text": "%"}}}
    return Figure("quality-origins", "Right members by origin", data, layout, Table(head, rows), height=300)


def _calibration(tenths: Mapping[int, tuple[int, float]]) -> Figure:
    """Mean accuracy for every tenth of gt_prob: does a higher probability of the reference mean a better answer?"""
    names, percents, texts, rows = [], [], [], []
    for tenth, (members, accuracy) in tenths.items():
        names.append(f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}")
        percents.append(100 * accuracy)
        texts.append(f"{members:,} members")
        rows.append((names[-1], f"{members:,}", percent(accuracy)))
    data = [
        {
            "x": names,
            "y": percents,
            "text": texts,
            "mode": "lines+markers",
            "line": {"color": ACCENT, "width": 2},
        }
    ]
    layout = {
        "xaxis": {"title": {"text": "gt_prob"}, "type": "category"},
        "yaxis": {"title": {"text": "mean accuracy, %"}, "range": [0, 100]},
    }
    table = Table(("gt_prob", "members", "mean accuracy, %"), rows)
    return Figure("quality-calibration", "Accuracy by gt_prob", data, layout, table, height=300)


def quality_page(record: Record, groups: GroupStats, findings: Sequence[Finding]) -> str:
    """The page as text: findings, charts with their numbers, and the whole table."""
    figures = quality_figures(groups)
    measures = Table(("measure", "value"), [(name, _formatted(value)) for name, value in quality_rows(groups)])
    return fill_template(
        "quality.html.j2",
        figures,
        title=record.source,
        findings=[finding.as_json() for finding in findings],
        figures=figures,
        measures=measures,
    )


def _formatted(value: float | int | str) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else value
