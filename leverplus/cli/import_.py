"""`lever import`: says what a file of the earlier Lever-Plus code is, what is wrong with it, and takes it over."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from leverplus.cli.console import add_task_values
from leverplus.errors import LeverError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="beam, RL or metrics JSON, or a .pt or .ckpt checkpoint"
    )
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="write it there; without it the file is only described"
    )
    parser.add_argument("--task", metavar="TASK", help="give items the ids they have in this task (okvqa, vqav2)")
    add_task_values(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from leverplus.legacy.imports import import_file

    names = None
    if args.task:
        from leverplus.cli.task import load_task
        from leverplus.scoring.group_file import item_numbers

        task = load_task(args.task, args.set)
        names = item_numbers([*task.items("train"), *task.items("dev")])
        if not names:
            raise LeverError(f"task {args.task} does not number its items as the earlier code did; leave --task out")
    result = import_file(args.file, args.into, names)
    if args.json:
        print(json.dumps(dataclasses.asdict(result)))
        return 0
    lines = [f"{args.file}: {result.found}", *(f"  {note}" for note in result.notes)]
    lines += [f"written: {path}" for path in result.written] or [
        f"nothing was written; --into DIR takes {args.file} over"
    ]
    print("\n".join(lines))
    return 0
