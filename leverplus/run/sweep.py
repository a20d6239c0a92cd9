"""`lever sweep`: a grid of settings on one store, chosen on dev; test is looked at once, for the chosen one only.

`sweep.json` is written after every training, so a sweep that was stopped goes on. It counts every configuration that
was ever tried in its folder, because the best of many looks better than it is. Once test has been seen, neither the
grid nor the seeds can change: a choice made after that would know test.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from leverplus import catalog
from leverplus.data import rundir
from leverplus.data.rundir import make_private_folder, read_json, write_json
from leverplus.errors import EvaluationError, RecipeError
from leverplus.evaluate.names import facts_of
from leverplus.evaluate.runs import compare_runs, read_evaluated
from leverplus.run.evaluate import evaluate_run
from leverplus.run.recipe import Recipe, find_recipe, load_recipe
from leverplus.run.run import Run, open_run
from leverplus.run.train import dev_judge, train_run

Grid = Mapping[str, Sequence[str]]
VALUE = re.compile(r"""(?:\[[^\]]*\]|"[^"]*"|'[^']*'|[^,\["'])+""")
"""One of several values; commas inside brackets and quotes do not separate."""


@dataclass(frozen=True)
class Workshop:
    """A folder of runs that share one store; `say` and `progress` tell the user how far they are.

    What runs of the same task read alike, the items and their vectors, is read once and kept in `first`.
    """

    folder: Path
    store: Path
    say: Callable[[str], None] = lambda _: None
    progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None
    first: dict[object, Run] = field(default_factory=dict)

    def open(self, recipe: Recipe, source: Path, name: str, seed: int) -> Run:
        """The run of a recipe and a seed in `NAME-seedN`, new or taken up; another one in its place is refused."""
        key = (recipe.task, recipe.embed)
        first = self.first.get(key)
        run = open_run(
            recipe,
            source,
            self.folder / f"{name}-seed{seed}",
            seed=seed,
            store_path=self.store,
            say=self.say,
            progress=self.progress,
            like=first,
        )
        self.first.setdefault(key, run)
        return run


def evaluate_once(run: Run) -> dict[str, Any]:
    """What the run's selector does on test: read from its folder, or trained, measured and examined now."""
    done, findings = run.folder / rundir.EVAL, run.folder / rundir.FINDINGS
    if not done.is_file():
        evaluate_run(run, train_run(run), advise=False)
    # findings of before the evaluation are those of training alone
    if not findings.is_file() or findings.stat().st_mtime < done.stat().st_mtime:
        catalog.load(catalog.DOCTOR, "examine_run", "doctor")(run)
    return read_json(done)


@dataclass(frozen=True)
class Configuration:
    """One point of a grid: the settings it changes and the recipe they make."""

    settings: Mapping[str, str]
    recipe: Recipe


def read_grid(texts: Iterable[str]) -> dict[str, list[str]]:
    """`key=a,b,c` by key; commas inside brackets or quotes do not separate. Every problem is reported at once.

    >>> read_grid(["eval.shots=[1],[1,2]", "sft.lr=1e-3"])
    {'eval.shots': ['[1]', '[1,2]'], 'sft.lr': ['1e-3']}
    """
    grid: dict[str, list[str]] = {}
    problems = []
    for text in texts:
        key, _, values = text.partition("=")
        key = key.strip()
        if "." not in key or not values.strip():
            problems.append(
                f"--grid {text}: write it as section.key=a,b,c, for example --grid grpo.lr=5e-6,5e-5"
            )
        elif key in grid:
            problems.append(
                f"--grid {text}: {key} is given twice; name all its values at once"
            )
        else:
            grid[key] = [value.strip() for value in VALUE.findall(values)]
    if problems:
        raise RecipeError("the grid", problems)
    return grid


def configurations(name: str, sets: Sequence[str], grid: Grid) -> list[Configuration]:
    """Every combination of the grid's values on top of a recipe; two that are the same experiment are refused."""
    found: dict[str, Configuration] = {}
    for values in product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        own = [f"{key}={value}" for key, value in settings.items()]
        recipe = load_recipe(name, [*sets, *own])
        if recipe.hash in found:
            other = settings_text(found[recipe.hash].settings)
            problem = f"{settings_text(settings)} and {other} are the same experiment; name it once"
            raise RecipeError("the grid", [problem])
        found[recipe.hash] = Configuration(settings, recipe)
    return list(found.values())


def settings_text(settings: Mapping[str, str]) -> str:
    given = " ".join(f"{key}={value}" for key, value in settings.items())
    return given or "the recipe as it is"


def search_grid(
    name: str, sets: Sequence[str], grid: Grid, seeds: int, workshop: Workshop
) -> dict[str, Any]:
    """Train every configuration with every seed, choose by the mean dev reward, look at test for the chosen one."""
    found = configurations(name, sets, grid)
    search = _GridSearch(workshop, find_recipe(name), seeds, found[0].recipe.name)
    search.require_unseen_test({own.recipe.hash for own in found})
    for number, configuration in enumerate(found, 1):
        text = settings_text(configuration.settings)
        workshop.say(f"configuration {number} of {len(found)}: {text}")
        search.measure_on_dev(configuration)
    chosen = search.choose(found, grid)
    if "test" not in search.record:
        search.look_at_test(chosen)
    return search.record


class _GridSearch:
    """A sweep under way: `record` is what sweep.json holds."""

    def __init__(self, workshop: Workshop, source: Path, seeds: int, name: str) -> None:
        self.workshop, self.source, self.seeds = workshop, source, range(seeds)
        self.path = workshop.folder / "sweep.json"
        self.record: dict[str, Any] = {"recipe": name, "tried": []}
        if self.path.is_file():
            self.record = read_json(self.path)
        if self.record["recipe"] != name:
            raise EvaluationError(
                f"{self.path} is a sweep of recipe {self.record['recipe']}, not {name}; choose a new folder with --out"
            )

    def require_unseen_test(self, wanted: set[str]) -> None:
        """Refuse another grid or other seeds after test was looked at."""
        tried = {row["hash"] for row in self.record["tried"]}
        same = tried == wanted and self.record.get("seeds") == len(self.seeds)
        if "test" in self.record and not same:
            raise EvaluationError(
                f"{self.workshop.folder} has looked at test for {settings_text(self.record['chosen']['set'])} out of "
                f"{len(tried)} configurations with {self.record['seeds']} seeds; another choice would know test. "
                "Repeat that sweep to see it, or start anew with --out DIR"
            )

    def measure_on_dev(self, configuration: Configuration) -> None:
        """The dev reward of every seed that is not known yet."""
        row = self._row(configuration)
        for seed in self.seeds:
            if str(seed) not in row["dev"]:
                run = self._run(configuration, seed)
                row["dev"][str(seed)] = dev_judge(run)(train_run(run))["reward"]
                self._write()

    def _row(self, configuration: Configuration) -> dict[str, Any]:
        name = configuration.recipe.hash
        for row in self.record["tried"]:
            if row["hash"] == name:
                known: dict[str, Any] = row
                return known
        fresh = {"set": dict(configuration.settings), "hash": name, "dev": {}}
        self.record["tried"].append(fresh)
        return fresh

    def _run(self, configuration: Configuration, seed: int) -> Run:
        recipe = configuration.recipe
        return self.workshop.open(recipe, self.source, recipe.hash, seed)

    def choose(self, found: Sequence[Configuration], grid: Grid) -> Configuration:
        """The best mean over seeds, the first among equals."""
        best = found[0]
        for configuration in found:
            row = self._row(configuration)
            values = [row["dev"][str(seed)] for seed in self.seeds]
            row["mean"] = statistics.fmean(values)
            # one seed shows no spread
            row["spread"] = statistics.stdev(values) if len(values) > 1 else None
            if row["mean"] > self._row(best)["mean"]:
                best = configuration
        row = self._row(best)
        self.record |= {
            "grid": {key: list(values) for key, values in grid.items()},
            "seeds": len(self.seeds),
            "configurations": len(self.record["tried"]),
            "chosen": {key: row[key] for key in ("set", "hash", "mean", "spread")},
        }
        self._write()
        return best

    def look_at_test(self, chosen: Configuration) -> None:
        """Every seed of the chosen configuration on test, against the nearest demonstrations."""
        evaluated = []
        for seed in self.seeds:
            run = self._run(chosen, seed)
            evaluate_once(run)
            evaluated.append(read_evaluated(run.folder))
        arms = evaluated[0].results.draws
        rival = [arm for arm in arms if facts_of(arm).is_rival][-1]
        compared = compare_runs(evaluated, rival)
        learned = compared.methods[1]
        self.record["test"] = {
            "n": compared.n,
            "seeds": learned.seeds,
            "accuracy": learned.accuracy,
            "comparisons": [row.as_json() for row in compared.comparisons],
        }
        self._write()

    def _write(self) -> None:
        make_private_folder(self.workshop.folder)
        write_json(self.path, self.record)
