"""`lever record`: the scores of a recipe as a recorded table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from leverplus.cli.console import Bars, add_store_option, open_from_folder
from leverplus.errors import WrongUsage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name or TOML file, or a run folder")
    parser.add_argument(
        "--out",
        required=True,
        type=Path,
        metavar="FILE.parquet",
        help="the file to write; answers to test queries go to FILE-test.parquet",
    )
    parser.add_argument(
        "--set", nargs="*", default=[], action="extend", metavar="KEY=VALUE", help="override a value of the recipe"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed that draws the training queries (default 0)")
    parser.add_argument("--full", action="store_true", help="keep probabilities in full instead of half precision")
    parser.add_argument("--licence", default="", help="what the table's card says about its licence")
    add_store_option(parser)


def run(args: argparse.Namespace) -> int:
    from leverplus.experiment.run import Run
    from leverplus.recipe.recipe import load_recipe
    from leverplus.scoring.record import record_table
    from leverplus.store.location import default_store_path

    if args.out.suffix != ".parquet":
        raise WrongUsage(f"--out {args.out}: a recorded table is a Parquet file; name it FILE.parquet")
    written = {}
    with Bars(quiet=args.json) as bars:
        if Path(args.recipe).is_dir():
            made = open_from_folder(Path(args.recipe), args.store, bars, at_work=False)
        else:
            recipe, store = load_recipe(args.recipe, args.set), args.store or default_store_path()
            made = Run(recipe, Path(), args.seed, store, bars.say, bars.show, at_work=False)
        section, model = made.recipe.score, made.recipe.model
        dev = {}  # training judges on some dev items, the evaluation on others; many are the same
        for count in (section.dev_queries, made.recipe.eval.dev_items):
            for item in made.chosen_items("dev", count):
                dev[item.id] = item
        parts = {
            args.out: [*made.training_queries(), *dev.values()],
            args.out.with_stem(f"{args.out.stem}-test"): made.chosen_items("test", made.recipe.eval.items),
        }
        facts = {"prompt": {"form": model.prompt, "template": model.template, "instruction": model.instruction}}
        for path, queries in parts.items():
            pools = made.pools(queries)[0]
            more = {**facts, "licence": args.licence}
            card = record_table(made.scorer, pools, path, facts=more, full=args.full)
            written[str(path)] = {key: card[key] for key in ("rows", "queries", "items", "model")}
    if args.json:
        print(json.dumps(written))
    for path, found in written.items() if not args.json else ():
        print(f"{path}: {found['rows']:,} prompts of {found['queries']:,} queries, model {found['model']}")
    return 0
