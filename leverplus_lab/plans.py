"""All plans in one table on the world: every recipe with several seeds, against the baseline recipe, with intervals.

Run folders hold what is done, so a benchmark that was stopped goes on, and more seeds or recipes add to it. Recipes
that are the same experiment under two names are run once. The mean over shots 1-4 is what is tested, paired by
item and by seed, corrected over the recipes after Holm; single shots are shown without a test.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.data.rundir import write_json, write_text
from leverplus.errors import EvaluationError, LeverError
from leverplus.evaluate.conditions import require_same
from leverplus.evaluate.record import EvaluationRecord
from leverplus.evaluate.runs import EvaluatedRun, read_evaluated
from leverplus.evaluate.stats import compare, compare_seeds, holm
from leverplus.evaluate.stats.comparison import LEVEL
from leverplus.run.recipe import Recipe, find_recipe, load_recipe
from leverplus.run.sweep import Workshop, evaluate_once

Scores = NDArray[np.float64]
BASELINE = "baseline"
_FILE = Path(__file__).with_name("plans.toml")
_LISTED = tomllib.loads(_FILE.read_text("utf-8"))
PLANS: Mapping[str, float | None] = {
    **dict.fromkeys(_LISTED["recipes"]),
    **_LISTED["reported"],
}
"""The recipes of the table, and by how many points each was reported above the baseline (None: not reported)."""

DOCUMENTS = "documents/"
"""How the names of plans in the form of the documents begin."""

BESIDE = ("zero_shot", "random", "nearest_text", "nearest_image", "nearest_both")
"""Arms without training whose means stand below the table."""

QUICK_RECIPES = (BASELINE, "plan5")
QUICK = (
    "pool.size=12", "score.budget=900", "score.queries=8", "score.dev_queries=4", "score.dev_shots=[1]",
    "select.hidden=16", "eval.items=12", "eval.shots=[1,2]", "eval.dev_items=4",
    "eval.random_draws=1",
)  # fmt: skip
"""Sizes of `--quick`, which proves that the benchmark runs and measures nothing."""


def quick_plan_settings(name: str) -> list[str]:
    """The sizes of `--quick` for a recipe: one epoch of each of its stages."""
    return [*QUICK, *(f"{stage}.epochs=1" for stage in load_recipe(name).stages)]


def run_plans(
    names: Sequence[str],
    seeds: int,
    workshop: Workshop,
    *,
    quick: bool = False,
) -> dict[str, Any]:
    """Run what is missing and compare; writes bench.json and bench.md. The baseline is always among the recipes.

    A recipe that cannot be run is named under `failed` with the sentence that says why; the others go on.
    """
    wanted = list(dict.fromkeys([BASELINE, *names]))
    if len(wanted) < 2:
        raise EvaluationError(
            f"name a recipe beside {BASELINE}, which all are compared with (--recipes plan5,plan6)"
        )
    recipes = {}
    for name in wanted:
        sizes: Sequence[str] = ()
        if quick:
            sizes = quick_plan_settings(name)
        recipes[name] = load_recipe(name, sizes)
    owners = first_of_each(recipes)
    distinct = list(dict.fromkeys(owners.values()))
    done: dict[str, list[EvaluatedRun]] = {}
    failed: dict[str, str] = {}
    for number, name in enumerate(distinct, 1):
        workshop.say(f"recipe {number} of {len(distinct)}: {name}")
        try:
            runs = []
            for seed in range(seeds):
                recipe = recipes[name]
                run = workshop.open(recipe, find_recipe(name), recipe.name, seed)
                evaluate_once(run)
                runs.append(read_evaluated(run.folder))
            done[name] = runs
        except LeverError as error:
            if name == BASELINE:
                raise
            failed[name] = str(error)
            workshop.say(f"{name} failed: {error}")
    kept = {name: owner for name, owner in owners.items() if owner in done}
    found = {**summarise_plans(done, kept), "failed": failed, "quick": quick}
    write_json(workshop.folder / "bench.json", found)
    write_text(workshop.folder / "bench.md", plans_markdown(found))
    return found


def first_of_each(recipes: Mapping[str, Recipe]) -> dict[str, str]:
    """For every name the first name of the same experiment."""
    first: dict[str, str] = {}
    owners = {}
    for name, recipe in recipes.items():
        owners[name] = first.setdefault(recipe.hash, name)
    return owners


def reference_of(name: str, measured: Collection[str]) -> str:
    """What a recipe is compared with: in the form of the documents with their own baseline, where that was run too."""
    own = f"{DOCUMENTS}{BASELINE}_documents"
    if name.startswith(DOCUMENTS) and name != own and own in measured:
        return own
    return BASELINE


def summarise_plans(
    done: Mapping[str, Sequence[EvaluatedRun]], owners: Mapping[str, str]
) -> dict[str, Any]:
    """One row a recipe: accuracies, and the difference from its baseline in the mean over shots, after Holm."""
    names = []
    conditions = []
    scores = {}
    for name, runs in done.items():
        own = []
        for run in runs:
            names.append(run.name)
            conditions.append(run.record.conditions)
            own.append(run.scores("learned", "mean"))
        scores[name] = np.stack(own)
    require_same(names, conditions)
    first = done[BASELINE][0]
    clusters = first.results.images
    differences = {}
    for name, trained in scores.items():
        if name != BASELINE:
            rival = scores[reference_of(name, scores)]
            found = compare_by_seed(trained, rival, clusters=clusters)
            differences[name] = found
    chances = [found["p_value"] for found in differences.values()]
    for found, p in zip(differences.values(), holm(chances), strict=True):
        low, high = found["ci95"]
        found["p_adjusted"] = p
        found["within_noise"] = p >= LEVEL or low <= 0.0 <= high
    rows = []
    for name, owner in owners.items():
        row = _row(name, owner, done[owner], differences.get(owner))
        rows.append({**row, "from": reference_of(owner, done)})
    arms = {}
    for arm, values in first.record.arms.items():
        if values.mean is not None:
            arms[arm] = values.mean
    return {
        "n": len(clusters),
        "seeds": len(done[BASELINE]),
        "baseline": BASELINE,
        "recipes": rows,
        "arms": arms,
        "conditions": first.record.conditions,
    }


def _row(
    name: str,
    owner: str,
    runs: Sequence[EvaluatedRun],
    difference: Mapping[str, Any] | None,
) -> dict[str, Any]:
    records = [run.record for run in runs]
    values: dict[str, list[float]] = {}
    calls = 0
    for record in records:
        learned = record.arms["learned"]
        for n, value in learned.shots.items():
            values.setdefault(str(n), []).append(value)
        calls = max(calls, record.model_calls or 0)
    # behind those of single shots
    values["mean"] = [record.arms["learned"].accuracy for record in records]
    return {
        "recipe": name,
        "same_as": None if owner == name else owner,
        "accuracy": {key: float(np.mean(own)) for key, own in values.items()},
        "gap_closed": mean_gap(records),
        "model_calls": calls,
        "difference": difference,
        "reported": PLANS.get(name),
    }


def compare_by_seed(
    own: Scores,
    baseline: Scores,
    *,
    clusters: Sequence[Hashable],
) -> dict[str, Any]:
    """The difference of two recipes from scores (seeds, n) in [0, 1], paired by item and by seed.

    Runs of one seed start from the same weights and the same training queries, so what a seed does to both recipes
    cancels: the differences, moved into [0, 1], are an arm with seeds, compared with the constant one half. That is an
    approximation which needs more than a handful of changed items, so the exact test over the items must agree: the
    larger p, the wider interval and the larger detectable effect are taken.
    """
    changed = own - baseline
    first = own.mean(axis=0)
    items = compare(first, baseline.mean(axis=0), clusters=clusters)
    low, high = items.ci95
    p_value = items.p_value
    mde80 = items.mde80
    seed_sd = None
    if len(own) > 1:
        seed_sd = 0.0
    if len(own) > 1 and changed.any():
        half = np.full((1, own.shape[1]), 0.5)
        both = compare_seeds((changed + 1.0) / 2.0, half, clusters=clusters)
        p_value = max(p_value, both.p_value)
        mde80 = max(mde80, 2.0 * both.mde80)
        low = min(low, 2.0 * both.ci95[0])
        high = max(high, 2.0 * both.ci95[1])
        seed_sd = 2.0 * both.seed_sd[0]
    return {
        "diff": items.diff,
        "p_value": p_value,
        "mde80": mde80,
        "ci95": [low, high],
        "seed_sd": seed_sd,
    }


def mean_gap(records: Sequence[EvaluationRecord]) -> float | None:
    """The share of the way from random to the oracle, over seeds; None where the recipe runs no oracle."""
    total = 0.0
    for record in records:
        share = record.gap_closed.get("learned", {}).get("mean")
        if share is None:
            return None
        total += share
    return total / len(records)


HEADER = (
    "recipe",
    "accuracy by shots",
    "mean",
    "points",
    "95 % interval",
    "p (Holm)",
    "verdict",
    "OK-VQA",
)


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of the table as texts; points are hundredths of accuracy."""
    # the mean stands last
    *shots, mean = (f"{100 * value:.1f}" for value in row["accuracy"].values())
    start = [row["recipe"], " / ".join(shots), mean]
    reported = ""
    if row["reported"] is not None:
        reported = f"{row['reported']:+.2f}"
    found = row["difference"]
    if found is None:
        return [*start, "", "", "", "the baseline", reported]
    low, high = found["ci95"]
    verdict = "below"
    if found["diff"] > 0:
        verdict = "above"
    if found["diff"] == 0.0 and found["seed_sd"] == 0.0:
        verdict = "the same answers"
    elif found["within_noise"]:
        verdict = "within noise"
    if row["same_as"]:
        verdict += f" (same as {row['same_as']})"
    if row.get("from", BASELINE) != BASELINE:
        verdict += f" (from {row['from']})"
    points = f"{100 * found['diff']:+.2f}"
    interval = f"{100 * low:+.1f} to {100 * high:+.1f}"
    return [*start, points, interval, f"{found['p_adjusted']:.2g}", verdict, reported]


def _seeds(found: Mapping[str, Any]) -> str:
    if found["seeds"] == 1:
        return "1 seed"
    return f"{found['seeds']} seeds"


def plan_sentence(row: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """What a recipe's `expected` says: its accuracy and its difference from the baseline, with n and seeds."""
    mean = (
        f"{100 * row['accuracy']['mean']:.1f} % on the world in the mean over shots 1-4"
    )
    size = f"{found['n']} test items, {_seeds(found)}"
    if row["difference"] is None:
        return f"{mean} ({size})"
    *_, points, interval, _p, verdict, _reported = cells(row)
    return f"{mean}, {points} points from {found['baseline']} (95 % interval {interval}; {size}): {verdict}"


def conclusion(found: Mapping[str, Any]) -> str:
    """How many differences are real, and what could have been seen."""
    tested = real = 0
    detectable = 0.0
    for row in found["recipes"]:
        difference = row["difference"]
        if difference and not row["same_as"]:
            tested += 1
            real += not difference["within_noise"]
            detectable = max(detectable, difference["mde80"])
    if not tested:
        return f"No recipe could be compared with {found['baseline']}."
    return (
        f"{real} of {tested} recipes differ from {found['baseline']} beyond noise; a true difference of "
        f"{100 * detectable:.1f} points would be found four times in five."
    )


def plans_markdown(found: Mapping[str, Any]) -> str:
    """The table as Markdown, with its n, its seeds and what it says."""
    lines = []
    if found["quick"]:
        said = "Quick sizes: this shows that the benchmark runs, and measures nothing."
        lines += [said, ""]
    lines += [
        f"Accuracy on {found['n']} test items, {_seeds(found)} a recipe; difference from {found['baseline']} "
        "in the mean over shots.",
        "",
    ]
    rows = [HEADER, ["---"] * len(HEADER), *map(cells, found["recipes"])]
    for row in rows:
        lines.append(f"| {' | '.join(row)} |")
    lines.append("")
    arms = found["arms"]
    known = [f"{arm} {100 * arms[arm]:.1f}" for arm in BESIDE if arm in arms]
    if known:
        listed = ", ".join(known)
        lines += [f"On the same items, without training: {listed}.", ""]
    lines.append(conclusion(found))
    for name, why in found["failed"].items():
        lines.append(f"\n{name} failed: {why}")
    return "\n".join(lines) + "\n"
