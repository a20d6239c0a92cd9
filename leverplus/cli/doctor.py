"""`lever doctor`: why did this training not work? Findings on a run, a store, RL data or a training log."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from leverplus import rundir
from leverplus.errors import LeverError, WrongUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leverplus.doctor.findings import Finding
    from leverplus.doctor.records import GroupStats

HELP = "why did this training not work?"
WIDTH = 110


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets",
        metavar="TARGET",
        type=Path,
        nargs="*",
        help="a run folder, a score store, an RL-data JSON, a training log of this or another library, or a report; "
        "several logs are compared with each other",
    )
    parser.add_argument(
        "--map",
        metavar="NAME=COLUMN,...",
        help="which logged name is which metric, where the doctor cannot tell (reward=my_reward,kl=k)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the data quality as a table of CSV")
    parser.add_argument("--queries", type=Path, metavar="FILE", help="write a CSV file with a line for every query")
    parser.add_argument(
        "--candidates", type=Path, metavar="FILE", help="write a CSV file with a line for every scored sequence"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the data quality as a page with charts")
    parser.add_argument(
        "--reward",
        metavar="MODE",
        help="instead of checking: show how this reward is distributed over the sequences of a file",
    )
    parser.add_argument(
        "--weights",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="with --reward: values of the section [reward]",
    )
    parser.add_argument(
        "--check",
        action="append",
        default=[],
        metavar="package.module:function",
        help="also run this check of your own (takes a record, returns findings); may be repeated",
    )
    parser.add_argument(
        "--gallery", action="store_true", help="list recipes with known mistakes, and what the doctor finds in each"
    )


def run(args: argparse.Namespace) -> int:
    from leverplus.doctor.examine import examine
    from leverplus.doctor.listing import Listing
    from leverplus.doctor.logs.names import user_names
    from leverplus.doctor.read import is_run, read_targets
    from leverplus.doctor.tables import overview, quality_rows

    if args.gallery:
        return _show_gallery(args.json)
    if not args.targets:
        raise WrongUsage(
            "name what to examine: `lever doctor TARGET`, or list the recipes with known mistakes: `lever "
            "doctor --gallery`"
        )
    if args.reward is not None or args.weights:
        return _show_spread(args)
    with Listing(args.queries, args.candidates) as listing:
        record = read_targets(args.targets, listing, user_names(args.map))
        if record.groups is None and (args.csv or args.queries or args.candidates or args.html):
            raise LeverError(
                f"{record.source} holds no groups, so there is no data quality to write; leave --csv, --queries, "
                "--candidates and --html out"
            )
        if args.targets[0].is_dir() and (args.queries or args.candidates):
            raise LeverError("a run folder keeps no single scores; give its store, where they are, or leave these out")
    findings = examine(record, args.check)
    result = {"findings": [finding.as_json() for finding in findings]}
    if len(args.targets) == 1 and is_run(args.targets[0]):
        rundir.write_text(args.targets[0] / rundir.FINDINGS, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if args.html is not None and record.groups is not None:
        from leverplus.report.quality import quality_page

        rundir.write_text(args.html, quality_page(record, record.groups, findings))
    if args.csv is not None and record.groups is not None:
        lines = [f"{name.replace(',', ' ')},{value}" for name, value in quality_rows(record.groups)]
        rundir.write_text(args.csv, "\n".join(["measure,value", *lines]) + "\n")
    if args.json:
        quality = {} if record.groups is None else {"quality": dict(quality_rows(record.groups))}
        known = {"source": record.source, "read": overview(record), "read_as": dict(record.read_as)}
        print(json.dumps({**known, **result, **quality}, ensure_ascii=False))
        return 0
    if record.groups is not None:
        _show_quality(record.groups)
    _show(findings, record.source, overview(record))
    return 0


def _show_gallery(as_json: bool) -> int:
    """The runs with known mistakes, what is wrong with each and which findings it shows."""
    from rich.table import Table

    from leverplus.cli.console import print_table
    from leverplus.recipe.recipe import gallery_names, load_recipe

    recipes = {name: load_recipe(name) for name in gallery_names()}
    if as_json:
        texts = {name: {"purpose": own.purpose, "expected": own.expected} for name, own in recipes.items()}
        print(json.dumps({"gallery": texts}))
        return 0
    table = Table("recipe", "what is wrong", "findings")
    table.columns[0].min_width = max(map(len, recipes))  # a name that is cut cannot be typed
    for name, own in recipes.items():
        table.add_row(name, own.purpose, own.expected)
    print_table(table)
    print("Type `lever run gallery/NAME --ignore-findings`, then `lever doctor runs/NAME`.")
    return 0


def _show_spread(args: argparse.Namespace) -> int:
    """The distribution of one reward over the sequences of a store, a group file or RL data."""
    from leverplus.doctor.spread import measure_spread, reward_of

    if args.reward is None:
        raise WrongUsage("--weights belong to a reward: add --reward MODE, such as --reward hard_plus_soft")
    if args.queries or args.candidates:
        raise WrongUsage("--reward writes --csv and --html; leave --queries and --candidates out")
    found = measure_spread(args.targets[0], reward_of(args.reward, args.weights))
    title = " ".join([f"reward {args.reward}", *args.weights, f"on {args.targets[0]}"])
    if args.csv is not None:
        bins = [
            f"right {a:.6g} to {b:.6g},{right}\nwrong {a:.6g} to {b:.6g},{wrong}"
            for a, b, right, wrong in found.histogram()
        ]
        lines = [f"{name.replace(',', ' ')},{value}" for name, value in found.rows()]
        rundir.write_text(args.csv, "\n".join(["measure,value", *lines, *bins]) + "\n")
    if args.html is not None:
        from leverplus.report.spread import spread_page

        rundir.write_text(args.html, spread_page(found, title))
    if args.json:
        print(json.dumps({"reward": args.reward, "measures": dict(found.rows()), "histogram": found.histogram()}))
        return 0
    print(title)
    for name, value in found.rows():
        print(f"  {name:<40} {value:>10.4g}" if isinstance(value, float) else f"  {name:<40} {value:>10,}")
    return 0


def _show_quality(groups: GroupStats) -> None:
    from rich.table import Table

    from leverplus.cli.console import print_table
    from leverplus.doctor.tables import quality_rows, source_rows

    table = Table("measure", title="data quality", title_justify="left")
    table.add_column("value", justify="right")
    for name, value in quality_rows(groups):
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    print_table(table)
    if len(groups.sources) > 1:
        header, rows = source_rows(groups)
        table = Table(*header, title="by origin", title_justify="left")
        for row in rows:
            table.add_row(*row)
        print_table(table)


def _show(findings: Sequence[Finding], source: str, read: Sequence[str]) -> None:
    from textwrap import fill

    for line in read:
        print(fill(line, WIDTH, subsequent_indent="  "))
    if not findings:
        print(f"{source}: no findings. What was not measured was not judged; docs/doctor.md lists what is looked at.")
        return
    severities = [finding.severity for finding in findings]
    several = {"error": "errors", "warning": "warnings", "info": "remarks"}
    one = {"error": "error", "warning": "warning", "info": "remark"}
    counts = {kind: severities.count(kind) for kind in several}
    counted = [f"{count} {(one if count == 1 else several)[kind]}" for kind, count in counts.items() if count]
    print(f"{source}: {', '.join(counted)}; root causes first\n")
    for number, finding in enumerate(findings, start=1):
        print(fill(f"{number}. [{finding.severity}] {finding.code}: {finding.title}", WIDTH, subsequent_indent="   "))
        evidence = ", ".join(f"{key} {value}" for key, value in finding.evidence.items())
        parts = {"evidence": evidence, "cause": finding.cause, "try": finding.cure}
        if finding.consequences:
            parts["explains"] = ", ".join(finding.consequences)
        if finding.fix is not None:
            parts["fix"] = " ".join(f"--set {key}={json.dumps(value)}" for key, value in finding.fix["set"].items())
        for name, text in parts.items():
            print(fill(f"   {name}: {text}", WIDTH, subsequent_indent="     "))
        print()
