"""Every checkpoint of a run compared: its accuracy on the same items, and how its picks differ from the one before.

Choosing a checkpoint is a choice, so it belongs on dev; on test it is refused, or marked where it is forced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leverplus.errors import EvaluationError, MissingFile
from leverplus.evaluation import arms
from leverplus.evaluation.arms import EvaluationContext
from leverplus.evaluation.behaviour import agreement
from leverplus.evaluation.evaluate import mean_shots, run_arm
from leverplus.evaluation.predictions import Results
from leverplus.policies.base import Policy
from leverplus.renamed import first_name, stage_today
from leverplus.stats import known_interval
from leverplus.types import Demos


def checkpoint_names(folder: Path, stages: Iterable[str]) -> list[str]:
    """The checkpoints of a run in the order they were made: the epochs of every stage, then its chosen one."""
    if not folder.is_dir():
        return []
    # by the names of today; a folder from before a stage was renamed keeps its own
    found = {stage_today(path.name): path.name for path in folder.iterdir() if path.is_dir()}
    names = []
    for stage in stages:
        epochs = sorted(name for name in found if name.startswith(f"{stage}-epoch"))
        names += [found[name] for name in epochs]
        if stage in found:
            names.append(found[stage])
    return names


def checkpoint_folder(folder: Path, name: str, stages: Iterable[str]) -> Path:
    """The folder of a checkpoint; an unknown name is answered with the known ones."""
    known = checkpoint_names(folder, stages)
    if name not in known:
        name = first_name(name)  # a folder from before the stage was renamed
    if name not in known:
        listed = ", ".join(known) or "none; type `lever train RUN`"
        raise MissingFile(f"there is no checkpoint '{name}' in {folder}; known: {listed}")
    return folder / name


def guard_test(split: str, checkpoint: str | None, earlier: Mapping[str, Any] | None, force: bool) -> bool:
    """Whether this evaluation chooses on test; that is refused unless forced.

    It does when all checkpoints are tried there, or one other than that of an `earlier` result on test.
    """
    if split != "test" or checkpoint is None:
        return False
    sweeping = checkpoint == "all"
    again = earlier is not None and earlier.get("split") == "test" and earlier.get("checkpoint") != checkpoint
    if not (sweeping or again):
        return earlier is not None and bool(earlier.get("chosen_on_test"))
    if not force:
        what = "trying all checkpoints" if sweeping else f"trying checkpoint '{checkpoint}' after another one"
        raise EvaluationError(
            f"{what} on test chooses on test, and the best of many is too good by luck; choose with --split dev, "
            "or add --force, and the result will be marked chosen_on_test"
        )
    return True


def rows_of_checkpoints(
    context: EvaluationContext, policies: Iterable[tuple[str, Policy]], shots: Sequence[int]
) -> list[dict[str, Any]]:
    """One row per checkpoint: accuracy by shots, mean with its interval, agreement with the picks of the one before."""
    rows: list[dict[str, Any]] = []
    before: Sequence[Demos] | None = None
    for name, policy in policies:
        results = Results.of(context.queries)
        choices = arms.learned(policy, context.pools, context.table, sorted(shots))
        run_arm(results, context, "learned", choices)
        wanted = mean_shots(results, "learned") or sorted(shots)
        mean = np.mean([results.accuracy("learned", n) for n in wanted], axis=0)  # (items,), over shots
        picks = choices[max(choices)]
        rows.append(
            {
                "checkpoint": name,
                "shots": {str(n): float(results.accuracy("learned", n).mean()) for n in results.shots("learned")},
                "mean": float(mean.mean()),
                "ci95": known_interval(mean, clusters=results.images),
                "agreement": None if before is None else agreement(before, picks).as_json(),
            }
        )
        before = picks
    return rows


def best_row(rows: Sequence[Mapping[str, Any]]) -> str:
    """The checkpoint with the best mean, the earliest among equals."""
    if not rows:
        raise EvaluationError("there are no checkpoints to choose from; type `lever train RUN`")
    name: str = max(rows, key=lambda row: row["mean"])["checkpoint"]
    return name
