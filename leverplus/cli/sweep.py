"""`lever sweep`: a grid of settings on a shared store, the choice on dev, test once for the chosen."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leverplus.cli.console import Bars, add_store_option, print_table, safe_name
from leverplus.experiment.grid import configurations, read_grid, search_grid, settings_text
from leverplus.experiment.workshop import Workshop, seed_count
from leverplus.recipe.recipe import load_recipe
from leverplus.rundir import lock_folder, make_private_folder
from leverplus.store.location import default_store_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="a recipe's name or TOML file")
    parser.add_argument(
        "--grid",
        action="append",
        required=True,
        metavar="KEY=A,B,C",
        help="values to try; with several --grid all combinations are tried",
    )
    parser.add_argument("--seeds", type=seed_count, default=3, metavar="N", help="seeds 0 .. N-1 (default 3)")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="override a value of the recipe"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the sweep (default runs/sweep-RECIPE)")
    add_store_option(parser)


def run(args: argparse.Namespace) -> int:
    grid = read_grid(args.grid)
    configurations(args.recipe, args.set, grid)  # a value that no recipe takes is refused before there is a folder
    folder = args.out or Path("runs") / f"sweep-{safe_name(load_recipe(args.recipe, args.set).name)}"
    with Bars() as bars:
        workshop = Workshop(folder, args.store or default_store_path(), bars.say, bars.show)
        make_private_folder(folder)
        with lock_folder(folder):
            record = search_grid(args.recipe, args.set, grid, args.seeds, workshop)
    if args.json:
        print(json.dumps(record))
        return 0
    print_table(dev_table(record))
    chosen, test = record["chosen"], record["test"]
    print(f"chosen on dev out of {record['configurations']} configurations: {settings_text(chosen['set'])}")
    mean = test["comparisons"][-1]  # the mean over shots, or the only number of shots
    low, high = (100 * bound for bound in mean["ci95"])
    print(
        f"test, looked at once: {100 * test['accuracy']['mean']:.1f} in the mean over shots on {test['n']:,} items, "
        f"{100 * mean['diff']:+.1f} points ({low:+.1f} to {high:+.1f}) from {mean['baseline']}"
    )
    print(f"results in {folder}/sweep.json")
    return 0


def dev_table(record: Mapping[str, Any]) -> Any:
    """Every configuration of the grid with its mean dev reward, best first."""
    from rich.table import Table

    table = Table(title=f"dev reward over {record['seeds']} seeds", title_justify="left")
    for name in ("configuration", "mean", "spread"):
        table.add_column(name)
    rows = [row for row in record["tried"] if "mean" in row]
    for row in sorted(rows, key=lambda row: -row["mean"]):
        spread = "one seed" if row["spread"] is None else f"{row['spread']:.3f}"
        table.add_row(settings_text(row["set"]), f"{row['mean']:.3f}", spread)
    return table
