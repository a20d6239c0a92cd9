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
    done = run.folder / rundir.EVAL
    findings = run.folder / rundir.FINDINGS
    if not done.is_file():
        evaluate_run(run, train_run(run), advise=False)
    # findings of before the evaluation are those of training alone
    if not findings.is_file() or findings.stat().st_mtime < done.stat().st_mtime:
        catalog.load(catalog.DOCTOR, "examine_run", "doctor")(run)
    return read_json(done)


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


def configurations(
    name: str, sets: Sequence[str], grid: Grid
) -> dict[str, tuple[dict[str, str], Recipe]]:
    """Every combination of the grid's values with the recipe it makes, by hash; two that are the same are refused."""
    found: dict[str, tuple[dict[str, str], Recipe]] = {}
    for values in product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        own = [f"{key}={value}" for key, value in settings.items()]
        recipe = load_recipe(name, [*sets, *own])
        if recipe.hash in found:
            other = settings_text(found[recipe.hash][0])
            problem = f"{settings_text(settings)} and {other} are the same experiment; name it once"
            raise RecipeError("the grid", [problem])
        found[recipe.hash] = settings, recipe
    return found


def settings_text(settings: Mapping[str, str]) -> str:
    given = " ".join(f"{key}={value}" for key, value in settings.items())
    return given or "the recipe as it is"


def search_grid(
    name: str, sets: Sequence[str], grid: Grid, seeds: int, workshop: Workshop
) -> dict[str, Any]:
    """Train every configuration with every seed, choose by the mean dev reward, look at test for the chosen one.

    What it returns is what sweep.json holds.
    """
    found = configurations(name, sets, grid)
    source = find_recipe(name)
    path = workshop.folder / "sweep.json"
    record: dict[str, Any] = {"recipe": source.stem, "tried": []}
    if path.is_file():
        record = read_json(path)
    if record["recipe"] != source.stem:
        raise EvaluationError(
            f"{path} is a sweep of recipe {record['recipe']}, not {source.stem}; choose a new folder with --out"
        )
    tried = {row["hash"]: row for row in record["tried"]}
    if "test" in record and (set(tried) != set(found) or record["seeds"] != seeds):
        raise EvaluationError(
            f"{workshop.folder} has looked at test for {settings_text(record['chosen']['set'])} out of {len(tried)} "
            f"configurations with {record['seeds']} seeds; another choice would know test. Repeat that sweep to see "
            "it, or start anew with --out DIR"
        )

    def write() -> None:
        make_private_folder(workshop.folder)
        write_json(path, record)

    best: dict[str, Any] = {}
    for number, (digest, (settings, recipe)) in enumerate(found.items(), 1):
        text = settings_text(settings)
        workshop.say(f"configuration {number} of {len(found)}: {text}")
        if digest not in tried:
            tried[digest] = {"set": settings, "hash": digest, "dev": {}}
            record["tried"].append(tried[digest])
        row = tried[digest]
        for seed in range(seeds):
            if str(seed) not in row["dev"]:
                run = workshop.open(recipe, source, digest, seed)
                row["dev"][str(seed)] = dev_judge(run)(train_run(run))["reward"]
                write()
        values = [row["dev"][str(seed)] for seed in range(seeds)]
        row["mean"] = statistics.fmean(values)
        # one seed shows no spread
        row["spread"] = statistics.stdev(values) if seeds > 1 else None
        if not best or row["mean"] > best["mean"]:
            best = row
    record |= {
        "grid": {key: list(values) for key, values in grid.items()},
        "seeds": seeds,
        "configurations": len(tried),
        "chosen": {key: best[key] for key in ("set", "hash", "mean", "spread")},
    }
    write()
    if "test" not in record:
        digest = best["hash"]
        runs = []
        for seed in range(seeds):
            runs.append(workshop.open(found[digest][1], source, digest, seed))
        record["test"] = _look_at_test(runs)
        write()
    return record


def _look_at_test(runs: Sequence[Run]) -> dict[str, Any]:
    """Every seed of the chosen configuration on test, against the nearest demonstrations."""
    for run in runs:
        evaluate_once(run)
    evaluated = [read_evaluated(run.folder) for run in runs]
    rival = ""
    for arm in evaluated[0].results.draws:
        if facts_of(arm).is_rival:
            rival = arm
    compared = compare_runs(evaluated, rival)
    learned = compared.methods[1]
    return {
        "n": compared.n,
        "seeds": learned.seeds,
        "accuracy": learned.accuracy,
        "comparisons": [row.as_json() for row in compared.comparisons],
    }
