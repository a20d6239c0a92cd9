"""`lever bench plans`: every plan on the world in one table, with intervals."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leverplus.bench.plans import HEADER, PLANS, QUICK_RECIPES, cells, conclusion, run_plans
from leverplus.bench.runs import Workshop, seed_count
from leverplus.cli.console import Bars, add_store_option, print_table
from leverplus.store.location import default_store_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("plans",), help="plans: all recipes of the plans against their baseline")
    parser.add_argument("--quick", action="store_true", help="two recipes at tiny sizes: does it run?")
    parser.add_argument("--seeds", type=seed_count, metavar="N", help="seeds 0 .. N-1 (default 3, quick 2)")
    parser.add_argument("--recipes", metavar="A,B,...", help="only these, and the baseline")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the runs (default runs/bench-plans)")
    add_store_option(parser)


def run(args: argparse.Namespace) -> int:
    folder = args.out or Path("runs") / ("bench-plans-quick" if args.quick else "bench-plans")
    names = args.recipes.split(",") if args.recipes else QUICK_RECIPES if args.quick else tuple(PLANS)
    with Bars() as bars:
        workshop = Workshop(folder, args.store or default_store_path(), bars.say, bars.show)
        found = run_plans(names, args.seeds or (2 if args.quick else 3), workshop, quick=args.quick)
    if args.json:
        print(json.dumps(found))
        return 1 if found["failed"] else 0
    from rich.table import Table

    table = Table(*HEADER, title=f"{found['n']} test items, {found['seeds']} seeds a recipe", title_justify="left")
    for row in found["recipes"]:
        table.add_row(*cells(row))
    print_table(table)
    print(conclusion(found))
    for name, why in found["failed"].items():
        print(f"{name} failed: {why}")
    print(f"results in {folder}/bench.json, as Markdown in {folder}/bench.md")
    return 1 if found["failed"] else 0
