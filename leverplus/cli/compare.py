"""`lever compare`: runs side by side on the same items, or what a published table can show."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.errors import MissingFile, WrongUsage
from leverplus.evaluation.names import arm_name, shots_name

if TYPE_CHECKING:
    from leverplus.types import ItemId

LEARNED = "learned"
HEADER = ("method", "shots", "points", "95 % interval", "p", "help/harm", "verdict")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        type=Path,
        nargs="*",
        metavar="RUN",
        help="run folders, or bundles of lever fit; seeds of one recipe are combined",
    )
    parser.add_argument(
        "--baseline", metavar="NAME", help="a run, a recipe, or a way of choosing such as nearest_both (default: first)"
    )
    parser.add_argument(
        "--arm",
        metavar="ARM",
        help="which way of choosing of the runs (default: that of the bundle, learned where runs are named)",
    )
    parser.add_argument(
        "--split", choices=("train", "dev", "test"), default="test", help="which evaluation (default test)"
    )
    parser.add_argument("--from-summary", type=Path, metavar="FILE", help="a published table (JSON) instead of runs")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    if bool(args.runs) == (args.from_summary is not None):
        raise WrongUsage("name run folders, or one published table with --from-summary FILE (not both)")
    return _published(args) if args.from_summary is not None else _runs(args)


def _runs(args: argparse.Namespace) -> int:
    from leverplus.evaluation.runs import compare_runs, read_evaluated

    for folder in args.runs:
        if not folder.is_dir():
            raise MissingFile(f"there is no folder {folder}; name a run folder, or a bundle that `lever fit` wrote")
    arm, note = _compared_arm(args)
    folders = [run_of_bundle(folder) for folder in args.runs]
    read = [read_evaluated(folder, _known(folder), args.split, arm) for folder in folders]
    report = compare_runs(read, args.baseline, arm)
    if args.json:
        report["notes"] = [*report["notes"], *note]
        print(json.dumps(report))
        return 0
    for line in note:
        print(line)
    names = _names(report)
    rows = report["comparisons"]
    corrected = ", p corrected for all rows" if len(rows) > 1 else ""
    title = f"difference from {names[report['baseline']]} on {report['n']:,} {report['split']} items{corrected}"
    _print(args, title, HEADER, [_cells(row, names) for row in rows])
    for line in _what_could_be_found(rows, names):
        print(line)
    most = max((pair["shots"] for pair in report["picks"]), default=0)
    for pair in report["picks"]:
        if pair["shots"] < most:
            continue
        print(
            f"picks of {pair['second']} and {pair['first']} at {shots_name(pair['shots'])}: "
            f"{100 * pair['identical']:.0f} % identical lists, Jaccard {pair['jaccard']:.2f}"
        )
    for note in report["notes"]:
        print(f"note: {note}")
    return 0


def _compared_arm(args: argparse.Namespace) -> tuple[str, list[str]]:
    """The way of choosing that is compared, and what to say of it: a bundle's own, where nobody named one."""
    if args.arm:
        return args.arm, []
    packed = {arm for folder in args.runs if (arm := _packed_arm(folder)) is not None}
    if len(packed) != 1:
        return LEARNED, []
    (arm,) = packed
    if arm == LEARNED:
        return arm, []
    if arm == args.baseline:
        return LEARNED, [
            f"the bundle itself chooses by {arm_name(arm)}, the baseline, so the learned selector, which the bundle "
            "does not use, is compared with it; name another --baseline to compare the bundle"
        ]
    return arm, [f"the bundle chooses by {arm_name(arm)}; --arm learned compares the learned selector"]


def _packed_arm(folder: Path) -> str | None:
    """The way of choosing in a bundle; None for any other folder."""
    from leverplus.rundir import read_json
    from leverplus.selector.bundle import MANIFEST

    if not (folder / MANIFEST).is_file():
        return None
    arm = read_json(folder / MANIFEST).get("arm")
    return str(arm) if arm else None


def run_of_bundle(folder: Path) -> Path:
    """The run beside a bundle that `lever fit` made; any other folder is itself."""
    from leverplus.selector.bundle import MANIFEST

    beside = folder.with_name(f"{folder.name}.run")
    return beside if (folder / MANIFEST).is_file() and beside.is_dir() else folder


def _known(folder: Path) -> Any:
    """The items of a run's task by split, loaded only when they are asked for."""

    def ids(split: str) -> Collection[ItemId]:
        from leverplus.experiment.opening import load_run

        return {item.id for item in load_run(folder).task.items(split)}

    return ids


def _names(report: Mapping[str, Any]) -> dict[str, str]:
    """How every method is called in the table: by its way of choosing; learned ones by their runs where several are."""
    methods = report["methods"]
    several = len({method["arm"] for method in methods}) < len(methods)
    found = {}
    for method in methods:
        name, way = method["name"], arm_name(method["arm"])
        found[name] = way
        if several and name != method["arm"]:
            found[name] = name if method["arm"] == LEARNED else f"{name} ({way})"
    return found


def _row_name(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    where = "in the mean over shots" if row["shots"] == "mean" else f"at {shots_name(int(row['shots']))}"
    return f"{names[row['arm']]} {where}"


def _what_could_be_found(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[str]:
    """Where a row is within noise: how large a difference these items show; where all are, how many items to take."""
    noisy = [row for row in rows if row["within_noise"]]
    if not noisy:
        return []
    row = max(noisy, key=lambda row: row["mde80_adjusted"])
    alone = f" ({100 * row['mde80']:.1f} if it were the only one compared)" if len(rows) > 1 else ""
    lines = [
        f"{_row_name(row, names)}: a true difference of {100 * row['mde80_adjusted']:.1f} points would be found here "
        f"four times in five{alone}"
    ]
    row = max(noisy, key=lambda row: abs(row["diff"]))
    effect = round(abs(row["diff"]), 3)
    if len(noisy) == len(rows) and effect > 0.0:
        differ = max(round((row["helped"] + row["harmed"]) / row["n"], 3), effect)
        lines.append(
            f"how many items would settle {100 * row['diff']:+.1f} points ({_row_name(row, names)}): "
            f"lever plan-n --effect {effect:g} --discordance {differ:g} --comparisons {len(rows)}"
        )
    return lines


def _cells(row: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    low, high = (100 * bound for bound in row["ci95"])
    side = "above" if row["diff"] > 0 else "below"
    return [
        names[row["arm"]],
        row["shots"],
        f"{100 * row['diff']:+.2f}",
        f"{low:+.1f} to {high:+.1f}",
        f"{row['p_adjusted']:.2g}",
        f"{row['helped']}/{row['harmed']}",
        "within noise" if row["within_noise"] else side,
    ]


def _print(args: argparse.Namespace, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for the terminal, or Markdown; nothing in it is bold or arrowed."""
    from rich.table import Table

    from leverplus.cli.console import print_markdown, print_table

    table = Table(title=title, title_justify="left")
    for name in header:
        table.add_column(name, overflow="fold", no_wrap=name != HEADER[0])  # a long name goes on below
    for row in rows:
        table.add_row(*row)
    show = print_markdown if args.markdown else print_table
    show(table)


def _published(args: argparse.Namespace) -> int:
    from leverplus.evaluation.published import compare_published, read_published, row_in_words

    report = compare_published(read_published(args.from_summary), args.baseline)
    if args.json:
        print(json.dumps(report))
        return 0
    low, high = (100 * end for end in report["discordance"])
    print(f"Accuracies were read as {report['unit']}; n = {report['n']:,} items, one run per row.")
    print(
        f"A table does not say on how many items two rows differ. Assumed here: {low:.0f} % to {high:.0f} % of them, "
        "each by a full point. `Settle` means: found 80 % of the time at p < 0.05.\n"
    )
    for row in report["comparisons"]:
        print(("- " if args.markdown else "") + row_in_words(row, report["n"]))
    noise = [row for row in report["comparisons"] if all(end["within_noise"] for end in row["assuming"])]
    total = len(report["comparisons"])
    print(f"\n{len(noise)} of {total} differences are within noise over the whole range.")
    return 0
