"""Experiments: a recipe run, looked at and checked, the stages of a run one by one, and a grid of settings."""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from leverplus.cli.command import Bars, Outcome, Table
from leverplus.cli.console import conclusions, opened, results_table
from leverplus.data import rundir
from leverplus.data.rundir import lock_folder, make_private_folder
from leverplus.data.settings import show_value
from leverplus.errors import RecipeError, WrongUsage
from leverplus.evaluate.record import EvaluationRecord
from leverplus.run.forecast import as_json, forecast, forecast_line, line
from leverplus.run.recipe import Recipe, every_recipe, find_recipe, load_recipe
from leverplus.run.rules import idle_given, missing_here
from leverplus.run.run import open_run
from leverplus.scores.store import default_store_path

USUAL = (
    "world", "best_8k", "best_32k", "best", "okvqa_table", "own_labels", "own_pictures", "trec_few", "trec_smollm",
    "sst2_smollm", "okvqa_captions_smollm",
)  # fmt: skip
"""What a user wants first; `--all` shows the plans of the earlier code and the gallery of known mistakes as well."""

CHOSEN_ON_TEST = "This was chosen on test: the best of many is too good by luck. It is marked so in the result."


def run(
    recipe: str = "world",
    *,
    out: Path | None = None,
    seed: int = 0,
    set_: Sequence[str] = (),
    ignore_findings: bool = False,
    store: Path | None = None,
) -> Outcome:
    """Every stage of a recipe, resuming what is done.

    RECIPE: a recipe's name or TOML file (default world)
    --out DIR: the run folder (default runs/RECIPE)
    --seed N: seed of the run (default 0)
    --set KEY=VALUE ...: override a value of the recipe
    --ignore-findings: train although the preflight found errors
    """
    from leverplus.run.evaluate import run_all

    started = time.monotonic()
    loaded = load_recipe(recipe, set_)
    with Bars() as bars:
        for note in loaded.known_mistakes():
            bars.say(f"note: {note} reproduces a known mistake on purpose")
        if idle := [entry["key"] for entry in idle_given(loaded)]:
            bars.say(
                f"note: without effect in this recipe: {', '.join(idle)}; `lever check {recipe}` says why"
            )
        made = open_run(
            loaded,
            find_recipe(recipe),
            out or run_folder(loaded, seed, named=not set_),
            seed=seed,
            store_path=store or default_store_path(),
            say=bars.say,
            progress=bars.show,
            strict=not ignore_findings,
        )
        bars.say(f"run folder {made.folder}, recipe hash {loaded.hash}, seed {seed}")
        for note in getattr(made.task, "notes", ()):
            bars.say(f"{made.task.name}: {note}")
        bars.say(forecast_line(made))
        with lock_folder(made.folder):
            record = run_all(made)

    def shown() -> Iterator[str | Table]:
        yield results_table(record)
        yield (
            f"{time.monotonic() - started:.0f} s; results in {made.folder}/eval.json, report in "
            f"{made.folder}/report.html"
        )
        yield calls_line(record, made.scorer.meter.fresh)
        yield from conclusions(record)

    return Outcome(record.as_json(), shown())


def run_folder(recipe: Recipe, seed: int, *, named: bool = True) -> Path:
    """runs/RECIPE, with the hash where the recipe is not as it is `named`, and a seed other than 0."""
    name = safe_name(recipe.name)
    if not named:
        name += f"-{recipe.hash[:6]}"
    return Path("runs") / (name + (f"-seed{seed}" if seed else ""))


def safe_name(name: str) -> str:
    """A recipe's name as the name of one folder: a file called `...toml` must not lead out of runs/."""
    return re.sub(r"[^\w.+-]", "_", name).lstrip(".") or "recipe"


def calls_line(report: EvaluationRecord, fresh: int) -> str:
    """How many distinct prompts each part asked for, and how many of them the store did not hold yet."""
    advised = ""
    if report.advice is not None:
        advised = f", {report.dev_calls:,} on dev for the advice"
    return (
        f"distinct prompts: {report.model_calls or 0:,} for training, {report.eval_calls or 0:,} for evaluation"
        f"{advised}; {fresh:,} of them were asked now, the others were stored already"
    )


def recipes(name: str = "", *, all_: bool = False) -> Outcome:
    """Lists the recipes, or prints one.

    NAME: print this recipe
    --all: also the plans of the earlier code and the gallery of known mistakes
    """
    if name:
        text = find_recipe(name).read_text(encoding="utf-8")
        return Outcome(tomllib.loads(text), [text.rstrip("\n")])
    every = every_recipe()
    names = every if all_ else list(USUAL)
    texts = {}
    width = max(map(len, names))
    lines = []
    for one in names:
        values = tomllib.loads(find_recipe(one).read_text(encoding="utf-8"))
        purpose = values["purpose"]
        expected = values.get("expected", "")
        texts[one] = {"purpose": purpose, "expected": expected}
        lines.append(f"{one:{width}}  {purpose}")
    more = "`lever recipes NAME` prints one"
    if not all_:
        more += f"; `lever recipes --all` lists all {len(every)}"
    return Outcome(texts, [*lines, more])


def check(recipe: str, *, json: bool = False, set_: Sequence[str] = ()) -> Outcome:
    """All problems of a recipe at once, and every setting that has no effect, without importing torch.

    RECIPE: a recipe's name or TOML file
    --set KEY=VALUE ...: override a value of the recipe
    """
    try:
        loaded = load_recipe(recipe, set_)
        if missing := missing_here(loaded):
            raise RecipeError(recipe, missing)
    except RecipeError as error:
        if not json:
            raise
        return Outcome({"ok": False, "problems": error.problems}, code=1)
    idle = idle_given(loaded)
    mistakes = loaded.known_mistakes()
    parts = forecast(loaded)
    value = {
        "ok": True,
        "problems": [],
        "hash": loaded.hash,
        "known_mistakes": mistakes,
        "calls_per_query": loaded.score.cost(loaded.pool.size),
        "dev_calls": loaded.dev_reserve(),
        "forecast": as_json(parts),
        "idle": idle,
    }
    shown = [
        f"{loaded.name}: no problems; hash {loaded.hash}; a training query costs {value['calls_per_query']} calls, "
        f"judging on dev at most {value['dev_calls']:,}, of {loaded.score.budget:,} in all",
        f"forecast by the recipe alone: {line(parts, loaded.score.backend == 'table')}",
    ]
    for mistake in mistakes:
        shown.append(f"note: {mistake} reproduces a known mistake on purpose")
    for entry in idle:
        shown.append(
            f"no effect: {entry['key']} = {show_value(entry['value'])}, because {entry['why']}"
        )
    return Outcome(value, shown)


def pool(run: Path, *, store: Path | None = None) -> Outcome:
    """Builds the pools of a run and says what they are made of.

    RUN: a run folder
    """
    with opened(run, store, lock=False) as made:
        pools, _ = made.pools(made.training_queries())
    used: set[str] = set()
    for own in pools:
        used.update(own.candidates)
    size = len(pools[0])
    builder = pools[0].builder
    return Outcome(
        {
            "pools": len(pools),
            "size": size,
            "builder": builder,
            "distinct_items": len(used),
        },
        [
            f"{len(pools)} pools of {size}, {len(used)} distinct demonstrations, builder {builder}"
        ],
    )


def score(run: Path, *, store: Path | None = None) -> Outcome:
    """Asks the frozen model everything a run's training needs; what was asked before is not asked again.

    RUN: a run folder
    """
    from leverplus.run.train import search_groups

    with opened(run, store) as made:
        made.say(forecast_line(made, "search"))
        groups = search_groups(made)
    meter = made.scorer.meter
    return Outcome(
        {
            "queries": len(groups),
            "calls": made.calls(),
            "fresh": meter.fresh,
            "seconds": round(meter.seconds, 1),
        },
        [
            f"{len(groups)} queries, {made.calls():,} calls of this run so far, {meter.fresh:,} measured now"
        ],
    )


def train(
    run: Path,
    *,
    ignore_findings: bool = False,
    store: Path | None = None,
) -> Outcome:
    """Trains the selector of a run, going on where it was stopped.

    RUN: a run folder
    --ignore-findings: train although the preflight found errors
    """
    from leverplus.run.train import train_run

    strict = not ignore_findings
    with opened(run, store, strict=strict) as made:
        train_run(made)
    checkpoint = run / rundir.CHECKPOINTS / list(made.recipe.stages)[-1]
    return Outcome(
        {"checkpoint": str(checkpoint), "model_calls": made.calls()},
        [f"trained; checkpoint {checkpoint}, {made.calls():,} model calls"],
    )


def evaluate(
    run: Path,
    *,
    split: Literal["train", "dev", "test"] = "test",
    items: int | None = None,
    checkpoint: str | None = None,
    force: bool = False,
    store: Path | None = None,
) -> Outcome:
    """Evaluates a run against every baseline, or sweeps its checkpoints.

    RUN: a run folder
    --split: which items (default test)
    --items N: how many items, 0 for all (default: the recipe's)
    --checkpoint NAME: a checkpoint of the run instead of its last, `all` for a sweep, or one from elsewhere: a folder,
        RUN, RUN:NAME, or a .pt or .ckpt file of the earlier code
    --force: evaluate even if this would choose on test items, or if the data changed
    """
    from leverplus.run.evaluate import evaluate_checkpoints, evaluate_selector

    with opened(run, store) as made:
        if checkpoint == "all":
            swept = evaluate_checkpoints(made, split, items, force)
            return Outcome(swept, sweep_shown(swept))
        record = evaluate_selector(made, checkpoint, split, items, force=force)
    return Outcome(record.as_json(), _evaluation_shown(record))


def _evaluation_shown(record: EvaluationRecord) -> Iterator[str | Table]:
    yield results_table(record)
    yield from conclusions(record)
    if record.chosen_on_test:
        yield CHOSEN_ON_TEST


def sweep_shown(report: Mapping[str, Any]) -> Iterator[str | Table]:
    """Every checkpoint by shots, with how many of its picks are those of the checkpoint before."""
    shots = list(report["checkpoints"][0]["shots"])
    rows = []
    for row in report["checkpoints"]:
        cells = [row["checkpoint"]]
        for value in (*row["shots"].values(), row["mean"]):
            cells.append(f"{100 * value:.1f}")
        interval = same = ""
        if row["ci95"] is not None:  # a single item or picture has none
            low, high = row["ci95"]
            interval = f"{100 * low:.1f}-{100 * high:.1f}"
        if row["agreement"] is not None:
            same = f"{100 * row['agreement']['identical']:.0f} %"
        rows.append([*cells, interval, same])
    yield Table(
        f"accuracy by shots on {report['n']} {report['split']} items",
        ["checkpoint", *map(str, shots), "mean", "95 % interval", "same picks"],
        rows,
    )
    yield f"highest mean: {report['best']}; checkpoints whose intervals overlap may differ by noise alone"
    yield "same picks: share of items with the same list as at the checkpoint before"
    if report["chosen_on_test"]:
        yield CHOSEN_ON_TEST


def sweep(
    recipe: str,
    *,
    grid: Sequence[str],
    seeds: int = 3,
    set_: Sequence[str] = (),
    out: Path | None = None,
    store: Path | None = None,
) -> Outcome:
    """A grid of settings on a shared store, the choice on dev, test once for the chosen.

    RECIPE: a recipe's name or TOML file
    --grid KEY=A,B,C: values to try; with several --grid all combinations are tried
    --seeds N: seeds 0 .. N-1 (default 3)
    --set KEY=VALUE ...: override a value of the recipe
    --out DIR: folder of the sweep (default runs/sweep-RECIPE)
    """
    from leverplus.run.sweep import Workshop, configurations, read_grid, search_grid

    if seeds < 1:
        raise WrongUsage(f"--seeds {seeds}: must be at least 1")
    tried = read_grid(grid)
    # a value that no recipe takes is refused before there is a folder
    configurations(recipe, set_, tried)
    folder = out or Path("runs") / f"sweep-{safe_name(find_recipe(recipe).stem)}"
    with Bars() as bars:
        workshop = Workshop(folder, store or default_store_path(), bars.say, bars.show)
        make_private_folder(folder)
        with lock_folder(folder):
            record = search_grid(recipe, set_, tried, seeds, workshop)
    return Outcome(record, _grid_shown(record, folder))


def _grid_shown(record: Mapping[str, Any], folder: Path) -> Iterator[str | Table]:
    """Every configuration with its mean dev reward, best first; then the chosen one on test."""
    from leverplus.run.sweep import settings_text

    rows = []
    for row in sorted(record["tried"], key=lambda row: -row.get("mean", 0.0)):
        if "mean" in row:
            spread = "one seed"
            if row["spread"] is not None:
                spread = f"{row['spread']:.3f}"
            rows.append([settings_text(row["set"]), f"{row['mean']:.3f}", spread])
    title = f"dev reward over {record['seeds']} seeds"
    yield Table(title, ["configuration", "mean", "spread"], rows)
    chosen = record["chosen"]
    test = record["test"]
    yield f"chosen on dev out of {record['configurations']} configurations: {settings_text(chosen['set'])}"
    mean = test["comparisons"][-1]  # the mean over shots, or the only number of shots
    low, high = mean["ci95"]
    yield (
        f"test, looked at once: {100 * test['accuracy']['mean']:.1f} in the mean over shots on {test['n']:,} items, "
        f"{100 * mean['diff']:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f}) from {mean['baseline']}"
    )
    yield f"results in {folder}/sweep.json"
