"""`lever eval`: evaluate a run against every baseline, or sweep its checkpoints."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leverplus import rundir
from leverplus.cli.console import (
    Bars,
    add_store_option,
    open_from_folder,
    print_conclusions,
    print_markdown,
    print_table,
    results_table,
    whole_number,
)
from leverplus.rundir import lock_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--split", choices=("train", "dev", "test"), default="test", help="which items (default test)")
    parser.add_argument(
        "--items", type=whole_number, metavar="N", help="how many items, 0 for all (default: the recipe's)"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="a checkpoint of the run instead of its last, `all` for a sweep, or one from elsewhere: a folder, RUN, "
        "RUN:NAME, or a .pt or .ckpt file of the earlier code",
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument(
        "--force", action="store_true", help="evaluate even if this would choose on test items, or if the data changed"
    )
    add_store_option(parser)


def run(args: argparse.Namespace) -> int:
    with Bars() as bars:
        report = _sweep(args, bars) if args.checkpoint == "all" else _evaluate(args, bars)
    if args.json:
        print(json.dumps(report))
    elif args.checkpoint == "all":
        print_sweep(report)
    else:
        show = print_markdown if args.markdown else print_table
        show(results_table(report))
        print_conclusions(report)
    if report["chosen_on_test"] and not args.json:
        print("This was chosen on test: the best of many is too good by luck. It is marked so in the result.")
    return 0


def _evaluate(args: argparse.Namespace, bars: Bars) -> dict[str, Any]:
    from leverplus.evaluation.checkpoints import checkpoint_folder
    from leverplus.experiment.evaluate import evaluate_run
    from leverplus.experiment.opening import require_same_task
    from leverplus.experiment.start import given_policy
    from leverplus.experiment.train import recount_calls, trained_policy
    from leverplus.training.checkpoint import load_checkpoint
    from leverplus.training.given import names_elsewhere

    made = open_from_folder(args.run, args.store, bars)
    elsewhere = args.checkpoint is not None and names_elsewhere(args.checkpoint)
    named = None
    if args.checkpoint is not None and not elsewhere:  # a name that is not there is refused before the model is asked
        named = checkpoint_folder(made.folder / rundir.CHECKPOINTS, args.checkpoint, made.recipe.stages)
    with lock_folder(made.folder):
        require_same_task(made, force=args.force)
        if elsewhere:
            policy = given_policy(made, args.checkpoint)
        else:
            policy = trained_policy(made) if named is None else load_checkpoint(named)[0]
            recount_calls(made)
        return evaluate_run(made, policy, args.split, args.items, checkpoint=args.checkpoint, force=args.force)


def _sweep(args: argparse.Namespace, bars: Bars) -> dict[str, Any]:
    from leverplus.experiment.checkpoints import evaluate_checkpoints

    made = open_from_folder(args.run, args.store, bars)
    with lock_folder(made.folder):
        return evaluate_checkpoints(made, args.split, args.items, args.force)


def print_sweep(report: Mapping[str, Any]) -> None:
    from rich.table import Table

    table = Table(title=f"accuracy by shots on {report['n']} {report['split']} items", title_justify="left")
    shots = list(report["checkpoints"][0]["shots"])
    table.add_column("checkpoint", no_wrap=True)
    for name in (*shots, "mean", "95 % interval", "same picks"):
        table.add_column(name, justify="right")
    for row in report["checkpoints"]:
        interval = ""
        if row["ci95"] is not None:  # a single item or picture has none
            low, high = row["ci95"]
            interval = f"{100 * low:.1f}-{100 * high:.1f}"
        same = "" if row["agreement"] is None else f"{100 * row['agreement']['identical']:.0f} %"
        cells = [f"{100 * row['shots'][n]:.1f}" for n in shots] + [f"{100 * row['mean']:.1f}", interval]
        table.add_row(row["checkpoint"], *cells, same)
    print_table(table)
    print(f"highest mean: {report['best']}; checkpoints whose intervals overlap may differ by noise alone")
    print("same picks: share of items with the same list as at the checkpoint before")
