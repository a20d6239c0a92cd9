"""`lever doctor`: why did this training not work? Findings on a run, a store, RL data or a training log."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.console import Console

from leverplus.cli.command import Outcome, Table, draw_table
from leverplus.data import rundir
from leverplus.errors import LeverError, WrongUsage
from leverplus.evaluate.names import shots_name
from leverplus_doctor.check import GRAVEST_FIRST, Finding, examine
from leverplus_doctor.checks.course import seeds_outweigh_gain
from leverplus_doctor.checks.results import printed_differences
from leverplus_doctor.logs.files import runs_of_folder
from leverplus_doctor.logs.names import user_names
from leverplus_doctor.read import is_run, read_target
from leverplus_doctor.records import GroupStats, Published, Record

WIDTH = 110


Shown = Iterator[str | Table]
SOURCES = ("origin", "members", "positive", "mean accuracy", "mean gt_prob")


@dataclass(frozen=True)
class Examined:
    """A target and what was found in it, or the sentence that says why it could not be read."""

    path: Path
    record: Record | None = None
    findings: Sequence[Finding] = ()
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {"source": str(self.path)}
        if self.record is None:
            return {**values, "problem": self.problem}
        values["read"] = overview(self.record)
        values["read_as"] = dict(self.record.read_as)
        if self.record.groups is not None:
            values["quality"] = dict(self.record.groups.measures)
        return values


def doctor(
    targets: Sequence[Path] = (),
    *,
    map_: str | None = None,
    csv: Path | None = None,
    html: Path | None = None,
    reward: str | None = None,
    weights: Sequence[str] = (),
    check: Sequence[str] = (),
) -> Outcome:
    """Why did this training not work?

    TARGET: a run folder, a score store, an RL-data JSON, a training log of this or another library, or a report;
        several logs are also compared with each other, of a folder of reports every file is examined
    --map NAME=COLUMN,...: which logged name is which metric, where the doctor cannot tell (reward=my_reward,kl=k)
    --csv FILE: write the data quality, or the reward's measures, as a table of CSV
    --html FILE: write what is printed as a page
    --reward MODE: instead of checking: show how this reward is distributed over the sequences of a file
    --weights KEY=VALUE ...: with --reward: values of the section [reward]
    --check package.module:function: also run this check of your own (takes a record, returns findings); may be
        repeated
    """
    if not targets:
        raise WrongUsage("name what to examine: `lever doctor TARGET`")
    if reward is not None or weights:
        return _spread(targets[0], reward, weights, csv)
    files = _files_of(targets)
    alone = len(files) == 1
    names = user_names(map_)
    examined = []
    for path in files:
        try:
            record = read_target(path, names)
        except LeverError as error:
            if alone:
                raise
            print(f"lever doctor: {error}", file=sys.stderr)
            examined.append(Examined(path, problem=str(error)))
            continue
        findings = examine(record, check)
        if not alone:
            findings = _with_source(findings, str(path))
        examined.append(Examined(path, record, findings))
    together: list[Finding] = []
    if not alone:
        together = _compare_trainings(examined)
    first = examined[0]
    if alone and is_run(first.path):
        _keep_findings(first)
    if csv is not None:
        groups = first.record.groups if first.record else None
        if not alone or groups is None:
            raise LeverError(
                f"{files[0]} holds no groups, or is one of several targets, so there is no data quality to write; leave "
                "--csv out"
            )
        _write_csv(csv, groups.measures)
    shown = [*_shown(examined, together)]
    if html is not None:
        _write_page(html, shown)
    found = list(together)
    told = []
    for own in examined:
        found += own.findings
        told.append(own.as_json())
    value: dict[str, Any] = {"targets": told}
    if alone:
        value = told[0]
    value["findings"] = [finding.as_json() for finding in found]
    return Outcome(value, shown, int(any(own.problem for own in examined)))


def _write_page(path: Path, shown: Sequence[str | Table]) -> None:
    """Write what is printed as a page."""
    page = Console(record=True, file=io.StringIO(), width=WIDTH)
    for part in shown:
        drawn: Any = part
        if isinstance(part, Table):
            drawn = draw_table(part)
        page.print(drawn, markup=False, highlight=False)
    rundir.write_text(path, page.export_html())


def _files_of(targets: Sequence[Path]) -> list[Path]:
    """The targets, and of a folder that is neither a run nor a log the files in it."""
    paths = []
    for target in targets:
        files = []
        if target.is_dir() and not is_run(target) and not runs_of_folder(target):
            for path in sorted(target.iterdir()):
                if path.is_file() and not path.name.startswith("."):
                    files.append(path)
        paths += files or [target]
    return paths


def _compare_trainings(examined: Sequence[Examined]) -> list[Finding]:
    """What several trainings show together: whether their seeds differ by more than they gain."""
    series = []
    paths = []
    for own in examined:
        paths.append(str(own.path))
        if own.record is not None:
            for trained in own.record.series:
                series.append(replace(trained, label=f"{own.path} {trained.label}"))
    record = Record(series=tuple(series))
    return _with_source(seeds_outweigh_gain(record), ", ".join(paths))


def _with_source(findings: Sequence[Finding], source: str) -> list[Finding]:
    return [replace(finding, source=source) for finding in findings]


def _keep_findings(own: Examined) -> None:
    """Write findings.json into a run folder, where that can be written to."""
    from leverplus_doctor.monitor import write_findings

    try:
        write_findings(own.path, own.findings)
    except LeverError as error:
        print(f"findings.json was not written ({error})", file=sys.stderr)


def _write_csv(path: Path, rows: Mapping[str, object]) -> None:
    lines = ["measure,value"]
    for name, value in rows.items():
        lines.append(f"{name.replace(',', ' ')},{value}")
    rundir.write_text(path, "\n".join(lines) + "\n")


def _spread(
    path: Path, reward: str | None, weights: Sequence[str], csv: Path | None
) -> Outcome:
    """The distribution of one reward over the sequences of a store, a group file or RL data."""
    from leverplus_doctor.spread import measure_spread, reward_of  # torch comes in

    if reward is None:
        raise WrongUsage(
            "--weights belong to a reward: add --reward MODE, such as --reward hard_plus_soft"
        )
    spread = measure_spread(path, reward_of(reward, weights))
    rows = spread.rows()
    if csv is not None:
        _write_csv(csv, rows)
    title = ["reward", reward, *weights, "on", str(path)]
    lines = [" ".join(title)]
    for name, value in rows.items():
        lines.append(f"  {name:<40} {value:>12,.4g}")
    bins = spread.histogram()
    values = {"reward": reward, "measures": rows, "histogram": bins}
    return Outcome(values, lines)


def _shown(examined: Sequence[Examined], together: Sequence[Finding]) -> Shown:
    """What was read of every target, its data quality and its findings."""
    for own in examined:
        if own.record is None:
            continue
        groups = own.record.groups
        if groups is not None:
            rows = []
            for name, value in groups.measures.items():
                rows.append([name, f"{value:,.4g}"])
            yield Table("data quality", ["measure", "value"], rows)
            if len(groups.sources) > 1:
                yield _sources_table(groups)
        for line in overview(own.record):
            yield fill(line, WIDTH, subsequent_indent="  ")
        yield from _shown_findings(own.record.source, own.findings)
    if together:
        yield from _shown_findings("all of them together", together)


def _sources_table(groups: GroupStats) -> Table:
    rows = []
    for name, source in groups.sources.items():
        cells = [name, f"{source.members:,}", f"{source.positive:.1%}"]
        cells.append(f"{source.accuracy:.3f}")
        gt_prob = ""
        if source.gt_prob is not None:
            gt_prob = f"{source.gt_prob:.3g}"
        rows.append([*cells, gt_prob])
    return Table("by origin", SOURCES, rows)


def _shown_findings(source: str, findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        yield f"{source}: no findings. What was not measured was not judged; docs/doctor.md lists what is looked at."
        return
    counts = Counter(finding.severity for finding in findings)
    counted = []
    for severity in GRAVEST_FIRST:
        name = severity.replace("info", "remark")
        if counts[severity]:
            counted.append(_counted(counts[severity], name))
    yield f"{source}: {', '.join(counted)}; root causes first\n"
    for number, finding in enumerate(findings, start=1):
        title = f"{number}. [{finding.severity}] {finding.code}: {finding.title}"
        yield fill(title, WIDTH, subsequent_indent="   ")
        evidence = [f"{key} {value}" for key, value in finding.evidence.items()]
        fixes = []
        if finding.fix is not None:
            for key, value in finding.fix["set"].items():
                fixes.append(f"--set {key}={dumps(value)}")
        parts = {
            "evidence": ", ".join(evidence),
            "cause": finding.cause,
            "try": finding.cure,
            "explains": ", ".join(finding.consequences),
            "fix": " ".join(fixes),
        }
        for name, text in parts.items():
            if text:
                yield fill(f"   {name}: {text}", WIDTH, subsequent_indent="     ")
        yield ""


def _counted(count: int, what: str) -> str:
    if count == 1:
        return f"1 {what}"
    return f"{count} {what}s"


def overview(record: Record) -> list[str]:
    """What was taken from a target, and what its printed accuracies do show: a line each."""
    lines = []
    if record.read_as:
        names = []
        for ours, name in record.read_as.items():
            source = ""
            if ours != name:
                source = f" from {name}"
            names.append(ours + source)
        lines.append(f"read as: {', '.join(names)}")
    if record.series:
        names = []
        for series in record.series:
            count = sum(line.epoch is not None for line in series.epochs)
            label = series.label or "training"
            names.append(f"{label} {series.stage} ({_counted(count, series.unit)})")
        lines.append(f"trainings: {', '.join(names)}")
    lines += _conclusions(record.published)
    if record.report is not None:
        arms = ", ".join(record.report.arms)
        lines.append(f"evaluation: {arms} on {record.report.n} items")
    return lines


def _conclusions(published: Published) -> list[str]:
    """What the printed numbers settle, and what they leave open."""
    if not published.arms:
        if not published.gains:
            return []
        return [
            "cannot be concluded: whether the printed gains are real: their rows and n are missing"
        ]
    settled = []
    total = still_open = 0
    for row in printed_differences(published):
        if row.shots == "mean":
            continue
        total += 1
        still_open += row.open
        if row.settled:
            at = f"{shots_name(int(row.shots))} (n = {row.n})"
            settled.append(f"{row.name} {100 * row.diff:+.1f} points at {at}")
    noise = total - len(settled) - still_open
    left = []
    if not total:
        left.append(
            "which row is better: no row stands beside a baseline on a known number of items"
        )
    if still_open:
        left.append(
            f"{still_open} of {total} differences from a baseline, noise or not by the share of items on which both "
            "differ, which is not printed"
        )
    if noise:
        left.append(
            f"{noise} of {total} differences from a baseline, too small for their n"
        )
    sizes = {arm.n for arm in published.arms} - {None}
    on = "without n"
    if sizes:
        on = f"on {', '.join(map(str, sorted(filter(None, sizes))))} items"
    stands = "nothing"
    if settled:
        stands = (
            f"{'; '.join(settled)}, whether both differ on 5 or on 30 % of the items"
        )
    lines = [
        f"results: {len(published.arms)} rows {on}",
        f"can be concluded about accuracy: {stands}",
    ]
    if left:
        lines.append(f"cannot be concluded: {'; '.join(left)}")
    return lines
