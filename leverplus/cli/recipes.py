"""`lever recipes`: list the recipes, or print one."""

from __future__ import annotations

import argparse
import json
import tomllib

from leverplus.cli.console import print_table
from leverplus.recipe.recipe import documents_names, find_recipe, gallery_names, recipe_names

USUAL = (
    *("world", "best_8k", "best_32k", "best", "okvqa_table", "own_labels", "own_pictures"),
    *("trec_few", "trec_smollm", "sst2_smollm", "okvqa_captions_smollm", "coco_small"),
)
"""What a user wants first; `--all` shows the plans of the earlier code and the gallery of known mistakes as well."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="print this recipe")
    parser.add_argument(
        "--all", action="store_true", help="also the plans of the earlier code and the gallery of known mistakes"
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of recipes, for editors")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.schema:
        from leverplus.recipe.jsonschema import recipe_schema

        print(json.dumps(recipe_schema(), indent=1))
        return 0
    if args.name:
        text = find_recipe(args.name).read_text(encoding="utf-8")
        print(json.dumps(tomllib.loads(text)) if args.json else text, end="" if not args.json else "\n")
        return 0
    known = recipe_names()
    every = [*known, *documents_names(), *gallery_names()]
    names = every if args.all else [name for name in USUAL if name in known]
    rows = {name: tomllib.loads(find_recipe(name).read_text(encoding="utf-8")) for name in names}
    if args.json:
        texts = {
            name: {"purpose": row.get("purpose", ""), "expected": row.get("expected", "")} for name, row in rows.items()
        }
        print(json.dumps(texts))
        return 0
    if not args.all:
        width = max(map(len, names))
        for name, row in rows.items():
            print(f"{name:{width}}  {row.get('purpose', '')}")
        print(f"`lever recipes NAME` prints one; `lever recipes --all` lists all {len(every)}")
        return 0
    from rich.table import Table

    table = Table("recipe", "purpose", "expected")
    for name, row in rows.items():
        table.add_row(name, row.get("purpose", ""), row.get("expected", ""))
    print_table(table)
    return 0
