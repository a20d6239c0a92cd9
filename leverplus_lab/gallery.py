"""The gallery: runs with a known mistake, one for each documented failure, and what the doctor must find in them.

A recipe of the gallery says in `expected` which findings its run shows. At small sizes a case takes seconds once the
store is warm; what a recipe sets itself is never made smaller.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leverplus import catalog
from leverplus.errors import LeverError
from leverplus.run.recipe import Recipe, find_recipe, load_recipe, recipe_names
from leverplus.run.sweep import Workshop
from leverplus_doctor.read import flat_settings

if TYPE_CHECKING:
    from leverplus.run.run import Run
    from leverplus_doctor.check import Finding

SMALL = (
    "pool.size=32", "score.queries=120", "score.budget=9000", "score.dev_queries=24", "eval.items=150",
    "eval.dev_items=8", "eval.random_draws=1",
)  # fmt: skip
"""Sizes at which a healthy run can still be told from chance."""
QUICK = (*SMALL, "score.queries=80", "sft.epochs=6")
"""Sizes at which a run with a known mistake shows what it stands for."""
SEEN_AT_TEST = "leverplus_doctor.checks.results"
"""Where the checks are that look at an evaluation."""


@dataclass(frozen=True)
class GalleryCase:
    """A recipe of the gallery and the findings its run must show; none for a healthy one."""

    name: str
    recipe: Recipe
    codes: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        return not self.codes

    @property
    def needs_test(self) -> bool:
        """Whether something is to be seen on test only."""
        for code in self.codes:
            if catalog.CHECKS[code].startswith(SEEN_AT_TEST):
                return True
        return self.healthy


@dataclass(frozen=True)
class CaseOutcome:
    """A case that was run: the run, what the doctor found, and why it stopped early (empty when it did not)."""

    run: Run
    findings: Sequence[Finding]
    stopped: str

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings}


def cases(overrides: Sequence[str] = ()) -> list[GalleryCase]:
    """Every recipe of the gallery."""
    return [case(name, overrides) for name in recipe_names("gallery")]


def case(
    name: str,
    overrides: Sequence[str] = (),
    changes: Sequence[str] = (),
) -> GalleryCase:
    """One recipe; overrides leave alone what it sets itself and stages it does not run, changes do not."""
    values = tomllib.loads(find_recipe(name).read_text(encoding="utf-8"))
    fixed = {}
    if "extends" in values:
        fixed = flat_settings(values)
    idle = set(catalog.STAGES) - set(load_recipe(name).stages)
    sizes = []
    for text in overrides:
        key = text.split("=")[0]
        if key not in fixed and key.split(".")[0] not in idle:
            sizes.append(text)
    recipe = load_recipe(name, [*sizes, *changes])
    codes = filter(catalog.CHECKS.__contains__, re.findall(r"\w+", recipe.expected))
    return GalleryCase(name, recipe, tuple(codes))


def run_case(
    own: GalleryCase,
    workshop: Workshop,
    like: Run | None = None,
    *,
    evaluate: bool = True,
) -> CaseOutcome:
    """Train a case whatever the preflight says, evaluate it if that is wanted, and examine its folder.

    `like` is a run of the same world, whose items and vectors are taken over. A training that cannot go on is part of
    what some cases show.
    """
    from leverplus.run.evaluate import evaluate_run
    from leverplus.run.train import train_run
    from leverplus_doctor.monitor import examine_run

    run = workshop.open(own.recipe, find_recipe(own.name), own.recipe.name, 0)
    if like is not None:
        run = replace(run, like=like)
    stopped = ""
    try:
        policy = train_run(run)
        if evaluate:
            evaluate_run(run, policy, advise=False)
    except LeverError as error:
        stopped = str(error)
    return CaseOutcome(run, examine_run(run), stopped)
