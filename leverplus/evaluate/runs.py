"""Compares runs, paired on the same items; combines the seeds of one recipe and corrects for all comparisons.

Beside it what the checkpoints of one run are set side by side by, and the refusal to choose on test.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.arms.base import Arm
from leverplus.data import rundir
from leverplus.data.rundir import read_json
from leverplus.data.types import Demos
from leverplus.errors import DataError, EvaluationError, MissingFile
from leverplus.evaluate.conditions import items_hash, require_same
from leverplus.evaluate.evaluate import EvaluationContext, mean_shots, run_arm
from leverplus.evaluate.names import MEAN_SHOTS
from leverplus.evaluate.predictions import Results, read_predictions
from leverplus.evaluate.record import (
    CheckpointRow,
    EvaluationRecord,
    MethodResult,
    PickAgreement,
    RunComparison,
    RunsCompared,
    read_record,
)
from leverplus.evaluate.stats import (
    Comparison,
    SeededComparison,
    compare,
    compare_seeds,
    holm,
    known_interval,
)
from leverplus.evaluate.stats.paired import TIE

Scores = NDArray[np.float64]
ON_TEST = (
    "on test chooses on test, and the best of many is too good by luck; choose with --split dev, "
    "or add --force, and the result will be marked chosen_on_test"
)


def agreement(first: Sequence[Demos], second: Sequence[Demos]) -> PickAgreement:
    """The agreement of two choices for the same items in the same order."""
    if len(first) != len(second) or not first:
        raise EvaluationError(
            f"picks can be compared for the same items only; got lists for {len(first)} and {len(second)} items"
        )
    same: dict[int, list[bool]] = {}
    identical = []
    shares = []
    for one, other in zip(first, second, strict=True):
        for place, (a, b) in enumerate(zip(one, other, strict=False)):
            same.setdefault(place, []).append(a == b)
        identical.append(one == other)
        union = len({*one, *other})
        share = 1.0
        if union:
            share = len(set(one) & set(other)) / union
        shares.append(share)
    return PickAgreement(
        n=len(first),
        identical=float(np.mean(identical)),
        by_position=tuple(float(np.mean(own)) for own in same.values()),
        jaccard=float(np.mean(shares)),
    )


@dataclass(frozen=True)
class EvaluatedRun:
    """A run that was evaluated: its names and seed, its eval.json and its predictions."""

    name: str
    recipe: str
    recipe_hash: str
    seed: int
    record: EvaluationRecord
    results: Results

    def scores(self, arm: str, shots: str) -> Scores:
        """Accuracy of every item at a number of shots, or their mean over shots 1-4 (`shots` "mean")."""
        wanted = self.results.shots(arm)
        if wanted != [0] and shots == "mean":
            wanted = _averaged(wanted)
        elif wanted != [0]:  # what shows nothing is the same at every number
            wanted = [int(shots)]
        own = [self.results.accuracy(arm, n) for n in wanted]
        return np.asarray(np.mean(own, axis=0))  # (n,)

    def picks(self, arm: str, shots: int) -> list[Demos]:
        """What an arm showed each item, in its first draw."""
        return [own.demos for own in self.results.first(arm, shots)]


def read_evaluated(
    folder: Path,
    split: str = "test",
    arm: str = "learned",
    arms: Collection[str] | None = None,
) -> EvaluatedRun:
    """An evaluated run from its folder; predictions that do not fit are refused with a sentence.

    With `arms` the predictions of those alone are read.
    """
    command = f"lever eval {folder}"
    evaluated = folder / rundir.of_split(rundir.EVAL, split)
    manifest = read_json(folder / rundir.MANIFEST)
    record = read_record(evaluated)
    if record is None:
        raise MissingFile(f"{evaluated} is not there; type `{command}`")
    if not record.conditions:
        raise DataError(
            f"{evaluated} does not say how it was measured; type `{command}`"
        )
    path = folder / rundir.of_split(rundir.PREDICTIONS, split)
    results = read_predictions(path, arms)
    if items_hash(results.items) != record.conditions.get("items"):
        raise EvaluationError(
            f"{path} and {evaluated.name} hold different items; type `{command}`"
        )
    if arm not in results.draws:
        raise EvaluationError(
            f"{path} has no arm '{arm}'; known: {', '.join(results.draws)}"
        )
    return EvaluatedRun(
        folder.name or str(folder),
        manifest["recipe"],
        manifest["recipe_hash"],
        manifest["seed"],
        record,
        results,
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

    def scores(self, shots: str) -> Scores:
        """(seeds, n)."""
        return np.stack([run.scores(self.arm, shots) for run in self.runs])

    def shots(self) -> list[int]:
        return self.runs[0].results.shots(self.arm)

    def result(self) -> MethodResult:
        keys = list(map(str, self.shots()))
        if _averaged(self.shots()):
            keys.append("mean")
        names = []
        seeds = []
        if self.learns:
            for run in self.runs:
                names.append(run.name)
                seeds.append(run.seed)
        return MethodResult(
            name=self.name,
            arm=self.arm,
            runs=names,
            seeds=seeds,
            accuracy={key: float(self.scores(key).mean()) for key in keys},
        )


def methods_of(
    runs: Sequence[EvaluatedRun], arm: str = "learned"
) -> list[ComparedMethod]:
    """Runs of one recipe and checkpoint are the seeds of one method; the same seed twice is refused."""
    groups: dict[tuple[str, str | None], list[EvaluatedRun]] = {}
    for run in runs:
        key = (run.recipe_hash, run.record.checkpoint)
        groups.setdefault(key, []).append(run)
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
        first = own[0]
        name = first.name
        if len(own) > 1:
            name = first.recipe
            hashes = {run.recipe_hash for run in runs if run.recipe == name}
            if len(hashes) > 1:
                name += f" {first.recipe_hash[:6]}"
        methods.append(ComparedMethod(name, tuple(own), arm))
    return methods


def pick_baseline(
    methods: Sequence[ComparedMethod], wanted: str | None
) -> tuple[ComparedMethod, list[ComparedMethod]]:
    """The baseline (a method, a run of one, or an arm of the runs; the first method unless told) and the others."""
    first = methods[0].runs[0]
    rivals = [arm for arm in first.results.draws if arm != methods[0].arm]
    names = [method.name for method in methods]
    if wanted in rivals and wanted not in names:
        return ComparedMethod(wanted, (first,), wanted), list(methods)
    against = None
    others = []
    for method in methods:
        own = {method.name, *(run.name for run in method.runs)}
        if against is None and (wanted is None or wanted in own):
            against = method
        else:
            others.append(method)
    if against is None:
        raise EvaluationError(
            f"there is no run or arm called '{wanted}'; known: {', '.join([*names, *rivals])}"
        )
    if not others:
        raise EvaluationError(
            f"there is nothing to compare with: name runs of two recipes, or --baseline with one of {', '.join(rivals)}"
        )
    return against, others


def compare_runs(
    runs: Sequence[EvaluatedRun], baseline: str | None = None, arm: str = "learned"
) -> RunsCompared:
    """Every method against the baseline at each common number of shots and in the mean, corrected over all rows."""
    if not runs:
        raise EvaluationError(
            "there are no runs to compare; name at least two run folders"
        )
    first = runs[0]
    require_same([run.name for run in runs], [run.record.conditions for run in runs])
    against, others = pick_baseline(methods_of(runs, arm), baseline)
    pairs = []
    for method in others:
        for shots in _common_shots(method, against):
            pairs.append((method, shots))
    clusters = first.results.images
    rows = []
    chances = []
    for method, shots in pairs:
        own = method.scores(shots)
        other = against.scores(shots)
        figures = _compare(own, other, clusters, len(pairs))
        chances.append(figures["p_value"])
        names = {"arm": method.name, "baseline": against.name, "shots": shots}
        rows.append({**names, **figures})
    typed = []
    for row, p in zip(rows, holm(chances), strict=True):
        typed.append(RunComparison(**row, p_adjusted=p))
    methods = [against, *others]
    return RunsCompared(
        n=len(first.results.items),
        split=first.record.split,
        baseline=against.name,
        methods=[method.result() for method in methods],
        comparisons=typed,
        picks=_picks(runs, arm),
        notes=_notes(methods),
        conditions=first.record.conditions,
    )


def _averaged(shots: Sequence[int]) -> list[int]:
    return [n for n in shots if n in MEAN_SHOTS]


def _common_shots(method: ComparedMethod, against: ComparedMethod) -> list[str]:
    own = method.shots()
    other = against.shots()
    common: list[str] = []
    for n in own:
        if n in other or other == [0]:  # [0]: shows none, so it fits any number
            common.append(str(n))
    if not common:
        raise EvaluationError(
            f"{method.name} and {against.name} were not evaluated at a common number of shots"
        )
    # the mean of one number of shots is that number's own row
    averaged = _averaged(own)
    if len(averaged) > 1 and (other == [0] or averaged == _averaged(other)):
        common.append("mean")
    return common


def _compare(
    first: Scores,
    second: Scores,
    clusters: Sequence[str],
    comparisons: int,
) -> dict[str, Any]:
    """Two methods from scores (seeds, n) each; `comparisons` is how many p is corrected for."""
    # means over seeds may differ by rounding: that is a tie
    change = first.mean(axis=0) - second.mean(axis=0)  # (n,)
    values: dict[str, Any] = {
        "helped": int((change > TIE).sum()),
        "harmed": int((change < -TIE).sum()),
        "seeds": (len(first), len(second)),
    }
    found: Comparison | SeededComparison
    if len(first) == 1 and len(second) == 1:
        found = compare(first[0], second[0], clusters=clusters)
    else:
        found = seeded = compare_seeds(first, second, clusters=clusters)
        values["seed_sd"] = seeded.seed_sd
    for name in ("n", "diff", "ci95", "p_value", "mde80"):
        values[name] = getattr(found, name)
    return {**values, "mde80_adjusted": found.detectable(comparisons)}


def _picks(runs: Sequence[EvaluatedRun], arm: str) -> list[PickAgreement]:
    """How often every run picks the same demonstrations as the first one, by shots."""
    rows = []
    first = runs[0]
    for run in runs[1:]:
        for shots in first.results.shots(arm):
            if shots in run.results.draws[arm]:
                own = first.picks(arm, shots)
                found = agreement(own, run.picks(arm, shots))
                names = {"first": first.name, "second": run.name, "shots": shots}
                rows.append(found.model_copy(update=names))
    return rows


def _notes(methods: Sequence[ComparedMethod]) -> list[str]:
    """Warnings about the rows: single seeds, means over different shots, choices made on test."""
    notes = []
    lucky = []
    single = []
    means = {}
    for method in methods:
        if method.shots() != [0]:
            averaged = map(str, _averaged(method.shots()))
            means[method.name] = ", ".join(averaged) or "none"
        if not method.learns:
            continue
        if len(method.runs) == 1:
            single.append(method.name)
        for run in method.runs:
            if run.record.chosen_on_test:
                lucky.append(
                    f"{run.name} was chosen on test: its accuracy is too good by luck"
                )
    if single:
        notes.append(
            f"trained once: {', '.join(single)}; the spread over seeds is unknown, so this compares these selectors, "
            "not their recipes (train more seeds with `lever run RECIPE --seed N`)"
        )
    if len(set(means.values())) > 1:
        own = "; ".join(f"{name}: {shots}" for name, shots in means.items())
        notes.append(
            f"the means are over other numbers of shots, so they do not compare ({own})"
        )
    return notes + lucky


def checkpoint_names(folder: Path, stages: Iterable[str]) -> list[str]:
    """The checkpoints of a run in the order they were made: the epochs of every stage, then its chosen one."""
    if not folder.is_dir():
        return []
    names: list[str] = []
    for stage in stages:
        paths = [*sorted(folder.glob(f"{stage}-epoch*")), folder / stage]
        names += [path.name for path in paths if path.is_dir()]
    return names


def checkpoint_folder(folder: Path, name: str, stages: Iterable[str]) -> Path:
    """The folder of a checkpoint; an unknown name is answered with the known ones."""
    known = checkpoint_names(folder, stages)
    if name not in known:
        listed = ", ".join(known) or "none; type `lever train RUN`"
        raise MissingFile(
            f"there is no checkpoint '{name}' in {folder}; known: {listed}"
        )
    return folder / name


def guard_test(
    split: str, checkpoint: str | None, earlier: EvaluationRecord | None, force: bool
) -> bool:
    """Whether this evaluation chooses on test; that is refused unless forced.

    It does when all checkpoints are tried there, or one other than that of an `earlier` result on test.
    """
    if split != "test" or checkpoint is None:
        return False
    what = ""
    if checkpoint == "all":
        what = "trying all checkpoints"
    elif earlier and earlier.split == "test" and earlier.checkpoint != checkpoint:
        what = f"trying checkpoint '{checkpoint}' after another one"
    if what and not force:
        raise EvaluationError(f"{what} {ON_TEST}")
    return bool(what) or (earlier is not None and earlier.chosen_on_test)


def rows_of_checkpoints(
    context: EvaluationContext,
    selectors: Iterable[tuple[str, Arm]],
    shots: Sequence[int],
) -> list[CheckpointRow]:
    """One row per checkpoint, on the same items."""
    rows: list[CheckpointRow] = []
    before: list[Demos] = []
    for name, arm in selectors:
        results = Results.of(context.queries)
        run_arm(results, context, arm, sorted(shots))
        known = results.shots(arm.spec)
        wanted = mean_shots(results, arm.spec) or known
        by_shots = {}
        averaged = []
        for n in known:
            accuracy = results.accuracy(arm.spec, n)
            by_shots[n] = float(accuracy.mean())
            if n in wanted:
                averaged.append(accuracy)
        mean = np.mean(averaged, axis=0)  # over shots, (items,)
        picks = [own.demos for own in results.first(arm.spec, max(known))]
        found = None
        if before:
            found = agreement(before, picks)
        row = CheckpointRow(
            checkpoint=name,
            shots=by_shots,
            mean=float(mean.mean()),
            ci95=known_interval(mean, clusters=results.images),
            agreement=found,
        )
        rows.append(row)
        before = picks
    return rows


def best_row(rows: Sequence[CheckpointRow]) -> str:
    """The checkpoint with the best mean, the earliest among equals."""
    if not rows:
        raise EvaluationError(
            "there are no checkpoints to choose from; type `lever train RUN`"
        )
    return max(rows, key=lambda row: row.mean).checkpoint
