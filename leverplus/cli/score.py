"""`lever score`: ask the frozen model everything a run's training needs; what was asked before is not asked again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leverplus.cli.console import Bars, add_store_option, open_from_folder, say_forecast
from leverplus.rundir import lock_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    add_store_option(parser)


def run(args: argparse.Namespace) -> int:
    from leverplus.experiment.rows import search_groups
    from leverplus.recipe.forecast import SEARCH

    with Bars() as bars:
        made = open_from_folder(args.run, args.store, bars)
        say_forecast(made, bars, SEARCH)
        with lock_folder(made.folder):
            groups = search_groups(made)
    meter = made.scorer.meter
    facts = {"queries": len(groups), "calls": made.calls(), "fresh": meter.fresh, "seconds": round(meter.seconds, 1)}
    line = f"{facts['queries']} queries, {facts['calls']:,} calls of this run so far, {facts['fresh']:,} measured now"
    print(json.dumps(facts) if args.json else line)
    return 0
