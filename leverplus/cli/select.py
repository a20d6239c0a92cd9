"""`lever select`: choose demonstrations for one query."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, or one made by Selector.save")
    parser.add_argument("--image", metavar="FILE", help="the query's picture")
    parser.add_argument("--question", required=True, metavar="Q", help="the query's question")
    parser.add_argument("-k", "--shots", type=int, default=4, metavar="N", help="how many demonstrations (default 4)")
    parser.add_argument(
        "--checkpoint", metavar="PATH", help="choose by this selector: a folder, RUN, RUN:NAME, or a .pt or .ckpt file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from leverplus.serving.selector import Selector

    chosen = Selector.load(args.run, args.checkpoint).select(image=args.image, question=args.question, shots=args.shots)
    if args.json:
        demos = [
            {"id": item.id, "question": item.question, "answer": item.answer, "image": item.image} for item in chosen
        ]
        print(json.dumps({"question": args.question, "demos": demos}))
        return 0
    for item in chosen:
        print(f"{item.id}  {item.question}  ->  {item.answer}")
    return 0
