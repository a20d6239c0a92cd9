"""All plans in one table on the world: every recipe with several seeds, against the baseline recipe, with intervals.

Run folders hold what is done, so a benchmark that was stopped goes on, and more seeds or recipes add to it. Recipes
that are the same experiment under two names are run once. The mean over shots 1-4 is what is tested, paired by
item and by seed, corrected over the recipes after Holm; single shots are shown without a test.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leverplus.errors import EvaluationError, LeverError
from leverplus.experiment.workshop import Workshop, evaluate_once, read_back
from leverplus.recipe.recipe import Recipe, find_recipe, load_recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from leverplus.evaluation.runs import EvaluatedRun

    Scores = NDArray[np.float64]

BASELINE = "baseline"
PLANS: Mapping[str, float | None] = {
    BASELINE: None,
    "baseline_sft": 0.28,
    "plan1": 0.25,
    "plan2": 0.31,
    "plan3": None,
    "plan4": None,
    "plan5": 0.38,
    "plan6": 0.33,
    "plan5_8": 0.23,
    "plan7": 0.20,
    "plan7_1": 0.39,
    "plan7_2": 0.03,
    "plan8": None,
    "plan9_phase1": 0.19,
    "plan9_phase2": 0.08,
    "plan10": None,
    "exp1_1": None,
    "exp1_2": None,
    "exp1_3": None,
    "exp1_4": None,
    "exp2_1": None,
    "exp2_2": None,
    "exp3_1": None,
    "exp3_2": None,
    "exp3_3": None,
    "exp3_4": None,
    "exp_conditional": None,
    "exp_correctness": None,
    "run000": None,
    "run000_rce": None,
    "run000_advised": None,
    "run003": None,
    "run003_short": None,
    "run003_advised": None,
}
"""The recipes of the table, and how many points above the baseline (47.98) each was reported on 800 OK-VQA questions,
in the mean over shots 1-4; None: not reported, or not on these questions."""

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


def run_plans(names: Sequence[str], seeds: int, workshop: Workshop, *, quick: bool = False) -> dict[str, Any]:
    """Run what is missing and compare; writes bench.json and bench.md. The baseline is always among the recipes.

    A recipe that cannot be run is named under `failed` with the sentence that says why; the others go on.
    """
    from leverplus.rundir import write_json, write_text

    wanted = list(dict.fromkeys([BASELINE, *names]))
    if len(wanted) < 2:
        raise EvaluationError(f"name a recipe beside {BASELINE}, which all are compared with (--recipes plan5,plan6)")
    recipes = {name: load_recipe(name, quick_plan_settings(name) if quick else ()) for name in wanted}
    owners = first_of_each(recipes)
    done: dict[str, list[EvaluatedRun]] = {}
    failed: dict[str, str] = {}
    for number, name in enumerate(distinct := [name for name in wanted if owners[name] == name], 1):
        workshop.say(f"recipe {number} of {len(distinct)}: {name}")
        try:
            done[name] = [_evaluated(workshop, recipes[name], name, seed) for seed in range(seeds)]
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


def _evaluated(workshop: Workshop, recipe: Recipe, name: str, seed: int) -> EvaluatedRun:
    run = workshop.open(recipe, find_recipe(name), recipe.name, seed)
    evaluate_once(run)
    return read_back(run)


def first_of_each(recipes: Mapping[str, Recipe]) -> dict[str, str]:
    """For every name the first name of the same experiment."""
    first: dict[str, str] = {}
    return {name: first.setdefault(recipe.hash, name) for name, recipe in recipes.items()}


def reference_of(name: str, measured: Collection[str]) -> str:
    """What a recipe is compared with: in the form of the documents with their own baseline, where that was run too."""
    own = f"{DOCUMENTS}{BASELINE}_documents"
    return own if name.startswith(DOCUMENTS) and name != own and own in measured else BASELINE


def summarise_plans(done: Mapping[str, Sequence[EvaluatedRun]], owners: Mapping[str, str]) -> dict[str, Any]:
    """One row a recipe: accuracies, and the difference from its baseline in the mean over shots, after Holm."""
    from leverplus.evaluation.conditions import require_same
    from leverplus.stats import holm
    from leverplus.stats.comparison import LEVEL

    everything = [run for runs in done.values() for run in runs]
    require_same([run.name for run in everything], [run.report["conditions"] for run in everything])
    first = done[BASELINE][0]
    order = sorted(first.results.items)
    images = dict(zip(first.results.items, first.results.images, strict=True))
    scores = {name: np.stack([run.scores("learned", "mean", order) for run in runs]) for name, runs in done.items()}
    differences = {
        name: compare_by_seed(
            own, scores[reference_of(name, scores)], ids=order, clusters=[images[item] for item in order]
        )
        for name, own in scores.items()
        if name != BASELINE
    }
    for difference, p in zip(differences.values(), holm([d["p_value"] for d in differences.values()]), strict=True):
        difference["p_adjusted"] = p
        difference["within_noise"] = p >= LEVEL or difference["ci95"][0] <= 0.0 <= difference["ci95"][1]
    return {
        "n": len(order),
        "seeds": len(done[BASELINE]),
        "baseline": BASELINE,
        "recipes": [
            {**_row(name, owner, done[owner], differences.get(owner)), "from": reference_of(owner, done)}
            for name, owner in owners.items()
        ],
        "arms": {arm: values["mean"] for arm, values in first.report["arms"].items() if "mean" in values},
        "conditions": dict(first.report["conditions"]),
    }


def _row(name: str, owner: str, runs: Sequence[EvaluatedRun], difference: Mapping[str, Any] | None) -> dict[str, Any]:
    reports = [run.report["arms"]["learned"] for run in runs]
    shots = {n: float(np.mean([report["shots"][n] for report in reports])) for n in reports[0]["shots"]}
    return {
        "recipe": name,
        "same_as": owner if owner != name else None,
        "accuracy": {**shots, "mean": float(np.mean([report["mean"] for report in reports]))},
        "gap_closed": mean_gap([run.report for run in runs]),
        "model_calls": max(run.report["model_calls"] for run in runs),
        "difference": difference,
        "reported": PLANS.get(name),
    }


def compare_by_seed(
    own: Scores,
    baseline: Scores,
    *,
    ids: Sequence[Hashable],
    clusters: Sequence[Hashable],
    worlds: Sequence[Hashable] | None = None,
) -> dict[str, Any]:
    """The difference of two recipes from scores (seeds, n) in [0, 1], paired by item and by seed.

    Runs of one seed start from the same weights and the same training queries, so what a seed does to both recipes
    cancels: the differences, moved into [0, 1], are an arm with seeds, compared with the constant one half. That is an
    approximation which needs more than a handful of changed items, so the exact test over the items must agree: the
    larger p, the wider interval and the larger detectable effect are taken.
    """
    from leverplus.stats import compare, compare_seeds

    changed = own - baseline
    items = compare(own.mean(axis=0), baseline.mean(axis=0), ids=ids, clusters=clusters)
    found = {"diff": items.diff, "p_value": items.p_value, "mde80": items.mde80, "ci95": list(items.ci95)}
    if len(own) == 1:
        return {**found, "seed_sd": None}
    if not changed.any():
        return {**found, "seed_sd": 0.0}
    half = np.full((1, own.shape[1]), 0.5)
    both = compare_seeds((changed + 1.0) / 2.0, half, clusters=clusters, worlds=worlds)
    return {
        "diff": items.diff,
        "p_value": max(items.p_value, both.p_value),
        "mde80": max(items.mde80, 2.0 * both.mde80),
        "ci95": [min(items.ci95[0], 2.0 * both.ci95[0]), max(items.ci95[1], 2.0 * both.ci95[1])],
        "seed_sd": 2.0 * both.seed_sd[0],
    }


def mean_gap(reports: Sequence[Mapping[str, Any]]) -> float | None:
    """The share of the way from random to the oracle, over seeds; None where the recipe runs no oracle."""
    shares = [report.get("gap_closed", {}).get("learned", {}).get("mean") for report in reports]
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if len(known) == len(shares) else None


HEADER = ("recipe", "accuracy by shots", "mean", "points", "95 % interval", "p (Holm)", "verdict", "OK-VQA")


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of the table as texts; points are hundredths of accuracy."""
    shots = " / ".join(f"{100 * value:.1f}" for key, value in row["accuracy"].items() if key != "mean")
    start = [row["recipe"], shots, f"{100 * row['accuracy']['mean']:.1f}"]
    reported = "" if row["reported"] is None else f"{row['reported']:+.2f}"
    if row["difference"] is None:
        return [*start, "", "", "", "the baseline", reported]
    found = row["difference"]
    low, high = (100 * bound for bound in found["ci95"])
    side = "above" if found["diff"] > 0 else "below"
    verdict = "within noise" if found["within_noise"] else side
    if found["diff"] == 0.0 and found["seed_sd"] == 0.0:
        verdict = "the same answers"
    if row["same_as"]:
        verdict += f" (same as {row['same_as']})"
    if row.get("from", BASELINE) != BASELINE:
        verdict += f" (from {row['from']})"
    return [
        *start,
        f"{100 * found['diff']:+.2f}",
        f"{low:+.1f} to {high:+.1f}",
        f"{found['p_adjusted']:.2g}",
        verdict,
        reported,
    ]


def _seeds(found: Mapping[str, Any]) -> str:
    return "1 seed" if found["seeds"] == 1 else f"{found['seeds']} seeds"


def plan_sentence(row: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """What a recipe's `expected` says: its accuracy and its difference from the baseline, with n and seeds."""
    mean = f"{100 * row['accuracy']['mean']:.1f} % on the world in the mean over shots 1-4"
    size = f"{found['n']} test items, {_seeds(found)}"
    if row["difference"] is None:
        return f"{mean} ({size})"
    *_, points, interval, _p, verdict, _reported = cells(row)
    return f"{mean}, {points} points from {found['baseline']} (95 % interval {interval}; {size}): {verdict}"


def conclusion(found: Mapping[str, Any]) -> str:
    """How many differences are real, and what could have been seen."""
    tested = [row["difference"] for row in found["recipes"] if row["difference"] and not row["same_as"]]
    real = sum(not difference["within_noise"] for difference in tested)
    if not tested:
        return f"No recipe could be compared with {found['baseline']}."
    detectable = max(difference["mde80"] for difference in tested)
    return (
        f"{real} of {len(tested)} recipes differ from {found['baseline']} beyond noise; a true difference of "
        f"{100 * detectable:.1f} points would be found four times in five."
    )


def plans_markdown(found: Mapping[str, Any]) -> str:
    """The table as Markdown, with its n, its seeds and what it says."""
    title = f"Accuracy on {found['n']} test items, {_seeds(found)} a recipe; difference from {found['baseline']}"
    lines = [title + " in the mean over shots.", ""]
    if found["quick"]:
        lines = ["Quick sizes: this shows that the benchmark runs, and measures nothing.", "", *lines]
    lines += [f"| {' | '.join(line)} |" for line in (HEADER, ["---"] * len(HEADER), *map(cells, found["recipes"]))]
    known = [f"{arm} {100 * found['arms'][arm]:.1f}" for arm in BESIDE if arm in found["arms"]]
    lines += ["", *([f"On the same items, without training: {', '.join(known)}.", ""] if known else [])]
    lines += [conclusion(found), *(f"\n{name} failed: {why}" for name, why in found["failed"].items())]
    return "\n".join(lines) + "\n"
