"""`lever recipes`: list the recipes, or print one."""

from __future__ import annotations

import argparse
import json
import tomllib

from leverplus.cli.console import print_table
from leverplus.recipe.recipe import find_recipe, recipe_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="print this recipe")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.name:
        text = find_recipe(args.name).read_text(encoding="utf-8")
        print(json.dumps(tomllib.loads(text)) if args.json else text, end="" if not args.json else "\n")
        return 0
    rows = {name: tomllib.loads(find_recipe(name).read_text(encoding="utf-8")) for name in recipe_names()}
    if args.json:
        print(
            json.dumps({name: {key: row.get(key, "") for key in ("purpose", "expected")} for name, row in rows.items()})
        )
        return 0
    from rich.table import Table

    table = Table("recipe", "purpose", "expected")
    for name, row in rows.items():
        table.add_row(name, row.get("purpose", ""), row.get("expected", ""))
    print_table(table)
    return 0
