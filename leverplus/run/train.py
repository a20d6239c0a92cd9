"""Training a run: the stages of its recipe one after another, each going on where it was stopped."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from leverplus import catalog
from leverplus.data import rundir
from leverplus.errors import MissingFile, TrainingError, needs_extra
from leverplus.run.opening import require_same_task
from leverplus.run.rows import (
    active_rows,
    label_rows,
    learn_expected_accuracy,
    row_maker,
    search_groups,
    searched_rows,
    wants_expected_accuracy,
)
from leverplus.run.run import Run
from leverplus.run.sinks import LogSinks
from leverplus.run.stages import ASKED, LABELS, ROUNDS, StagePlan, plan_stages
from leverplus.run.start import first_policy, starting_policy

if TYPE_CHECKING:
    from leverplus.data.types import Group
    from leverplus.learn.data.active import ActiveRows
    from leverplus.learn.data.expected_accuracy import ExpectedAccuracy
    from leverplus.learn.data.from_search import RowMaker
    from leverplus.learn.data.rows import RowSource
    from leverplus.learn.loop import Judge
    from leverplus.learn.policies.base import Policy
    from leverplus.learn.policies.table import ItemTable


def train_run(run: Run) -> Policy:
    """Train every stage of the recipe that is not trained yet; the selector that the last one wrote."""
    if not run.recipe.stages:
        raise TrainingError(
            'train.stages = []: this recipe trains nothing; add --set train.stages=["listwise"]'
        )
    with needs_extra("training a selector", "train"):
        import torch  # noqa: F401 a missing one is told before anything is asked
    require_same_task(run)
    if is_trained(run):
        recount_calls(run)
        return trained_policy(run)
    training = begin_training(run)
    try:
        for plan in plan_stages(run.recipe):
            if plan.searches:
                training.search(plan)
            if _checkpoint(run, plan.name).is_dir():
                training.take_over(plan)
            else:
                training.train(plan)
    finally:
        training.sinks.close()
    return training.policy


def is_trained(run: Run) -> bool:
    """Whether every stage has written its checkpoint."""
    return all(_checkpoint(run, name).is_dir() for name in run.recipe.stages)


def trained_policy(run: Run) -> Policy:
    """The selector that the last stage wrote; a sentence where there is none yet."""
    if not run.recipe.stages:
        raise MissingFile(
            f"{run.folder} trains no selector (train.stages = []); pack one of its other arms"
        )
    with needs_extra("a trained selector", "train"):
        from leverplus.learn.checkpoint import load_checkpoint
    last = _checkpoint(run, list(run.recipe.stages)[-1])
    if not last.is_dir():
        raise MissingFile(
            f"{run.folder} holds no trained selector yet; type `lever train {run.folder}`"
        )
    return load_checkpoint(last)[0]


def _checkpoint(run: Run, stage: str) -> Path:
    return run.folder / rundir.CHECKPOINTS / stage


def begin_training(run: Run) -> Training:
    """What all stages share. Whatever would end the training later is refused here, the cheapest check first."""
    start = starting_policy(run)
    run.training_queries()  # a budget that pays for none is refused
    wants_expected_accuracy(
        run
    )  # a metric that does not suit the reward is refused before the model is loaded
    run.require_model()  # a model that is missing or fails its self-test is refused before anything is embedded
    expected = learn_expected_accuracy(
        run
    )  # labels that teach nothing are refused before the model is asked
    training = _prepared(run, start, expected)
    begun = any(
        (run.folder / name).is_dir() for name in (rundir.CHECKPOINTS, rundir.STATE)
    )
    if not begun or not run.kept_calls.counted:
        training.judge_selectors()
    return training


def _prepared(
    run: Run, start: Policy | None, expected: ExpectedAccuracy | None
) -> Training:
    """A training before its first stage: a selector, a judge of it, and what makes rows of scored groups."""
    queries = run.training_queries()
    _, table = run.pools(
        queries[:1]
    )  # the table holds every demonstration, whichever query it is made for
    training = Training(
        run,
        first_policy(run, table, start),
        dev_judge(run),
        row_maker(run, table, expected),
    )
    if start is not None:
        training.anchors["sft"] = start
    return training


def recount_calls(run: Run) -> None:
    """Count what a training asked for whose folder is from before calls were kept; the store holds the answers."""
    if run.kept_calls.counted:
        return
    training = _prepared(run, starting_policy(run), None)
    training.judge_selectors()
    for plan in plan_stages(run.recipe):
        if plan.searches:
            training.search(plan)
        if not _checkpoint(run, plan.name).is_dir():
            run.say(
                f"note: model_calls counts no further than stage {plan.name}, whose checkpoint is not there"
            )
            return
        training.take_over(plan)


@dataclass
class Training:
    """A training under way: the selector as it stands, and what the stages so far have left for later ones."""

    run: Run
    policy: Policy
    judge: Judge
    make_rows: RowMaker
    groups: Sequence[Group] = ()
    active: ActiveRows | None = None
    anchors: dict[str, Policy] = field(default_factory=dict)
    """Earlier selectors by the name of their stage, which a loss may refer to."""

    def __post_init__(self) -> None:
        self.monitor = catalog.load(catalog.DOCTOR, "monitor", "doctor")(self.run)
        self.sinks = LogSinks(self.run)

    @property
    def table(self) -> ItemTable:
        return self.make_rows.table

    def search(self, plan: StagePlan) -> None:
        """Have groups scored for this stage and the later ones; what the store holds is not asked again."""
        self.groups = search_groups(self.run, self.policy if plan.draws else None)
        if self.run.recipe.score.rounds:
            self.active = active_rows(self.run, self.groups, self.make_rows)

    def source(self, plan: StagePlan) -> RowSource:
        """Where the stage has its rows from."""
        from leverplus.learn.data.rows import FixedRows

        if plan.rows == LABELS:
            return label_rows(self.run, plan.config, self.table)
        if plan.rows == ROUNDS:
            assert self.active is not None, "a stage with rounds searches first"
            return self.active
        if plan.rows == ASKED:
            assert self.active is not None, "a stage with rounds came before"
            return FixedRows(self.active.asked_rows())
        return FixedRows(
            searched_rows(self.run, self.groups, self.make_rows, plan.name)
        )

    def train(self, plan: StagePlan) -> None:
        """Train one stage and go on with what it wrote."""
        from leverplus.learn.loop import StageInputs, run_stage

        run, name = self.run, plan.name
        source = self.source(plan)
        rows = source.rows(self.policy, 0)
        if (
            plan.preflight and not run.imitates_beams
        ):  # lists without accuracies say nothing of their quality
            self.monitor.preflight(self.policy, rows, self.groups, self.make_rows)
        watch = self.monitor.watched(self.judge, name, plan.config.epochs)
        inputs = StageInputs(
            name,
            plan.config,
            self.table,
            run.seed,
            run.folder,
            self.anchors,
            watch,
            run.recipe.hash,
            run.calls,
            self.sinks.write,
        )
        result = run_stage(self.policy, source, inputs)
        self.monitor.check_handover(
            self.policy, _checkpoint(run, name), rows, self.table
        )
        value = (
            "not judged"
            if result.best_value is None
            else f"dev accuracy {result.best_value:.3f}"
        )
        run.say(f"{name}: {result.epochs} epochs, best {result.best_epoch}, {value}")
        self._hand_on(plan)

    def take_over(self, plan: StagePlan) -> None:
        """Go on with what a stage wrote when it was trained, and with what its rounds asked then."""
        if plan.rows == ROUNDS and self.active is not None:
            self.active.replay(self.policy)
        self._hand_on(plan)

    def _hand_on(self, plan: StagePlan) -> None:
        from leverplus.learn.checkpoint import load_checkpoint

        state = self.run.folder / rundir.STATE / plan.name
        shutil.rmtree(state, ignore_errors=True)  # nothing goes on from it
        # twice: the next stage trains the one, and its loss may refer to the other as it is now
        self.policy = load_checkpoint(_checkpoint(self.run, plan.name))[0]
        self.anchors[plan.name] = load_checkpoint(_checkpoint(self.run, plan.name))[0]

    def judge_selectors(self) -> None:
        """Judge the selector that training begins with, and that of every epoch so far, on dev.

        A new run has no epochs yet. In a folder from before calls were kept this counts the prompts that judging
        asked for; the store holds their scores.
        """
        from leverplus.evaluate.runs import checkpoint_names
        from leverplus.learn.checkpoint import load_checkpoint

        self.judge(self.policy)
        checkpoints = self.run.folder / rundir.CHECKPOINTS
        for name in checkpoint_names(checkpoints, self.run.recipe.stages):
            self.judge(load_checkpoint(checkpoints / name)[0])


def dev_judge(run: Run) -> Judge:
    """Judges a policy by the accuracy of its picks on fixed dev queries, store first; these calls count as training."""
    from leverplus.learn.policies.items import choose_demos
    from leverplus.scores.scorer import TRAINING

    section = run.recipe.score
    pools, table = run.pools(run.chosen_items("dev", section.dev_queries))

    def judge(policy: Policy) -> Mapping[str, float]:
        values: dict[str, float] = {}
        longest = choose_demos(policy, table, pools, max(section.dev_shots))
        for shots in section.dev_shots:
            prompts = []
            for pool, demos in zip(pools, longest, strict=True):
                prompts.append((pool.query, demos[:shots]))
            scores = run.scorer.score(prompts, TRAINING, "judging on dev")
            values[f"reward@{shots}"] = float(
                np.mean([score.accuracy for score in scores])
            )
        return {"reward": float(np.mean(list(values.values()))), **values}

    return judge
