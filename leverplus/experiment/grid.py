"""`lever sweep`: a grid of settings on one store, chosen on dev; test is looked at once, for the chosen one only.

`sweep.json` is written after every training, so a sweep that was stopped goes on. It counts every configuration that
was ever tried in its folder, because the best of many looks better than it is. Once test has been seen, neither the
grid nor the seeds can change: a choice made after that would know test.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from leverplus.errors import EvaluationError, RecipeError
from leverplus.experiment.workshop import Workshop, evaluate_once, read_back
from leverplus.recipe.recipe import Recipe, find_recipe, load_recipe

Grid = Mapping[str, Sequence[str]]
RIVALS = ("nearest_both", "nearest_text")
"""The chosen configuration is compared with the first of these on test; without pictures there is the second alone."""


@dataclass(frozen=True)
class Configuration:
    """One point of a grid: the settings it changes and the recipe they make."""

    settings: Mapping[str, str]
    recipe: Recipe


def read_grid(texts: Iterable[str]) -> dict[str, list[str]]:
    """`key=a,b,c` by key; commas inside brackets or quotes do not separate. Every problem is reported at once."""
    grid: dict[str, list[str]] = {}
    problems = []
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or "." not in key or not values.strip():
            problems.append(f"--grid {text}: write it as section.key=a,b,c, for example --grid grpo.lr=5e-6,5e-5")
        elif key in grid:
            problems.append(f"--grid {text}: {key} is given twice; name all its values at once")
        else:
            grid[key] = split_values(values)
    if problems:
        raise RecipeError("the grid", problems)
    return grid


def split_values(text: str) -> list[str]:
    """The parts between commas that stand outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote or letter in "\"'":
            quote = "" if letter == quote else quote or letter
        elif letter in "[]":
            depth += 1 if letter == "[" else -1
        elif letter == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += letter
    return [part.strip() for part in parts]


def configurations(name: str, sets: Sequence[str], grid: Grid) -> list[Configuration]:
    """Every combination of the grid's values on top of a recipe; two that are the same experiment are refused."""
    found: dict[str, Configuration] = {}
    for values in product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        recipe = load_recipe(name, [*sets, *(f"{key}={value}" for key, value in settings.items())])
        if recipe.hash in found:
            one, other = settings_text(settings), settings_text(found[recipe.hash].settings)
            problem = f"{one} and {other} are the same experiment; name it once"
            raise RecipeError("the grid", [problem])
        found[recipe.hash] = Configuration(settings, recipe)
    return list(found.values())


def settings_text(settings: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items()) or "the recipe as it is"


def search_grid(name: str, sets: Sequence[str], grid: Grid, seeds: int, workshop: Workshop) -> dict[str, Any]:
    """Train every configuration with every seed, choose by the mean dev reward, look at test for the chosen one."""
    found = configurations(name, sets, grid)
    state = _GridSearch(workshop, find_recipe(name), seeds, found[0].recipe.name)
    state.require_unseen_test(found)
    for number, configuration in enumerate(found, 1):
        workshop.say(f"configuration {number} of {len(found)}: {settings_text(configuration.settings)}")
        state.measure_on_dev(configuration)
    state.choose(found, grid)
    if "test" not in state.record:
        state.look_at_test(next(c for c in found if c.recipe.hash == state.record["chosen"]["hash"]))
    return state.record


class _GridSearch:
    """A sweep under way: `record` is what sweep.json holds."""

    def __init__(self, workshop: Workshop, source: Path, seeds: int, name: str) -> None:
        from leverplus.rundir import read_json

        self.workshop, self.source, self.seeds = workshop, source, seeds
        self.path = workshop.folder / "sweep.json"
        self.record: dict[str, Any] = read_json(self.path) if self.path.is_file() else {"recipe": name, "tried": []}
        if self.record["recipe"] != name:
            raise EvaluationError(
                f"{self.path} is a sweep of recipe {self.record['recipe']}, not {name}; choose a new folder with --out"
            )

    def require_unseen_test(self, found: Sequence[Configuration]) -> None:
        """Refuse another grid or other seeds after test was looked at."""
        if "test" not in self.record:
            return
        tried = {row["hash"] for row in self.record["tried"]}
        if tried != {c.recipe.hash for c in found} or self.record["seeds"] != self.seeds:
            raise EvaluationError(
                f"{self.workshop.folder} has looked at test for {settings_text(self.record['chosen']['set'])} out of "
                f"{len(tried)} configurations with {self.record['seeds']} seeds; another choice would know test. "
                "Repeat that sweep to see it, or start anew with --out DIR"
            )

    def measure_on_dev(self, configuration: Configuration) -> None:
        """The dev reward of every seed that is not known yet."""
        row = self._row(configuration)
        for seed in range(self.seeds):
            if str(seed) not in row["dev"]:
                row["dev"][str(seed)] = self._dev_reward(configuration, seed)
                self._write()

    def _row(self, configuration: Configuration) -> dict[str, Any]:
        recipe = configuration.recipe
        for row in self.record["tried"]:
            if row["hash"] == recipe.hash:
                known: dict[str, Any] = row
                return known
        fresh: dict[str, Any] = {"set": dict(configuration.settings), "hash": recipe.hash, "dev": {}}
        self.record["tried"].append(fresh)
        return fresh

    def _dev_reward(self, configuration: Configuration, seed: int) -> float:
        from leverplus.experiment.train import dev_judge, train_run

        recipe = configuration.recipe
        run = self.workshop.open(recipe, self.source, recipe.hash, seed)
        return dev_judge(run)(train_run(run))["reward"]

    def choose(self, found: Sequence[Configuration], grid: Grid) -> None:
        """The best mean over seeds, the first among equals."""
        rows = [self._row(configuration) for configuration in found]
        for row in rows:
            row["mean"], row["spread"] = spread_of([row["dev"][str(seed)] for seed in range(self.seeds)])
        best = max(rows, key=lambda row: row["mean"])
        self.record |= {
            "grid": {key: list(values) for key, values in grid.items()},
            "seeds": self.seeds,
            "configurations": len(self.record["tried"]),
            "chosen": {key: best[key] for key in ("set", "hash", "mean", "spread")},
        }
        self._write()

    def look_at_test(self, chosen: Configuration) -> None:
        """Every seed of the chosen configuration on test, against the nearest demonstrations."""
        from leverplus.evaluation.runs import compare_runs

        runs = [self.workshop.open(chosen.recipe, self.source, chosen.recipe.hash, seed) for seed in range(self.seeds)]
        for run in runs:
            evaluate_once(run)
        evaluated = [read_back(run) for run in runs]
        rival = next(arm for arm in RIVALS if arm in evaluated[0].results.draws)
        report = compare_runs(evaluated, rival)
        learned = next(method for method in report["methods"] if method["arm"] == "learned")
        self.record["test"] = {
            "n": report["n"],
            "seeds": learned["seeds"],
            "accuracy": learned["accuracy"],
            "comparisons": report["comparisons"],
        }
        self._write()

    def _write(self) -> None:
        from leverplus.rundir import write_json

        self.workshop.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.record)


def spread_of(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation over seeds; one seed shows no spread."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
