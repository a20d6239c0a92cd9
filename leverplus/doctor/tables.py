"""What was read, and the data quality of groups, as rows for people and for files."""

from __future__ import annotations

from leverplus.doctor.evaluation import settled_differences
from leverplus.doctor.records import GroupStats, Record

Row = tuple[str, float | int | str]


def quality_rows(groups: GroupStats) -> list[Row]:
    """(measure, value), only what was measured; shares and accuracies in [0, 1]."""
    what = "accuracy" if groups.scale == "accuracy" else "gain"
    rows: list[Row | None] = [
        ("queries", groups.queries),
        ("members", groups.members),
        ("repeated members", groups.members - groups.distinct),
        ("members without a measured reward", groups.unmeasured),
        (f"members with {what} above 0", groups.positive),
        (f"mean {what}", groups.accuracy),
        (f"best {what} of a group, mean", groups.oracle),
        ("headroom (best - mean)", groups.oracle - groups.accuracy),
        *_quartiles("members of a query", groups.size_quartiles),
        *_quartiles("positives of a query", groups.positive_quartiles),
        ("flat queries (no spread at all)", groups.flat),
        ("queries without a right member", groups.all_zero),
        ("queries with right members only", groups.all_one),
        (f"different {what} values in a query, mean", groups.levels),
        _known("mean gt_prob", groups.gt_prob),
        _known("largest gt_prob", groups.gt_prob_largest),
        _known("rank correlation of gt_prob and accuracy", groups.correlation),
        _known("the same inside queries, mean", groups.within),
        _known("accuracy of the selector's first pick", groups.pick),
        _known("best in the group, same queries", groups.picked_oracle),
        _known("queries whose pick is 0.2 behind the best", groups.behind),
        _known("smallest pool", groups.pool),
    ]
    rows += [(f"sequences of {length} demonstrations", count) for length, count in groups.lengths.items()]
    if groups.scale == "accuracy":
        rows += [(f"members with accuracy {name}", count) for name, count in groups.bins.items()]
        rows += [(f"queries of tier {name}", count) for name, count in groups.tiers.items()]
    return [row for row in rows if row is not None]


def _known(name: str, value: float | None) -> Row | None:
    return None if value is None else (name, value)


def _quartiles(name: str, values: tuple[float, ...]) -> list[Row | None]:
    return [
        (f"{name}, {where}", value)
        for where, value in zip(("lower quartile", "median", "upper quartile"), values, strict=False)
    ]


def source_rows(groups: GroupStats) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table by origin."""
    header = ["origin", "members", "positive", "mean accuracy", "mean gt_prob"]
    rows = [
        [
            name,
            f"{own.members:,}",
            f"{own.positive:.1%}",
            f"{own.accuracy:.3f}",
            "" if own.gt_prob is None else f"{own.gt_prob:.3g}",
        ]
        for name, own in groups.sources.items()
    ]
    return header, rows


def overview(record: Record) -> list[str]:
    """What was taken from a target, and what its printed accuracies do show: a line each."""
    lines = []
    if record.series:
        counts = [sum(line.epoch is not None for line in series.epochs) for series in record.series]
        named = [
            f"{series.label or 'training'} {series.stage} ({count} epoch{'s' if count != 1 else ''})"
            for series, count in zip(record.series, counts, strict=True)
        ]
        lines.append("trainings: " + ", ".join(named))
    published = record.published
    if published is not None and published.arms:
        sizes = sorted({arm.n for arm in published.arms if arm.n is not None})
        where = f"on {', '.join(map(str, sizes))} items" if sizes else "without n"
        lines.append(f"results: {len(published.arms)} rows {where}")
        settled = settled_differences(record)
        lines.append("can be concluded: " + ("; ".join(settled) or "no difference in accuracy"))
    if record.report is not None:
        lines.append(f"evaluation: {', '.join(record.report.get('arms', {}))} on {record.report.get('n')} items")
    return lines
