"""`lever run`: every stage of a recipe, resuming what is done."""

from __future__ import annotations

import argparse
import json
import time

from leverplus.cli.console import (
    Bars,
    add_run_options,
    calls_line,
    open_from_recipe,
    print_conclusions,
    print_table,
    results_table,
    say_forecast,
)
from leverplus.rundir import lock_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", default="world", help="a recipe's name or TOML file (default world)")
    add_run_options(parser)


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    with Bars() as bars:
        made = open_from_recipe(args, bars)
        from leverplus.experiment.whole import run_all

        bars.say(f"run folder {made.folder}, recipe hash {made.recipe.hash}, seed {made.seed}")
        for note in getattr(made.task, "notes", ()):
            bars.say(f"{made.task.name}: {note}")
        say_forecast(made, bars)
        with lock_folder(made.folder):
            report = run_all(made)
    if args.json:
        print(json.dumps(report))
        return 0
    print_table(results_table(report))
    seconds = time.monotonic() - started
    print(f"{seconds:.0f} s; results in {made.folder}/eval.json, report in {made.folder}/report.html")
    print(calls_line(report, made.scorer.meter.fresh))
    print_conclusions(report)
    return 0
