"""`lever store`: what the score store holds, export, merge and proof that it is whole."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from leverplus.errors import StoreError
from leverplus.store.location import default_store_path

HELP = "look into the score store, export it, merge others into it, prove it whole"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--store", type=Path, metavar="FILE", help=f"the store (default {default_store_path()})")
    shared.add_argument("--json", action="store_true", help="print one JSON object")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("stats", parents=[shared], help="count the stored scores, by model and task")
    export = actions.add_parser("export", parents=[shared], help="write scores to a Parquet file")
    export.add_argument("out", type=Path, metavar="OUT", help="the Parquet file to write")
    export.add_argument(
        "--context",
        action="append",
        metavar="DIGEST",
        help="only this one of the contexts that stats lists (its first digits)",
    )
    merge = actions.add_parser("merge", parents=[shared], help="add the scores of other stores or exports")
    merge.add_argument("others", type=Path, nargs="+", metavar="OTHER", help="a store or a Parquet export")
    actions.add_parser(
        "verify", parents=[shared], help="read all scores and check them; exit code 1 if something is wrong"
    )


def run(args: argparse.Namespace) -> int:
    actions = {"stats": _stats, "export": _export, "merge": _merge, "verify": _verify}
    code, result, lines = actions[args.action](args, args.store or default_store_path())
    print(json.dumps(result) if args.json else "\n".join(lines))
    return code


def _stats(args: argparse.Namespace, path: Path) -> tuple[int, dict[str, Any], list[str]]:
    from leverplus.store.db import ScoreStore

    with ScoreStore(path, must_exist=True) as store:
        stats = store.stats()
    per_record = f", {stats['bytes_per_record']:.0f} bytes a record" if stats["records"] else ""
    lines = [f"{path}: {stats['records']:,} scores, {stats['bytes'] / 1e6:.1f} MB{per_record}"]
    if stats["contexts"] and not args.json:
        lines.append(_table(stats["contexts"]))
    return 0, stats, lines


def _table(contexts: list[dict[str, Any]]) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table("context", "model", "task")
    for name in ("scores", "queries", "tokens", "model seconds"):
        table.add_column(name, justify="right")
    for entry in contexts:
        model = entry["backend"].get("model") or ", ".join(entry["backend"].values())
        counts = (f"{entry[name]:,}" for name in ("records", "queries", "tokens"))
        task = f"{entry['task']} {entry['task_version']}"
        table.add_row(entry["digest"][:8], model, task, *counts, f"{entry['seconds']:,.1f}")
    console = Console(file=sys.stdout)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip()


def _export(args: argparse.Namespace, path: Path) -> tuple[int, dict[str, Any], list[str]]:
    from leverplus.store.db import ScoreStore
    from leverplus.store.exchange import export_parquet

    with ScoreStore(path, must_exist=True) as store:
        contexts = store.contexts()
        for start in args.context or ():
            if not any(context.digest.hex().startswith(start) for context in contexts):
                known = ", ".join(context.digest.hex()[:8] for context in contexts) or "none"
                raise StoreError(f"{path} has no context {start}; it has: {known} (see `lever store stats`)")
        chosen = [c for c in contexts if c.digest.hex().startswith(tuple(args.context or ("",)))]
        written = export_parquet(store, args.out, chosen)
    result = {"path": str(args.out), "records": written, "contexts": len(chosen)}
    return 0, result, [f"{args.out}: {written:,} scores of {len(chosen)} contexts"]


def _merge(args: argparse.Namespace, path: Path) -> tuple[int, dict[str, Any], list[str]]:
    from leverplus.store.db import ScoreStore
    from leverplus.store.exchange import merge

    with ScoreStore(path) as store:
        report = merge(store, *args.others)
        total = store.count()
    lines = [f"{path}: {report.added:,} of {report.read:,} scores were new, {total:,} in all"]
    if report.conflicts:
        lines.append(
            f"{report.conflicts:,} scores had been measured with another result (log-probabilities up to "
            f"{report.largest_gap:.2g} nats apart); those already in the store were kept"
        )
    if report.salvaged:
        lines.append("a damaged store was read page by page; what its checksums prove was taken over")
    if report.lost_texts:
        lines.append(
            f"the description of {report.lost_texts} contexts could not be read; their scores are kept, and the next "
            "run that measures with the same model and task writes it again"
        )
    if report.damaged:
        lines.append(f"{report.damaged:,} damaged scores were left out")
    if report.unchecked:
        lines.append(
            f"{report.unchecked:,} scores came from an export without checksums (made before 0.2), so a change to that "
            "file cannot be noticed; where its store still exists, `lever store export` makes one with checksums"
        )
    return 0, {"path": str(path), **dataclasses.asdict(report), "records": total}, lines


def _verify(_args: argparse.Namespace, path: Path) -> tuple[int, dict[str, Any], list[str]]:
    from leverplus.store.db import ScoreStore
    from leverplus.store.exchange import verify

    with ScoreStore(path, must_exist=True) as store:
        report = verify(store)
    verdict = "clean" if report.clean else f"{report.problem_count:,} problems"
    lines = [f"{path}: {report.records:,} scores in {report.contexts} contexts, {verdict}"]
    lines += [f"  - {problem}" for problem in report.problems]
    if not report.clean:
        lines.append(f"keep what is whole with `lever store merge --store NEW.db {path}`; the rest is measured again")
    return int(not report.clean), {"path": str(path), "clean": report.clean, **dataclasses.asdict(report)}, lines
