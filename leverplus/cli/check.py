"""`lever check`: all problems of a recipe at once, and every setting that has no effect, without importing torch."""

from __future__ import annotations

import argparse
import json
from typing import Any

from leverplus.errors import RecipeError
from leverplus.recipe.advice import missing_here, recommendation, unused_ends
from leverplus.recipe.forecast import as_json, forecast, line
from leverplus.recipe.idle import idle_given
from leverplus.recipe.recipe import load_recipe
from leverplus.recipe.schema import show_value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="a recipe's name or TOML file")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="override a value of the recipe"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    try:
        recipe = load_recipe(args.recipe, args.set)
        if missing := missing_here(recipe):
            raise RecipeError(args.recipe, missing)
    except RecipeError as error:
        if not args.json:
            raise
        print(json.dumps({"ok": False, "problems": error.problems}))
        return 1
    idle, advice = idle_given(recipe), [*recipe.old_names, *unused_ends(recipe), *recommendation(recipe)]
    cost, reserve = recipe.score.cost(recipe.pool.size), recipe.dev_reserve()
    parts = forecast(recipe)
    if args.json:
        facts: dict[str, Any] = {
            "hash": recipe.hash,
            "known_mistakes": recipe.known_mistakes(),
            "calls_per_query": cost,
            "dev_calls": reserve,
        }
        facts["forecast"] = as_json(parts)
        print(json.dumps({"ok": True, "problems": [], **facts, "idle": idle, "notes": advice}))
        return 0
    print(
        f"{recipe.name}: no problems; hash {recipe.hash}; a training query costs {cost} calls, judging on dev at most "
        f"{reserve:,}, of {recipe.score.budget:,} in all"
    )
    print(f"forecast by the recipe alone: {line(parts, recipe.score.backend == 'table')}")
    for known in recipe.known_mistakes():
        print(f"note: {known} reproduces a known mistake on purpose")
    for entry in idle:
        print(f"no effect: {entry['key']} = {show_value(entry['value'])}, because {entry['why']}")
    for note in advice:
        print(f"note: {note}")
    return 0
