"""Compares runs, paired on the same items; combines the seeds of one recipe and corrects for all comparisons."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus import rundir
from leverplus.errors import DataError, EvaluationError
from leverplus.evaluation.behaviour import agreement, help_and_harm
from leverplus.evaluation.conditions import items_hash, require_same
from leverplus.evaluation.names import MEAN_SHOTS
from leverplus.evaluation.predictions import Results, check_items, read_predictions
from leverplus.rundir import read_json
from leverplus.stats import compare, compare_seeds, holm
from leverplus.stats.comparison import LEVEL
from leverplus.types import ItemId

Scores = NDArray[np.float64]
KnownItems = Callable[[str], Collection[ItemId]]
"""The ids of a split; called only when predictions do not fit their eval.json."""


@dataclass(frozen=True)
class EvaluatedRun:
    """A run that was evaluated: its names and seed, its eval.json and its predictions."""

    name: str
    recipe: str
    recipe_hash: str
    seed: int
    report: Mapping[str, Any]
    results: Results

    def scores(self, arm: str, shots: str, order: Sequence[ItemId]) -> Scores:
        """Accuracy of every item at a number of shots, or their mean over shots 1-4, in the order given."""
        rows = {item: row for row, item in enumerate(self.results.items)}
        found = self.results.shots(arm)
        if found == [0]:  # an arm without demonstrations is the same at every number of shots
            wanted = [0]
        elif shots == "mean":
            wanted = [n for n in found if n in MEAN_SHOTS]
        else:
            wanted = [int(shots)]
        values = np.mean([self.results.accuracy(arm, n) for n in wanted], axis=0)  # (n,)
        return np.asarray(values[[rows[item] for item in order]])


def read_evaluated(
    folder: Path, known: KnownItems, split: str = "test", arm: str = "learned", arms: Collection[str] | None = None
) -> EvaluatedRun:
    """An evaluated run from its folder; predictions that do not fit are refused with a sentence.

    With `arms` the predictions of those alone are read.
    """
    evaluated = rundir.of_split(rundir.EVAL, split)
    manifest = read_json(folder / rundir.MANIFEST, f"lever eval {folder}")
    report = read_json(folder / evaluated, f"lever eval {folder}")
    conditions = report.get("conditions")
    if not isinstance(conditions, Mapping):
        raise DataError(f"{folder}/{evaluated} does not say how it was measured; type `lever eval {folder}`")
    path = folder / rundir.of_split(rundir.PREDICTIONS, split)
    results = read_predictions(path, arms)
    if items_hash(results.items) != conditions.get("items"):
        check_items(results, known(split), str(path))
        raise EvaluationError(f"{path} and {evaluated} hold different items; type `lever eval {folder}`")
    if arm not in results.draws:
        raise EvaluationError(f"{path} has no arm '{arm}'; known: {', '.join(results.draws)}")
    return EvaluatedRun(
        folder.name or str(folder), manifest["recipe"], manifest["recipe_hash"], manifest["seed"], report, results
    )


@dataclass(frozen=True)
class ComparedMethod:
    """What is compared: the seeds of one recipe, or an arm that does not learn."""

    name: str
    runs: tuple[EvaluatedRun, ...]
    arm: str

    @property
    def learns(self) -> bool:
        return self.arm.startswith("learned")

    def scores(self, shots: str, order: Sequence[ItemId]) -> Scores:
        """(seeds, n)."""
        return np.stack([run.scores(self.arm, shots, order) for run in self.runs])

    def shots(self) -> list[int]:
        return self.runs[0].results.shots(self.arm)


def methods_of(runs: Sequence[EvaluatedRun], arm: str = "learned") -> list[ComparedMethod]:
    """Runs of one recipe and checkpoint are the seeds of one method; the same seed twice is refused."""
    groups: dict[tuple[str, Any], list[EvaluatedRun]] = {}
    for run in runs:
        groups.setdefault((run.recipe_hash, run.report.get("checkpoint")), []).append(run)
    methods = []
    for own in groups.values():
        seeds: dict[int, str] = {}
        for run in own:
            if run.seed in seeds:
                raise EvaluationError(
                    f"{seeds[run.seed]} and {run.name} are the same recipe with the same seed ({run.seed}), so there "
                    "is nothing to compare; use runs with different seeds or recipes"
                )
            seeds[run.seed] = run.name
        methods.append(ComparedMethod(_method_name(own, runs), tuple(own), arm))
    return methods


def _method_name(own: Sequence[EvaluatedRun], runs: Sequence[EvaluatedRun]) -> str:
    """The name of a single run; of several seeds their recipe, with its hash where another one has the same name."""
    first = own[0]
    if len(own) == 1:
        return first.name
    namesakes = [run for run in runs if run.recipe == first.recipe and run.recipe_hash != first.recipe_hash]
    return f"{first.recipe} {first.recipe_hash[:6]}" if namesakes else first.recipe


def pick_baseline(methods: Sequence[ComparedMethod], wanted: str | None) -> tuple[ComparedMethod, list[ComparedMethod]]:
    """The baseline (a method, a run of one, or an arm of the runs; the first method unless told) and the others."""
    if wanted is None:
        if len(methods) < 2:
            rivals = [arm for arm in methods[0].runs[0].results.draws if arm != methods[0].arm]
            arms = f", or --baseline with one of {', '.join(rivals)}" if rivals else ""
            raise EvaluationError(f"there is nothing to compare with: name runs of two recipes{arms}")
        return methods[0], list(methods[1:])
    for method in methods:
        if wanted == method.name or wanted in {run.name for run in method.runs}:
            others = [other for other in methods if other is not method]
            if not others:
                raise EvaluationError(f"'{wanted}' is the only method; name a run of another recipe as well")
            return method, others
    first = methods[0].runs[0]
    if wanted not in first.results.draws or wanted == methods[0].arm:
        known = [method.name for method in methods] + [arm for arm in first.results.draws if arm != methods[0].arm]
        raise EvaluationError(f"there is no run or arm called '{wanted}'; known: {', '.join(known)}")
    return ComparedMethod(wanted, (first,), wanted), list(methods)


def compare_runs(runs: Sequence[EvaluatedRun], baseline: str | None = None, arm: str = "learned") -> dict[str, Any]:
    """Every method against the baseline at each common number of shots and in the mean, corrected over all rows."""
    if not runs:
        raise EvaluationError("there are no runs to compare; name at least two run folders")
    require_same([run.name for run in runs], [run.report["conditions"] for run in runs])
    against, others = pick_baseline(methods_of(runs, arm), baseline)
    order = sorted(runs[0].results.items)
    images = dict(zip(runs[0].results.items, runs[0].results.images, strict=True))
    clusters = [images[item] for item in order]
    pairs = [(method, shots) for method in others for shots in _common_shots(method, against)]
    rows = []
    for method, shots in pairs:
        names = {"arm": method.name, "baseline": against.name, "shots": shots}
        first, second = method.scores(shots, order), against.scores(shots, order)
        rows.append({**names, **_compare(first, second, order, clusters, len(pairs))})
    for row, p in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["p_adjusted"] = p
        row["within_noise"] = p >= LEVEL or row["ci95"][0] <= 0.0 <= row["ci95"][1]
    return {
        "n": len(order),
        "split": runs[0].report["split"],
        "baseline": against.name,
        "methods": [_describe(method, order) for method in (against, *others)],
        "comparisons": rows,
        "picks": _picks(runs, arm),
        "notes": _notes(against, others),
        "conditions": dict(runs[0].report["conditions"]),
    }


def _common_shots(method: ComparedMethod, against: ComparedMethod) -> list[str]:
    own, other = method.shots(), against.shots()
    common = own if other == [0] else [n for n in own if n in other]  # [0]: shows none, so it compares with any number
    if not common:
        raise EvaluationError(f"{method.name} and {against.name} were not evaluated at a common number of shots")
    averaged = _means_over(own)  # the mean of one number of shots is that number's own row
    with_mean = len(averaged) > 1 and (other == [0] or averaged == _means_over(other))
    return [str(n) for n in common] + (["mean"] if with_mean else [])


def _means_over(shots: Sequence[int]) -> list[int]:
    return [n for n in shots if n in MEAN_SHOTS]


def _compare(
    first: Scores, second: Scores, order: Sequence[ItemId], clusters: Sequence[str], comparisons: int
) -> dict[str, Any]:
    """Two methods from scores (seeds, n) each; `comparisons` is how many p is corrected for."""
    counts = help_and_harm(first.mean(axis=0), second.mean(axis=0))
    if len(first) == 1 and len(second) == 1:
        found = compare(first[0], second[0], ids=order, clusters=clusters)
        values = {key: getattr(found, key) for key in ("n", "diff", "p_value", "mde80")}
        ci95, spread, detectable = found.ci95, None, found.detectable(comparisons)
    else:
        seeded = compare_seeds(first, second, clusters=clusters)
        values = {key: getattr(seeded, key) for key in ("n", "diff", "p_value", "mde80")}
        ci95, spread, detectable = seeded.ci95, list(seeded.seed_sd), seeded.detectable(comparisons)
    return {
        **values,
        "mde80_adjusted": detectable,
        "ci95": list(ci95),
        "helped": counts["helped"],
        "harmed": counts["harmed"],
        "seeds": [len(first), len(second)],
        "seed_sd": spread,
    }


def _describe(method: ComparedMethod, order: Sequence[ItemId]) -> dict[str, Any]:
    shots = method.shots()
    keys = [str(n) for n in shots] + (["mean"] if any(n in MEAN_SHOTS for n in shots) else [])
    return {
        "name": method.name,
        "arm": method.arm,
        "runs": [run.name for run in method.runs] if method.learns else [],
        "seeds": [run.seed for run in method.runs] if method.learns else [],
        "accuracy": {key: float(method.scores(key, order).mean()) for key in keys},
    }


def _picks(runs: Sequence[EvaluatedRun], arm: str) -> list[dict[str, Any]]:
    """How often every run picks the same demonstrations as the first one, by shots."""
    rows = []
    first = runs[0]
    for run in runs[1:]:
        places = {item: row for row, item in enumerate(run.results.items)}
        for shots in first.results.shots(arm):
            if shots in run.results.draws[arm]:
                own = [prediction.demos for prediction in first.results.draws[arm][shots][0]]
                draw = run.results.draws[arm][shots][0]
                other = [draw[places[item]].demos for item in first.results.items]
                found = agreement(own, other).as_json()
                rows.append({"first": first.name, "second": run.name, "shots": shots, **found})
    return rows


def _notes(against: ComparedMethod, others: Sequence[ComparedMethod]) -> list[str]:
    """Warnings about the rows: single seeds, means over different shots, choices made on test."""
    notes = []
    trained = [method for method in (against, *others) if method.learns]
    single = [method.name for method in trained if len(method.runs) == 1]
    if single:
        notes.append(
            f"trained once: {', '.join(single)}; the spread over seeds is unknown, so this compares these selectors, "
            "not their recipes (train more seeds with `lever run RECIPE --seed N`)"
        )
    means = {method.name: _means_over(method.shots()) for method in (against, *others) if method.shots() != [0]}
    if len({tuple(shots) for shots in means.values()}) > 1:
        own = "; ".join(f"{name}: {', '.join(map(str, shots)) or 'none'}" for name, shots in means.items())
        notes.append(f"the means are over other numbers of shots, so they do not compare ({own})")
    for method in trained:
        for run in method.runs:
            if run.report.get("chosen_on_test"):
                notes.append(f"{run.name} was chosen on test: its accuracy is too good by luck")
    return notes
