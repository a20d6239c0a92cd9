"""`lever demos`: the demonstrations of a bundle, added, deleted and listed without training; and audited."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from leverplus.cli import demos_audit
from leverplus.cli.select import read_ids
from leverplus.errors import LeverError, WrongUsage, plain

OTHER_NAMES = {"text": "question", "label": "answer"}
"""What the keys of a file for task `labels` are here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    add = verbs.add_parser("add", help="add demonstrations; they are usable at once")
    add.add_argument("bundle", type=Path, metavar="BUNDLE", help="the folder that `lever fit` or `lever pack` wrote")
    add.add_argument(
        "--jsonl", type=Path, metavar="FILE", help="many: one {question, answer, image, id, meta} record per line"
    )
    add.add_argument("--question", metavar="Q", help="the question of one demonstration")
    add.add_argument("--answer", metavar="A", help="its answer")
    add.add_argument("--image", metavar="FILE", help="its picture")
    add.add_argument("--id", metavar="ID", help="its id (default: made from the content)")
    delete = verbs.add_parser("delete", help="delete demonstrations for good")
    delete.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    delete.add_argument("ids", nargs="*", metavar="ID", help="ids, as `lever demos list` shows them")
    delete.add_argument(
        "--from", dest="file", type=Path, metavar="FILE", help="a file of ids: one per line, or a JSON list"
    )
    listing = verbs.add_parser("list", help="list the demonstrations")
    listing.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    listing.add_argument("--limit", type=int, default=0, metavar="N", help="list at most so many; 0: all")
    audited = verbs.add_parser(
        "audit", help="show the most useful and the most harmful demonstrations, by recorded answers"
    )
    demos_audit.add_arguments(audited)
    for verb in (add, delete, listing, audited):
        verb.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    found = {"add": _add, "delete": _delete, "list": _list, "audit": demos_audit.audit_demos}[args.verb](args)
    if args.json:
        print(json.dumps(found))
    return 0


def _open(folder: Path) -> Any:
    from leverplus.selector.selector import Selector

    selector = Selector.load(folder)
    if selector.bundle is None:
        raise LeverError(f"{folder} is a run folder; type `lever pack {folder} --out DIR` and use DIR")
    return selector


def _add(args: argparse.Namespace) -> dict[str, Any]:
    if (args.jsonl is None) == (args.question is None):
        raise WrongUsage("give one demonstration with --question and --answer, or many with --jsonl FILE")
    if args.jsonl is None:
        row = {"question": args.question, "answer": args.answer, "image": args.image, "id": args.id}
        rows = [{key: value for key, value in row.items() if value is not None}]
    else:
        rows = read_demos(args.jsonl)
    selector = _open(args.bundle)
    ids = selector.add(rows)
    if not args.json:
        print(f"{len(ids)} added; {args.bundle} holds {len(selector):,}")
    return {"added": ids, "count": len(selector), "fingerprint": selector.fingerprint}


def _delete(args: argparse.Namespace) -> dict[str, Any]:
    ids = [*args.ids, *(read_ids(args.file) if args.file else [])]
    if not ids:
        raise WrongUsage("name the demonstrations to delete: ID ID ..., or --from FILE")
    selector = _open(args.bundle)
    count = selector.delete(ids)
    if not args.json:
        print(f"{count} deleted; {args.bundle} holds {len(selector):,}")
    return {"deleted": ids, "count": len(selector), "fingerprint": selector.fingerprint}


def _list(args: argparse.Namespace) -> dict[str, Any]:
    selector, rows = _open(args.bundle), []
    for number, (_, demo) in enumerate(selector.source.all()):
        if args.limit and number >= args.limit:
            break
        if args.json:
            rows.append(demo.as_json())
        else:
            print(f"{plain(demo.id)}  {plain(demo.question)}  ->  {plain(demo.answer)}")
    return {"demos": rows, "count": len(selector), "fingerprint": selector.fingerprint}


def read_demos(path: Path) -> list[dict[str, Any]]:
    """Demonstrations of a JSONL file; pictures are relative to it, `text` and `label` are taken too."""
    from leverplus.cli.select import read_lines

    rows: list[dict[str, Any]] = []
    for number, row in read_lines(path):
        if not isinstance(row, dict):
            raise LeverError(f"{path}, line {number}: must be an object with a question and an answer")
        own: dict[str, Any] = {}
        for key, value in row.items():
            if key not in ("split", "image_id") and value is not None:
                own[OTHER_NAMES.get(str(key), str(key))] = value
        if isinstance(own.get("image"), str) and own["image"][:5] != "data:":
            own["image"] = path.parent / own["image"]
        rows.append(own)
    if not rows:
        raise LeverError(f"{path} holds no demonstration; write one JSON object on each line")
    return rows
