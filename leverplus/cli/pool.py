"""`lever pool`: build the pools of a run and say what they are made of."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leverplus.cli.console import Bars, add_store_option, open_from_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    add_store_option(parser)


def run(args: argparse.Namespace) -> int:
    with Bars() as bars:
        made = open_from_folder(args.run, args.store, bars)
        pools, _ = made.pools(made.training_queries())
    used = {item for pool in pools for item in pool.candidates}
    facts = {"pools": len(pools), "size": len(pools[0]), "builder": pools[0].builder, "distinct_items": len(used)}
    print(
        json.dumps(facts)
        if args.json
        else "{pools} pools of {size}, {distinct_items} distinct demonstrations, builder {builder}".format(**facts)
    )
    return 0
