"""`lever check`: all problems of a recipe at once, without importing torch."""

from __future__ import annotations

import argparse
import json

from leverplus.errors import RecipeError
from leverplus.recipe.recipe import load_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="a recipe's name or TOML file")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="override a value of the recipe"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    try:
        recipe = load_recipe(args.recipe, args.set)
    except RecipeError as error:
        if not args.json:
            raise
        print(json.dumps({"ok": False, "problems": error.problems}))
        return 1
    cost = recipe.score.cost(recipe.pool.size)
    if args.json:
        print(
            json.dumps(
                {"ok": True, "problems": [], "hash": recipe.hash, "sick": recipe.sick(), "calls_per_query": cost}
            )
        )
        return 0
    print(f"{recipe.name}: no problems; hash {recipe.hash}; a training query costs {cost} calls")
    for line in recipe.sick():
        print(f"note: {line} reproduces a known mistake on purpose")
    return 0
