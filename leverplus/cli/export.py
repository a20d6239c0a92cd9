"""`lever export`: a run, or what `lever import` wrote, in the formats of the earlier Lever-Plus code."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus import rundir
from leverplus.cli.console import Bars, add_store_option, open_from_folder
from leverplus.errors import DataError, MissingFile

if TYPE_CHECKING:
    from leverplus.legacy.metrics import Measurement
    from leverplus.scoring.group_file import GroupFile

FORMATS = ("rl", "beam", "metrics", "pt", "v2", "bare")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", type=Path, metavar="RUN", help="a run folder, a checkpoint, or a folder that `lever import` wrote"
    )
    parser.add_argument(
        "--format",
        required=True,
        choices=FORMATS,
        help="what to write: rl, beam or metrics JSON, or a checkpoint as pt, v2 or bare",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the file to write")
    parser.add_argument("--checkpoint", metavar="NAME", help="which checkpoint (default: the only or the last one)")
    parser.add_argument("--shots", type=int, default=2, help="beam: demonstrations in a list (default 2)")
    parser.add_argument("--beam", type=int, default=5, help="beam: lists for each query (default 5)")
    parser.add_argument(
        "--names",
        choices=("layers", "single"),
        help="names of the attention tensors: cross_attn_layers.0. or the older cross_attn.",
    )
    add_store_option(parser)


def run(args: argparse.Namespace) -> int:
    if not args.source.is_dir():
        raise MissingFile(f"there is no folder {args.source}; give a run folder or one that `lever import` wrote")
    action = {"rl": _groups, "beam": _groups, "metrics": _metrics}.get(args.format, _checkpoint)
    line = action(args)
    print(
        json.dumps({"path": str(args.out), "format": args.format, "found": line})
        if args.json
        else f"{args.out}: {line}"
    )
    return 0


def _groups(args: argparse.Namespace) -> str:
    from leverplus.legacy.beam import write_beam
    from leverplus.legacy.rl import write_rl
    from leverplus.scoring.group_file import FILE, read_group_file, rename_items, write_json_value

    imported = (args.source / FILE).is_file()
    file = read_group_file(args.source) if imported else _from_run(args)
    if imported and file.numbers:
        file = rename_items(file, file.numbers)
    if file.kind != args.format:
        raise DataError(f"{args.source} holds {file.kind} data, which lacks some of what {args.format} data need")
    write = write_rl if file.kind == "rl" else write_beam
    write_json_value(args.out, write(file))
    return f"{len(file.entries):,} queries, {sum(len(entry.candidates) for entry in file.entries):,} sequences"


def _from_run(args: argparse.Namespace) -> GroupFile:
    """The groups a run trained on, read from the store."""
    from leverplus.experiment.rows import search_groups
    from leverplus.legacy.beam import beam_from_groups
    from leverplus.legacy.rl import rl_from_groups
    from leverplus.metrics import normalise_answer
    from leverplus.scoring.group_file import item_numbers, rename_items

    with Bars(quiet=args.json) as bars:
        run = open_from_folder(args.source, args.store, bars)
        groups = search_groups(run)
    facts: dict[Any, dict[str, Any]] = {}
    for group in groups:
        item = run.task.item(group.query)
        facts[group.query] = {
            "question_id": item.id,
            "image_id": item.image_id,
            "question": item.question,
            "gt_answers_raw": list(item.answers),
            "gt_answers_norm": [normalise_answer(answer) for answer in item.answers],
        }
    file = rl_from_groups(groups, facts) if args.format == "rl" else beam_from_groups(groups, args.shots, args.beam)
    numbers = item_numbers([*run.task.items("train"), *run.task.items("dev")])
    return rename_items(file, {ours: row for row, ours in numbers.items()}) if numbers else file


def _metrics(args: argparse.Namespace) -> str:
    from leverplus.legacy.imports import METRICS_FILE, read_metrics_folder
    from leverplus.legacy.metrics import metrics_from_report, write_metrics
    from leverplus.scoring.group_file import read_json_value, write_json_value

    report = args.source / rundir.EVAL
    found: list[Measurement]
    if (args.source / METRICS_FILE).is_file():
        found = read_metrics_folder(args.source)
    elif report.is_file():
        when = datetime.fromtimestamp(report.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        found = metrics_from_report(read_json_value(report), when)
    else:
        raise MissingFile(f"{args.source} has no eval.json; type `lever eval {args.source}`")
    write_json_value(args.out, write_metrics(found))
    return f"{len(found)} evaluations"


def _checkpoint(args: argparse.Namespace) -> str:
    from leverplus.legacy.checkpoints import write_legacy
    from leverplus.training.checkpoint import load_checkpoint

    folder = _checkpoint_folder(args)
    policy, description = load_checkpoint(folder)
    facts = description["extra"].get("legacy")
    facts = dict(facts) if facts and facts["layout"] == args.format else {}
    if args.names:
        facts["single"] = args.names == "single"
    write_legacy(policy, args.out, args.format, facts)
    warning = "; its names (cross_attn.) are ignored by the earlier code since November 2025: --names layers"
    return f"{folder.name} as {args.format}" + (warning if facts.get("single") else "")


def _checkpoint_folder(args: argparse.Namespace) -> Path:
    source: Path = args.source
    if (source / rundir.WEIGHTS).is_file():
        return source
    choices = sorted(path.parent.name for path in (source / rundir.CHECKPOINTS).glob(f"*/{rundir.WEIGHTS}"))
    if args.checkpoint is None and (source / rundir.RESOLVED).is_file():
        from leverplus.experiment.opening import load_run

        last = list(load_run(source).recipe.stages)[-1]
        args.checkpoint = last if last in choices else None
    name = args.checkpoint or (choices[0] if len(choices) == 1 else None)
    if name not in choices:
        known = ", ".join(choices) or "none"
        raise MissingFile(f"{source}: say which checkpoint with --checkpoint NAME; it has {known}")
    return source / rundir.CHECKPOINTS / str(name)
