"""Mending: from a recipe with a known mistake, apply only the fix of the doctor's first error, again and again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from leverplus import rundir
from leverplus.errors import TrainingError
from leverplus.experiment.workshop import Workshop
from leverplus.lab.gallery import CaseOutcome, GalleryCase, case, run_case

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from leverplus.doctor.findings import Finding
    from leverplus.experiment.run import Run
    from leverplus.stats import Comparison

ATTEMPTS = 16


@dataclass(frozen=True)
class Mended:
    """A recipe without errors: its run, and which setting was changed for which finding, in order."""

    outcome: CaseOutcome
    fixes: tuple[tuple[str, str], ...]


def mend(name: str, workshop: Workshop, overrides: Sequence[str] = (), like: Run | None = None) -> Mended:
    """Apply the fix of the first error until the doctor finds none; an error without a fix raises TrainingError.

    What the preflight finds in the recipe is mended before anything is trained, as `lever run` would refuse it.
    """
    fixes: list[tuple[str, str]] = []
    for attempt in range(ATTEMPTS):
        own = case(name, overrides, [setting for _, setting in fixes])
        own = replace(own, recipe=replace(own.recipe, name=f"{own.recipe.name}-mended{attempt}"))
        errors, outcome = _errors_in_recipe(own), None
        if not errors:
            outcome = run_case(own, workshop, like, evaluate=False)
            errors = [finding for finding in outcome.findings if finding.severity == "error"]
        if not errors and outcome is not None:
            return Mended(outcome, tuple(fixes))
        first = errors[0]
        if first.fix is None:
            raise TrainingError(f"{name}: no setting mends {first.code} ({first.title})")
        fixes += [(first.code, f"{key}={json.dumps(value)}") for key, value in first.fix["set"].items()]
    raise TrainingError(f"{name}: still wrong after {ATTEMPTS} fixes: {', '.join(code for code, _ in fixes)}")


def _errors_in_recipe(own: GalleryCase) -> list[Finding]:
    from leverplus.doctor.live import preflight

    return [finding for finding in preflight(own.recipe.values()) if finding.severity == "error"]


def compare_learned(one: Run, other: Run, items: int) -> Comparison:
    """The selectors of two runs on the same test items, mean accuracy over their shots, images as clusters."""
    from leverplus.stats import compare

    queries = one.chosen_items("test", items)
    first, second = (learned_scores(run, items) for run in (one, other))
    return compare(first, second, ids=[item.id for item in queries], clusters=[item.image_id for item in queries])


def learned_scores(run: Run, items: int) -> NDArray[np.float64]:
    """Accuracy of a run's selector on every item, mean over its shots."""
    from leverplus.evaluation.evaluate import run_learned
    from leverplus.evaluation.predictions import Results
    from leverplus.experiment.evaluate import evaluation_context
    from leverplus.training.checkpoint import load_checkpoint

    policy = load_checkpoint(run.folder / rundir.CHECKPOINTS / list(run.recipe.stages)[-1])[0]
    context = evaluation_context(run, run.chosen_items("test", items))
    results, shots = Results.of(context.queries), sorted(run.recipe.eval.shots)
    run_learned(results, context, policy, shots)
    return np.asarray(np.mean([results.accuracy("learned", n) for n in shots], axis=0), dtype=np.float64)
