"""Data quality of a store, an RL file or a run as a page of charts, in one file that opens anywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from leverplus.doctor.findings import Finding
from leverplus.doctor.records import GroupStats, Record
from leverplus.doctor.tables import quality_rows, source_rows
from leverplus.report.build import ASSETS, SCRIPTS, script_json
from leverplus.report.figures import ACCENT, GREY, Figure, percent
from leverplus.report.tables import Table


def quality_figures(groups: GroupStats) -> list[Figure]:
    """One chart for everything that was measured: accuracies, tiers, positives, members, lengths, origins, gt_prob."""
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
    return [figure for figure in figures if figure.data[0]["x"]]


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
    own = groups.sources.values()
    shown = {
        "right": (ACCENT, [100 * source.positive for source in own]),
        "mean accuracy": (GREY, [100 * source.accuracy for source in own]),
    }
    data = [
        {"type": "bar", "name": name, "x": names, "y": values, "marker": {"color": colour}}
        for name, (colour, values) in shown.items()
    ]
    layout = {"barmode": "group", "xaxis": {"type": "category"}, "yaxis": {"title": {"text": "%"}}}
    return Figure("quality-origins", "Right members by origin", data, layout, Table(head, rows), height=300)


def _calibration(tenths: Mapping[int, tuple[int, float]]) -> Figure:
    """Mean accuracy for every tenth of gt_prob: does the probability of the truth say what accuracy says?"""
    named = {f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}": pair for tenth, pair in tenths.items()}
    data = [
        {
            "x": list(named),
            "y": [100 * accuracy for _, accuracy in named.values()],
            "text": [f"{members:,} members" for members, _ in named.values()],
            "mode": "lines+markers",
            "line": {"color": ACCENT, "width": 2},
        }
    ]
    layout = {
        "xaxis": {"title": {"text": "gt_prob"}, "type": "category"},
        "yaxis": {"title": {"text": "mean accuracy, %"}, "range": [0, 100]},
    }
    rows = [(name, f"{members:,}", percent(accuracy)) for name, (members, accuracy) in named.items()]
    table = Table(("gt_prob", "members", "mean accuracy, %"), rows)
    return Figure("quality-calibration", "Accuracy by gt_prob", data, layout, table, height=300)


def quality_page(record: Record, groups: GroupStats, findings: Sequence[Finding]) -> str:
    """The page as text: findings, charts with their numbers, and the whole table."""
    import jinja2

    figures = quality_figures(groups)
    scripts = [asset(name) for name in SCRIPTS]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    loader = jinja2.FunctionLoader(asset)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    measures = Table(("measure", "value"), [(name, _shown(value)) for name, value in quality_rows(groups)])
    return environment.get_template("quality.html.j2").render(
        title=record.source,
        findings=[finding.as_json() for finding in findings],
        figures=figures,
        measures=measures,
        style=asset("report.css"),
        figure_json=script_json({f.id: {"data": f.data, "layout": f.layout, "height": f.height} for f in figures}),
        scripts=scripts,
        script_hashes=" ".join(f"'sha256-{digest}'" for digest in digests),
    )


def asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _shown(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
