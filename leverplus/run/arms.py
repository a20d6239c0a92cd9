"""The arms of a run: fitted to its examples and to what its training asked, kept in its folder, opened again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from leverplus.arms.base import Arm, ArmUnavailable, Limit
from leverplus.arms.settings import RECORDED
from leverplus.arms.spec import arms_of, open_arm
from leverplus.arms.training import Training
from leverplus.data import rundir
from leverplus.data.rundir import read_json, staged_folder
from leverplus.errors import LeverError
from leverplus.evaluate.names import remember_arm
from leverplus.run.pilot import fixed_lists
from leverplus.run.ranking import label_model, measured_ranking
from leverplus.run.run import POOL_SEED, Run

if TYPE_CHECKING:
    from leverplus.arms.corpus import Queries
    from leverplus.arms.effects import Ranking
    from leverplus.arms.labels import Labels
    from leverplus.data.types import Demos
    from leverplus.learn.policies.base import Policy

ARMS = "arms"
"""The folder of a run that holds its fitted arms."""
SAME_LIMIT = 0.99
"""The share of queries whose candidates must be the nearest ones, for a limit to be found again in use."""


class RunTraining(Training):
    """What the arms of a run learn from; what is costly is made at the first call."""

    def __init__(
        self,
        run: Run,
        policy: Policy | None,
        choose_text_share: Callable[[], float],
    ) -> None:
        super().__init__(
            run.demonstrations, run.demonstration_vectors, run.task.answers, run.corpus
        )
        self.run, self._policy = run, policy
        self._choose_text_share = choose_text_share
        self.pool, self.pool_seed = run.recipe.pool, POOL_SEED
        self.live = run.embed_live if run.live is not None else None

    @cached_property
    def text_share(self) -> float:
        return self._choose_text_share() if self.corpus.has_images else 1.0

    def policy(self) -> Policy | None:
        return self._policy

    @cached_property
    def labels(self) -> Labels | None:
        return label_model(self.run)

    @cached_property
    def _effects(self) -> Ranking:
        return measured_ranking(self.run, self.labels, self.text_share)

    def effects(self) -> Ranking:
        return self._effects

    def fixed_lists(self) -> Mapping[int, Demos]:
        return fixed_lists(self.run)


def fitted_arms(
    run: Run, training: RunTraining, *, among_training: bool = False
) -> tuple[list[Arm], dict[str, str]]:
    """The arms that `eval.arms` names, else all that suit these data; and why others are missing.

    On the training split itself no list for everybody is shown: it would hold the questions that are asked.
    """
    named = run.recipe.eval.arms
    arms: list[Arm] = []
    missing: dict[str, str] = {}
    for arm in arms_of(
        named, trains=bool(run.recipe.stages), kind=run.task.answers.kind
    ):
        if among_training and arm.same_for_all:
            continue
        try:
            arms.append(arm.fit(training))
            remember_arm(arm)
        except ArmUnavailable as error:
            missing[arm.spec] = str(error)
    for spec, why in missing.items():
        if spec in named:
            raise LeverError(f"arm {spec} of eval.arms: {why}")
    return arms, missing


def folder_name(spec: str) -> str:
    """A file name for an arm, however it is composed."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", spec).strip("-")
    return (
        plain if plain == spec else f"{plain}-{sha256(spec.encode()).hexdigest()[:6]}"
    )


def keep_arms(run: Run, arms: Sequence[Arm], asked: Queries) -> None:
    """Keep fitted arms in the run folder: a bundle serves exactly these.

    Where arms were limited to candidates that nobody can find again for another query, none is kept.
    """
    target = run.folder / ARMS
    limit = None
    if asked.only:
        limit = _limit_of(run, asked)
        if limit is None:
            shutil.rmtree(target, ignore_errors=True)
            return
    with staged_folder(target) as place:
        for arm in arms:
            if not arm.unsavable:
                arm.limit = limit if arm.calls and not arm.needs.policy else None
                arm.save(place / folder_name(arm.spec))


def _limit_of(run: Run, asked: Queries) -> Limit | None:
    """The nearest so many, where these are what every query was limited to."""
    sizes = [len(only) for only in asked.only if only is not None]
    weights = [1.0]
    if run.recipe.pool.kind != RECORDED and run.corpus.has_images:
        weights = [run.recipe.pool.text_weight, 1.0, 0.0]
    free = replace(asked, only=())
    for weight in weights:
        same = 0
        near = run.corpus.nearest(free, weight, max(sizes))
        for only, found in zip(asked.only, near, strict=True):
            rows = set(found.rows.tolist())
            same += only is not None and set(only.tolist()) == rows
        if same >= SAME_LIMIT * len(asked):
            return Limit(max(sizes), weight)
    return None


def kept_arm(run: Run, spec: str) -> tuple[Arm, bool]:
    """An arm as the run's evaluation fitted it, and whether it did; else it is fitted now."""
    arm = open_arm(spec)
    place = run.folder / ARMS / folder_name(arm.spec)
    if place.is_dir():
        return arm.load(place), True
    from leverplus.run.train import trained_policy

    policy = trained_policy(run) if arm.needs.policy else None
    evaluated = run.folder / rundir.EVAL
    found = read_json(evaluated) if evaluated.is_file() else {}
    share = float(found.get("nearest_both_text_share", run.recipe.pool.text_weight))
    return arm.fit(RunTraining(run, policy, lambda: share)), False
