"""The arms of a run: fitted to its examples and to what its training asked, kept in its folder, opened again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from leverplus.arms.base import Arm, ArmUnavailable, Limit, Rows
from leverplus.arms.corpus import Queries, picture_groups
from leverplus.arms.effects import MeasuredTable, Ranking, fit_ranking
from leverplus.arms.labels import Labels, learn_labels
from leverplus.arms.settings import RECORDED
from leverplus.arms.similarity import rows
from leverplus.arms.spec import arms_of, open_arm
from leverplus.arms.training import Training
from leverplus.data import rundir
from leverplus.data.rundir import read_json, staged_folder
from leverplus.data.types import Demos, ItemId, Score
from leverplus.errors import DataError, LeverError, ScoringError
from leverplus.evaluate.names import remember_arm
from leverplus.run.pilot import pilot_items, pilot_of
from leverplus.run.run import POOL_SEED, Run
from leverplus.run.train import asking_plan, trained_policy
from leverplus.scores.scorer import TRAINING, Prompt

if TYPE_CHECKING:
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
        choose_text_share: Callable[[Run], float],
    ) -> None:
        super().__init__(
            run.demonstrations, run.demonstration_vectors, run.task.answers, run.corpus
        )
        self.run = run
        self._policy = policy
        self._choose_text_share = choose_text_share
        self.pool = run.recipe.pool
        self.pool_seed = POOL_SEED
        self.shots = run.recipe.eval.shots
        self.live = run.embed_live if run.live is not None else None

    @cached_property
    def text_share(self) -> float:
        if self.corpus.has_images:
            return self._choose_text_share(self.run)
        return 1.0

    def asked(self, rows: Sequence[int]) -> Queries:
        return self.run.asked([self.items[row] for row in rows])

    def ask(
        self, queries: Queries, lists: Sequence[Sequence[Rows]], what: str
    ) -> list[list[Score]]:
        prompts = []
        for item, own in zip(queries.items, lists, strict=True):
            for shown in own:
                demos = tuple(self.items[row].id for row in shown)
                prompts.append((item.id, demos))
        scorer = self.run.scorer
        try:
            scorer.known(prompts)  # a table that lacks one counts no calls
        except ScoringError as error:
            raise ArmUnavailable(f"{what}: {error}") from error
        scores = iter(scorer.score(prompts, TRAINING, what))
        return [[next(scores) for _ in own] for own in lists]

    def policy(self) -> Policy | None:
        return self._policy

    @cached_property
    def measured(self) -> list[Score]:
        return measured_scores(self.run)

    @cached_property
    def labels(self) -> Labels | None:
        first = dict.fromkeys(score.query for score in self.measured)
        return learn_labels(self.corpus, list(first))

    def effects(self) -> Ranking:
        return self._effects

    @cached_property
    def _effects(self) -> Ranking:
        try:
            return fit_ranking(self._table())
        except DataError as error:
            raise ArmUnavailable(str(error)) from error

    def fixed_lists(self) -> Mapping[int, Demos]:
        found = {}
        if self.run.recipe.score.pilot:
            for shots, own in pilot_of(self.run)["fixed"].items():
                found[int(shots)] = tuple(map(ItemId, own["demos"]))
        return found

    def _table(self) -> MeasuredTable:
        """What was measured as a table, a row for each query."""
        places = {item.id: place for place, item in enumerate(self.items)}
        by_query: dict[int, list[Score]] = {}
        for score in self.measured:
            # a planted mistake may have asked for questions of another split
            if score.query in places:
                by_query.setdefault(places[score.query], []).append(score)
        width = max(map(len, by_query.values()), default=0)
        candidates = np.zeros((len(by_query), width), np.int64)
        used = np.zeros(candidates.shape, np.bool_)
        accuracy = np.zeros(candidates.shape)
        probability = np.zeros(candidates.shape)
        weighed = all(score.weighed for score in self.measured)
        for row, own in enumerate(by_query.values()):
            for column, score in enumerate(own):
                candidates[row, column] = places[score.demos[0]]
                used[row, column] = True
                accuracy[row, column] = score.accuracy
                if weighed:
                    probability[row, column] = score.gt_prob
        corpus = self.corpus
        asked_rows = list(by_query)
        items = [self.items[row] for row in asked_rows]
        asked = Queries(items, rows(self.vectors, asked_rows))
        expected = None
        if self.labels is not None:
            found = self.labels.expected(asked, corpus)
            expected = self.labels.of_rows(found, corpus, candidates)
        near = {}
        for name in corpus.compared_fields:
            lines = []
            for row, shown in enumerate(candidates):
                lines.append(corpus.near(asked[row : row + 1], name, shown)[0])
            near[name] = np.array(lines)
        return MeasuredTable(
            candidates,
            used,
            accuracy,
            probability if weighed else None,
            near,
            fields={"text": self.text_share, "image": 1.0 - self.text_share},
            expected=expected,
            groups=picture_groups(items),
            demonstrations=len(self.items),
        )


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
    if plain != spec:
        plain += f"-{sha256(spec.encode()).hexdigest()[:6]}"
    return plain


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
    size = max(len(only) for only in asked.only if only is not None)
    weights = [1.0]
    if run.recipe.pool.kind != RECORDED and run.corpus.has_images:
        weights = [run.recipe.pool.text_weight, 1.0, 0.0]
    free = replace(asked, only=())
    for weight in weights:
        same = 0
        near = run.corpus.nearest(free, weight, size)
        for only, found in zip(asked.only, near, strict=True):
            rows = set(found.rows.tolist())
            same += only is not None and set(only.tolist()) == rows
        if same >= SAME_LIMIT * len(asked):
            return Limit(size, weight)
    return None


def kept_arm(run: Run, spec: str) -> tuple[Arm, bool]:
    """An arm as the run's evaluation fitted it, and whether it did; else it is fitted now."""
    arm = open_arm(spec)
    place = run.folder / ARMS / folder_name(arm.spec)
    if place.is_dir():
        return arm.load(place), True
    policy = trained_policy(run) if arm.needs.policy else None
    evaluated = run.folder / rundir.EVAL
    found = read_json(evaluated) if evaluated.is_file() else {}
    share = float(found.get("nearest_both_text_share", run.recipe.pool.text_weight))
    return arm.fit(RunTraining(run, policy, lambda _run: share)), False


# -- what training measured


def measured_scores(run: Run) -> list[Score]:
    """Every answer with one demonstration that training asked for, from the store."""
    if run.recipe.score.groups:
        alone: list[Score] = []
        for group in () if run.imitates_beams else run.imported_groups:
            alone += [score for score in group.scores if len(score.demos) == 1]
        return alone
    if not (run.recipe.stages or run.recipe.score.pilot):
        return []  # nothing was asked for training, so no model is opened
    scorer = run.scorer
    asked = scorer.meter.asked[TRAINING]
    if not asked:  # nothing was trained here
        return []
    prompts = []
    for prompt in _one_shot_prompts(run):
        if scorer.key(prompt) in asked:
            prompts.append(prompt)
    return scorer.known(prompts)


def _one_shot_prompts(run: Run) -> list[Prompt]:
    """Every prompt with one demonstration that training can have asked for."""
    section = run.recipe.score
    queries = run.training_queries() if run.recipe.stages else []
    if section.rounds:
        queries = run.shuffled_queries()[: asking_plan(run).most_pools]
    pools, _ = run.pools(queries)
    found: dict[Prompt, None] = {}
    for pool in pools:
        for demo in pool.candidates:
            found[pool.query, (demo,)] = None
    if section.pilot:
        asked, demos = pilot_items(run)
        for query, shown in product(asked, demos):
            found[query.id, (shown.id,)] = None
    return list(found)
