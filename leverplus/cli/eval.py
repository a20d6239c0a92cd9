"""`lever eval`: evaluate a run against every baseline."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leverplus.cli.console import Bars, add_store_option, open_from_folder, print_table, results_table
from leverplus.report.verdict import verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--split", choices=("dev", "test"), default="test", help="which items (default test)")
    parser.add_argument("--items", type=int, metavar="N", help="how many items (default: the recipe's)")
    add_store_option(parser)


def run(args: argparse.Namespace) -> int:
    from leverplus.pipeline import evaluate_run, train_run

    with Bars() as bars:
        made = open_from_folder(args.run, args.store, bars)
        report = evaluate_run(made, train_run(made), args.split, args.items)
    if args.json:
        print(json.dumps(report))
        return 0
    print_table(results_table(report))
    print(verdict(report))
    return 0
