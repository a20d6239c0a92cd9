"""What was read, and the data quality of groups, as rows for people and for files."""

from __future__ import annotations

from leverplus.doctor.evaluation import count_differences, settled_differences
from leverplus.doctor.records import GroupStats, Published, Record
from leverplus.doctor.words import UNPRINTED, overview_line

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
    if record.read_as:
        shown = []
        for ours, name in record.read_as.items():
            shown.append(ours if ours == name else overview_line("renamed", ours=ours, name=name))
        lines.append(overview_line("read_as", names=", ".join(shown)))
    if record.series:
        named = []
        for series in record.series:
            count = sum(line.epoch is not None for line in series.epochs)
            line = "training_of_one" if count == 1 else "training"
            label = series.label or overview_line("unnamed_training")
            named.append(overview_line(line, label=label, stage=series.stage, count=count, unit=series.unit))
        lines.append(overview_line("trainings", names=", ".join(named)))
    published = record.published
    if published is not None and published.arms:
        sizes = sorted({arm.n for arm in published.arms if arm.n is not None})
        line = "results" if sizes else "results_without_n"
        lines.append(overview_line(line, rows=len(published.arms), sizes=", ".join(map(str, sizes))))
    if published is not None:
        lines += _conclusions(record, published)
    if record.report is not None:
        arms = ", ".join(record.report.get("arms", {}))
        lines.append(overview_line("evaluation", arms=arms, n=record.report.get("n")))
    return lines


def _conclusions(record: Record, published: Published) -> list[str]:
    """What the printed numbers settle, what they leave open, and what to look at next because it is not printed."""
    lines, settled, judged = [], settled_differences(record), count_differences(record)
    if published.arms:
        line = "concluded" if settled else "nothing_concluded"
        lines.append(overview_line(line, differences="; ".join(settled)))
    still = []
    if judged > len(settled):
        still.append(overview_line("open_differences", open=judged - len(settled), judged=judged))
    if published.arms and not judged:
        still.append(overview_line("open_rows"))
    if not published.arms and published.gains:
        still.append(overview_line("open_gains"))
    if still:
        lines.append(overview_line("open", questions="; ".join(still)))
    missing = _unprinted(record, published)
    if missing:
        lines.append(overview_line("unprinted", measures=", ".join(missing)))
    return lines


def _unprinted(record: Record, published: Published) -> list[str]:
    trained = record.stages("grpo")
    missing = []
    if any(own.label not in published.live and own.last("frac_reward_zero_std") is None for own in trained):
        missing.append(overview_line("unprinted_flat"))
    if trained:
        missing += [text for name, text in UNPRINTED.items() if all(own.last(name) is None for own in trained)]
    if all(own.last("val/accuracy") is not None for own in trained):
        missing = [text for text in missing if text != UNPRINTED["val/reward"]]
    if trained and not published.identical_picks and not record.read_as:  # other libraries choose no demonstrations
        missing.append(overview_line("unprinted_changes"))
    if published.arms or published.gains:
        missing.append(overview_line("unprinted_items"))
    return missing
