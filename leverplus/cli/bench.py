"""`lever bench`: methods at several call budgets, ablations, curves, every plan, or recorded answers of real models."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from leverplus.cli.console import Bars, add_store_option, print_table
from leverplus.errors import WrongUsage
from leverplus.experiment.workshop import Workshop, seed_count
from leverplus.lab.plans import HEADER, PLANS, QUICK_RECIPES, cells, conclusion, run_plans
from leverplus.store.location import default_store_path

WHAT = ("methods", "plans", "ablations", "curves", "real")
OURS = ("methods", "budgets", "worlds", "items", "jobs", "minutes", "runs", "commit")
"""Options that `plans` does not have."""

SMOKE = "--quick is a smoke test: so few items and calls that the order of the rows means nothing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        default="methods",
        choices=WHAT,
        help="methods: ways to train at several call budgets (default); ablations, curves: of the recipe best; "
        "plans: the recipes of the earlier plans against their baseline; real: every way of choosing on the recorded "
        "answers of real models",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only test that it runs, on a dozen items; the results mean nothing",
    )
    parser.add_argument("--seeds", type=seed_count, metavar="N", help="seeds 0 .. N-1 (default 5, plans 3, quick 2)")
    parser.add_argument("--recipes", metavar="A,B,...", help="plans: only these, and the baseline")
    parser.add_argument("--methods", type=words, metavar="A,B,...", help="only these methods (or ablations)")
    parser.add_argument(
        "--budgets", type=numbers, metavar="N,...", help="budgets: the most calls for training and for choosing on dev"
    )
    parser.add_argument("--worlds", type=numbers, metavar="N,...", help="world seeds (default 100,101,102)")
    parser.add_argument("--items", type=seed_count, metavar="N", help="test items of each world (default 1000)")
    parser.add_argument("--jobs", type=seed_count, metavar="N", help="processes, one thread each (default 1)")
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="stop after M minutes; the most important runs come first"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the results (default runs/bench, for plans runs/bench-plans)"
    )
    parser.add_argument(
        "--records",
        type=Path,
        metavar="DIR",
        help="real: a folder of records, instead of those that come with the package",
    )
    parser.add_argument("--runs", type=Path, metavar="DIR", help="folder of runs and stores (default OUT/runs)")
    parser.add_argument(
        "--commit", metavar="NAME", help="name of the measured version (default: the commit of the git checkout)"
    )
    add_store_option(parser)


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def numbers(text: str) -> list[int]:
    """Whole numbers separated by commas; a ValueError is wrong usage."""
    return [int(word) for word in words(text)]


def run(args: argparse.Namespace) -> int:
    if args.what == "real":
        return _real(args)
    if args.records:
        raise WrongUsage("--records belongs to `lever bench real`")
    quick = "-quick" if args.quick else ""
    folder = args.out or Path("runs") / (f"bench-{args.what}{quick}" if args.what == "plans" else f"bench{quick}")
    if args.what == "plans":
        strange = [name for name in OURS if getattr(args, name) is not None]
        if strange:
            raise WrongUsage(f"`lever bench plans` has no --{strange[0]}; leave it out")
        return _plans(args, folder)
    if args.recipes:
        raise WrongUsage("--recipes belongs to `lever bench plans`; methods are chosen with --methods")
    return _methods(args, folder)


def _real(args: argparse.Namespace) -> int:
    from leverplus.lab.real import read_records, summarise_tables
    from leverplus.lab.real_pages import comparison_lines, share_sentences, task_lines
    from leverplus.rundir import shipped

    strange = [name for name in (*OURS, "recipes", "seeds", "out") if getattr(args, name) is not None]
    if strange or args.quick:
        raise WrongUsage(f"`lever bench real` has no --{strange[0] if strange else 'quick'}; it reads what is kept")
    found = summarise_tables(read_records(args.records or shipped("tables:real")))
    if args.json:
        print(json.dumps(found))
        return 0
    print(
        "Accuracy in %, test queries; settings were chosen on training and dev queries, cross-fitted; * is what they "
        "recommend, (n) the number of shots."
    )
    for task in dict.fromkeys(row["task"] for row in found["arms"]):
        _print_lines(task, *task_lines(found, task))
    _print_lines("paired by item, p corrected over all of these", *comparison_lines(found))
    for sentence in share_sentences(found):
        print(sentence)
    return 0


def _print_lines(name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table as Markdown: wider than a terminal, and to be pasted as it is."""
    print(f"\n{name}\n")
    for line in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(line)} |")
    print()


def _methods(args: argparse.Namespace, folder: Path) -> int:
    from leverplus.lab.benchmark import Benchmark, BenchmarkPlan, ablation_plan, curve_plan, quick_plan, run_benchmark
    from leverplus.lab.jobs import Workplace
    from leverplus.lab.pages import PARTS, about

    plans: dict[str, Callable[..., BenchmarkPlan]] = {
        "methods": BenchmarkPlan,
        "ablations": ablation_plan,
        "curves": curve_plan,
    }
    given = {name: getattr(args, name) for name in ("budgets", "worlds", "seeds", "items")}
    if args.methods is not None:
        given["ablations" if args.what == "ablations" else "methods"] = args.methods
    sizes = quick_plan(args.what) if args.quick else {}
    plan = plans[args.what](**sizes | {name: value for name, value in given.items() if value is not None})
    with Bars() as bars:
        place = Workplace(args.runs or folder / "runs", args.store, args.commit)
        found = run_benchmark(plan, Benchmark(folder, place, args.jobs or 1, args.minutes, bars.say))
    if args.json:
        print(json.dumps(found))
        return 1 if found["failed"] else 0
    print(about(found))
    if args.quick:
        print(SMOKE)
    for name, lines in PARTS:
        _show(name, *lines(found))
    for name, why in found["failed"].items():
        print(f"{name} failed: {why}")
    if found["left_out"]:
        print(f"the time was up before {len(found['left_out'])} jobs; type the same command to go on")
    print(f"results in {folder}: results.json.gz (all that was measured), bench.json, bench.md, bench.svg")
    return 1 if found["failed"] else 0


def _show(name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    if rows:
        table = Table(*head, title=name, title_justify="left")
        for row in rows:
            table.add_row(*row)
        print_table(table)


def _plans(args: argparse.Namespace, folder: Path) -> int:
    names: Sequence[str] = QUICK_RECIPES if args.quick else tuple(PLANS)
    if args.recipes:
        names = args.recipes.split(",")
    with Bars() as bars:
        workshop = Workshop(folder, args.store or default_store_path(), bars.say, bars.show)
        found: dict[str, Any] = run_plans(names, args.seeds or (2 if args.quick else 3), workshop, quick=args.quick)
    if args.json:
        print(json.dumps(found))
        return 1 if found["failed"] else 0
    title = f"{found['n']} test items, {found['seeds']} seeds a recipe"
    _show(title, HEADER, [cells(row) for row in found["recipes"]])
    print(conclusion(found))
    if args.quick:
        print(SMOKE)
    for name, why in found["failed"].items():
        print(f"{name} failed: {why}")
    print(f"results in {folder}/bench.json, as Markdown in {folder}/bench.md")
    return 1 if found["failed"] else 0
