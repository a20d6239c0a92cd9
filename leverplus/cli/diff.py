"""`lever diff`: the settings in which two runs differ, and how far the weights of two checkpoints lie apart."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus import rundir

if TYPE_CHECKING:
    from leverplus.policies.base import Policy
    from leverplus.recipe.recipe import Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a run folder, a recipe, a checkpoint folder, or a .pt or .ckpt file of the earlier code"
    parser.add_argument("first", metavar="A", help=what)
    parser.add_argument("second", metavar="B", help="what to compare it with, of the same kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    from leverplus.errors import WrongUsage

    recipes = [_recipe(text) for text in (args.first, args.second)]
    policies = [_policy(Path(text)) for text in (args.first, args.second)]
    found: dict[str, Any] = {}
    if recipes[0] is not None and recipes[1] is not None:
        found["settings"] = _settings(recipes[0], recipes[1])
    if policies[0] is not None and policies[1] is not None:
        found["weights"] = _weights(policies[0], policies[1], needed="settings" not in found)
    if not found:
        raise WrongUsage(
            f"{args.first} and {args.second}: name two runs or recipes, or two checkpoints, such as "
            "`lever diff runs/a/checkpoints/rce runs/a/checkpoints/grpo`"
        )
    if args.json:
        print(json.dumps(found))
        return 0
    _print(found, args.first, args.second)
    return 0


def _recipe(text: str) -> Recipe | None:
    """The recipe of a run folder, or the recipe of that name or file; None for anything else."""
    from leverplus.errors import MissingFile, UnknownName
    from leverplus.experiment.opening import load_run
    from leverplus.recipe.recipe import load_recipe

    folder = Path(text)
    if (folder / rundir.RESOLVED).is_file():
        return load_run(folder).recipe
    if folder.exists() and folder.suffix != ".toml":
        return None
    try:
        return load_recipe(text)
    except (UnknownName, MissingFile) as error:
        raise MissingFile(
            f"there is no run, recipe or checkpoint called {text}; `lever recipes` lists recipes"
        ) from error


def _policy(path: Path) -> Policy | None:
    """The selector of a checkpoint, or the last one of a run; None where there is none."""
    from leverplus.experiment.opening import load_run
    from leverplus.legacy.checkpoints import read_legacy
    from leverplus.training.checkpoint import load_checkpoint

    if path.is_file() and path.suffix in (".pt", ".ckpt"):
        return read_legacy(path).policy
    if (path / rundir.RESOLVED).is_file():
        stages = list(load_run(path).recipe.stages)
        path = path / rundir.CHECKPOINTS / stages[-1]
    return load_checkpoint(path)[0] if (path / rundir.WEIGHTS).is_file() else None


def _settings(first: Recipe, second: Recipe) -> list[dict[str, Any]]:
    from leverplus.recipe.difference import differing_settings

    return [vars(row) for row in differing_settings(first, second)]


def _weights(first: Policy, second: Policy, *, needed: bool) -> dict[str, Any] | None:
    """Distances by part; between two runs of other shapes there is none, between two checkpoints that is an error."""
    from leverplus.errors import CheckpointError
    from leverplus.training.distance import weight_distances

    try:
        return {part: own.as_json() for part, own in weight_distances(first, second).items()}
    except CheckpointError:
        if needed:
            raise
        return None


def _print(found: dict[str, Any], first: str, second: str) -> None:
    if "settings" in found:
        rows = found["settings"]
        count = "1 setting differs" if len(rows) == 1 else f"{len(rows)} settings differ"
        print(f"{count} between {first} and {second}" + (":" if rows else "."))
        for row in rows:
            print(f"  {row['key']:<32} {_show(row['first'])}  ->  {_show(row['second'])}")
    if "weights" not in found:
        return
    if found["weights"] is None:
        print("The selectors have other shapes, so their weights cannot be subtracted.")
        return
    print(f"Weights of {second} less those of {first}:")
    print(f"  {'part':<14} {'weights':>10}  {'|b - a| / |a|':>14}  {'mean |change|':>14}  {'largest':>10}")
    for part, own in found["weights"].items():
        numbers = f"{own['relative']:>14.5g}  {own['mean']:>14.5g}  {own['largest']:>10.4g}"
        print(f"  {part:<14} {own['weights']:>10,}  {numbers}")


def _show(value: Any) -> str:
    return "-" if value is None else json.dumps(value)
