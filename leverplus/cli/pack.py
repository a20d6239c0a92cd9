"""`lever pack`: a bundle from a run folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leverplus.cli.console import Bars, add_store_option, open_from_folder
from leverplus.errors import WrongUsage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder for the bundle")
    parser.add_argument("--arm", metavar="ARM", help="the way of choosing (default: what the evaluation advises)")
    parser.add_argument(
        "-k", "--shots", type=int, metavar="N", help="how many demonstrations to show, unless a query says"
    )
    parser.add_argument(
        "--fixed",
        nargs="*",
        default=[],
        metavar="ID",
        help="with --arm fixed: the list for everybody (default: the pilot's)",
    )
    parser.add_argument(
        "--candidates", type=int, metavar="N", help="a learned selector chooses among the N nearest; 0: among all"
    )
    parser.add_argument(
        "--pictures", choices=("bytes", "paths"), default="bytes", help="keep pictures inside, or only their paths"
    )
    parser.add_argument(
        "--licence", default="", help="licence of the demonstrations, for the card (README.md) of the bundle"
    )
    add_store_option(parser)


def run(args: argparse.Namespace) -> int:
    if args.fixed and args.arm not in (None, "fixed"):
        raise WrongUsage("--fixed is for --arm fixed; leave --arm out, or write --arm fixed")
    with Bars(quiet=args.json) as bars:
        made = open_from_folder(args.run, args.store, bars, at_work=False)
        from leverplus.rundir import read_json
        from leverplus.selector.bundle import MANIFEST
        from leverplus.selector.pack import pack_run

        folder = pack_run(
            made,
            args.out,
            arm="fixed" if args.fixed else args.arm,
            shots=args.shots,
            fixed=args.fixed,
            pictures=args.pictures,
            candidates=args.candidates,
            licence=args.licence,
        )
    facts = read_json(folder / MANIFEST)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if args.json:
        found = {"bundle": str(folder), "arm": facts["arm"], "shots": facts["shots"], "bytes": size}
        print(json.dumps({**found, "demonstrations": facts["demonstrations"]}))
        return 0
    count = facts["demonstrations"]["count"]
    print(f"{folder}: arm {facts['arm']}, {facts['shots']} shots, {count:,} demonstrations, {size / 1e6:.1f} MB")
    print(f'next: lever select {folder} --question "..."')
    return 0
