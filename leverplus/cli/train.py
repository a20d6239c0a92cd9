"""`lever train`: train the selector of a run, going on where it was stopped."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leverplus import rundir
from leverplus.cli.console import Bars, add_ignore_option, add_log_option, add_store_option, open_from_folder
from leverplus.rundir import lock_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    add_ignore_option(parser)
    add_log_option(parser)
    add_store_option(parser)


def run(args: argparse.Namespace) -> int:
    from leverplus.experiment.train import train_run

    with Bars() as bars:
        made = open_from_folder(args.run, args.store, bars, strict=not args.ignore_findings, log_to=args.log_to)
        with lock_folder(made.folder):
            train_run(made)
    checkpoint = made.folder / rundir.CHECKPOINTS / list(made.recipe.stages)[-1]
    facts = {"checkpoint": str(checkpoint), "model_calls": made.calls()}
    print(json.dumps(facts) if args.json else f"trained; checkpoint {checkpoint}, {made.calls():,} model calls")
    return 0
