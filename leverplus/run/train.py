"""Training a run: the stages of its recipe one after another, each going on where it was stopped.

What a stage learns from follows from the recipe: searched groups, labels, rounds of asking, imported beams.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leverplus import catalog
from leverplus.arms.similarity import rows
from leverplus.data import rundir
from leverplus.data.types import Group
from leverplus.errors import LeverError, MissingFile, TrainingError, needs_extra
from leverplus.learn.data.plan import find_groups, keep_groups
from leverplus.learn.data.search import best_of_each_length
from leverplus.learn.given import fill_from, read_given, require_widths
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.seeds import derive_seed
from leverplus.learn.settings import (
    LABEL_ONLY,
    ContrastiveConfig,
    LabelPretrainingConfig,
    StageConfig,
)
from leverplus.run.recipe import Recipe
from leverplus.run.run import Run, require_same_task
from leverplus.scores.scorer import TRAINING

if TYPE_CHECKING:
    from leverplus.learn.data.active import ActiveRows, AskingPlan
    from leverplus.learn.data.from_search import Expect, RowMaker
    from leverplus.learn.data.rows import Row, RowSource
    from leverplus.learn.loop import Judge
    from leverplus.learn.policies.base import Policy

LABELS, SEARCH, ROUNDS, ASKED = "labels", "search", "rounds", "asked"
"""Where rows come from: labels alone; the searched groups; the searched groups and rounds of asking while the stage
trains; everything that was searched and asked before the stage began."""


@dataclass(frozen=True)
class StagePlan:
    """What one stage will do: its settings, where its rows come from, what must happen before it."""

    name: str
    config: StageConfig
    rows: str
    searches: bool
    """Whether the model is asked for groups before this stage."""
    draws: bool
    """Whether some of the searched lists are drawn from the selector that the stages before it have trained."""
    preflight: bool
    """Whether the doctor looks at the rows before the first step: those of the first stage that uses answers."""


def plan_stages(recipe: Recipe) -> list[StagePlan]:
    """One plan per stage, in the order in which they run.

    Groups are searched before the first stage that learns from the model's answers. Where lists are drawn from the
    selector, a search before the first of all stages has none to draw from, so the second stage searches again.
    """
    found = []
    for place, (name, config) in enumerate(recipe.stages.items()):
        first_to_ask = name == recipe.train.asking
        draws = recipe.score.draws_from_selector and place > 0
        if name in LABEL_ONLY:
            rows = LABELS
        elif recipe.score.rounds:
            rows = ROUNDS if first_to_ask else ASKED
        else:
            rows = SEARCH
        searches = first_to_ask or (draws and place == 1)
        found.append(StagePlan(name, config, rows, searches, draws, first_to_ask))
    return found


def train_run(run: Run) -> Policy:
    """Train every stage of the recipe that is not trained yet; the selector that the last one wrote."""
    if not run.recipe.stages:
        raise TrainingError(
            'train.stages = []: this recipe trains nothing; add --set train.stages=["listwise"]'
        )
    with needs_extra("training a selector", "train"):
        import torch  # noqa: F401 a missing one is told before anything is asked
    require_same_task(run)
    if all(_checkpoint(run, name).is_dir() for name in run.recipe.stages):
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
        if training.sinks is not None:
            training.sinks.close()
    return training.policy


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
    folder = run.folder
    is_new = not (folder / rundir.CHECKPOINTS).is_dir()
    is_new = is_new and not (folder / rundir.STATE).is_dir()
    start = starting_policy(run)
    queries = run.training_queries()  # groups of other items are refused
    _wants_expected_accuracy(run)
    _ = run.scorer  # a model that is missing or fails its self-test is refused before anything is embedded
    expected = learn_expected_accuracy(run)
    # the table holds every demonstration, whichever query it is made for
    _, table = run.pools(queries[:1])
    policy = first_policy(run, table, start)
    training = Training(run, policy, dev_judge(run), row_maker(run, table, expected))
    if start is not None:
        training.anchors["sft"] = start
    if is_new:
        training.judge(policy)
    return training


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
    sinks: Any = None

    def __post_init__(self) -> None:
        self.monitor = catalog.load(catalog.DOCTOR, "monitor", "doctor")(self.run)
        if self.run.recipe.train.log_to:
            from leverplus.run.sinks import LogSinks

            self.sinks = LogSinks(self.run)

    @property
    def table(self) -> ItemTable:
        return self.make_rows.table

    def search(self, plan: StagePlan) -> None:
        """Have groups scored for this stage and the later ones; what the store holds is not asked again."""
        self.groups = search_groups(self.run, self.policy if plan.draws else None)
        if self.run.recipe.score.rounds:
            self.active = _active_rows(self.run, self.groups, self.make_rows)

    def source(self, plan: StagePlan) -> RowSource:
        """Where the stage has its rows from."""
        from leverplus.learn.data.rows import FixedRows

        if plan.rows == LABELS:
            return _label_rows(self.run, plan.config, self.table)
        if plan.rows == SEARCH:
            return FixedRows(
                _searched_rows(self.run, self.groups, self.make_rows, plan)
            )
        assert self.active is not None, "a stage with rounds searches first"
        if plan.rows == ROUNDS:
            return self.active
        return FixedRows(self.active.asked_rows())

    def train(self, plan: StagePlan) -> None:
        """Train one stage and go on with what it wrote."""
        from leverplus.learn.loop import StageInputs, run_stage

        run = self.run
        name = plan.name
        source = self.source(plan)
        rows = source.rows(self.policy, 0)
        # lists without accuracies say nothing of their quality
        if plan.preflight and not run.imitates_beams:
            self.monitor.preflight(self.policy, rows, self.groups, self.make_rows)
        inputs = StageInputs(
            name,
            plan.config,
            self.table,
            run.seed,
            run.folder,
            self.anchors,
            self.monitor.watched(self.judge, name, plan.config.epochs),
            run.recipe.hash,
            run.calls,
            self.sinks and self.sinks.write,
        )
        result = run_stage(self.policy, source, inputs)
        written = _checkpoint(run, name)
        self.monitor.check_handover(self.policy, written, rows, self.table)
        value = "not judged"
        if result.best_value is not None:
            value = f"dev accuracy {result.best_value:.3f}"
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
        written = _checkpoint(self.run, plan.name)
        # twice: the next stage trains the one, and its loss may refer to the other as it is now
        self.policy = load_checkpoint(written)[0]
        self.anchors[plan.name] = load_checkpoint(written)[0]


def dev_judge(run: Run) -> Judge:
    """Judges a policy by the accuracy of its picks on fixed dev queries, store first; these calls count as training."""
    from leverplus.learn.policies.items import choose_demos

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
            accuracy = np.mean([score.accuracy for score in scores])
            values[f"reward@{shots}"] = float(accuracy)
        return {"reward": float(np.mean(list(values.values()))), **values}

    return judge


# -- the selector a training begins with


def given_policy(run: Run, text: str) -> Policy:
    """A selector from outside this run, refused where it does not fit the task's vectors."""
    policy = read_given(text)
    _, table = run.pools(run.demonstrations[:1])
    require_widths(policy, table.dims, len(table), text)
    if (policy.adapters is None) != (run.live is None):
        which = "has adapters in the embedder, and not"
        if policy.adapters is None:
            which = "has no adapters, and"
        raise LeverError(
            f"{text} {which} this recipe (sft.lora_rank); use a run of the same kind"
        )
    return policy


def starting_policy(run: Run) -> Policy | None:
    """What `train.start` names, kept in the run folder once read; None where training begins from scratch."""
    from leverplus.learn.checkpoint import load_checkpoint, save_checkpoint

    named = run.recipe.train.start
    kept = _checkpoint(run, "start")
    if not named:
        return None
    if not kept.is_dir():
        save_checkpoint(
            kept, given_policy(run, named), run.recipe.hash, {"from": named}
        )
    return load_checkpoint(kept)[0]


def first_policy(run: Run, table: ItemTable, start: Policy | None) -> Policy:
    """A fresh selector, with the adapters that the recipe asks for and the weights of `start`, where there is one."""
    from leverplus.learn.policies.build import build_policy

    seed = derive_seed(run.seed, "init")
    policy = build_policy(run.recipe.select, table.dims, items=len(table), seed=seed)
    if run.live is not None:
        adapters = catalog.load(catalog.ADAPTERS, "lora", "adapters")
        sft: Any = run.recipe.stages["sft"]
        policy.adapters = adapters.around(
            run.live.network,
            run.live.revision,
            rank=sft.lora_rank,
            alpha=sft.lora_alpha,
            dropout=sft.lora_dropout,
            seed=derive_seed(run.seed, "adapters"),
        )
    if start is not None:
        fill_from(policy, start, run.recipe.train.start)
    return policy


# -- what stages learn from


def search_groups(run: Run, policy: Policy | None = None) -> list[Group]:
    """Groups of lists with their scores, asked of the model once; imported groups are taken as they are.

    Lists that are drawn from the selector need a trained one, `policy`; without it they are left out.
    """
    section = run.recipe.score
    if policy is None:
        section = replace(section, samples=0, selector_beams=0)
    if section.groups:
        run.say(f"{len(run.imported_groups)} imported groups; nothing is searched")
        if run.imitates_beams:
            return run.imported_groups
        return keep_groups(run.imported_groups, section.keep, section.tiers)
    scorer = run.scorer  # tested before anything is embedded
    queries = run.training_queries()
    pools, table = run.pools(queries)
    groups = find_groups(
        scorer, pools, section, seed=run.seed, table=table, policy=policy
    )
    if not groups:
        raise TrainingError(
            f"none of {len(queries)} searched groups is kept; loosen score.keep or score.tiers, or raise score.mine"
        )
    plural = "queries"
    if len(queries) == 1:
        plural = "query"
    run.say(f"searched {len(queries):,} training {plural} with {run.calls():,} calls")
    return groups


def _wants_expected_accuracy(run: Run) -> bool:
    """Whether the reward asks for the expected accuracy of answers; refused where the metric does not allow it."""
    if "expected_accuracy" not in run.recipe.reward.modes:
        return False
    estimate = catalog.load(catalog.ESTIMATES, "expected_accuracy", "estimate")
    estimate.require(run.task.answers.metric)
    return True


def learn_expected_accuracy(run: Run) -> Expect | None:
    """Predicts the accuracy of answers, learnt from the labels of all training questions; None where nobody asks."""
    if not _wants_expected_accuracy(run):
        return None
    asked = {item.id for item in run.shuffled_queries()}
    items = []
    places = []
    for place, item in enumerate(run.demonstrations):
        if item.id in asked:
            items.append(item)
            places.append(place)
    estimate = catalog.load(catalog.ESTIMATES, "expected_accuracy", "estimate")
    made: Expect = estimate(
        items,
        rows(run.demonstration_vectors, places),
        run.task.answers,
        seed=run.seed,
        tell=partial(run.show_progress, "learning what labels predict"),
    )
    return made


def row_maker(run: Run, table: ItemTable, expected: Expect | None) -> RowMaker:
    """Makes rows of scored groups by the reward of the recipe."""
    from leverplus.learn.data.from_search import RowMaker

    select = run.recipe.select
    return RowMaker(table, run.recipe.reward, select.stop, select.max_shots, expected)


def _searched_rows(
    run: Run, groups: Sequence[Group], make_rows: RowMaker, plan: StagePlan
) -> list[Row]:
    """Rows of searched groups: the best lists for imitation (sft), all of them for every other stage.

    Of imported beams nobody judged the answers: their reward is what the earlier code's search gained.
    """
    from leverplus.learn.data.from_search import rows_by

    if not run.imitates_beams:
        return make_rows(groups, imitate=_lists_to_imitate(run, plan.name))
    beam_gain = catalog.load(catalog.LEGACY, "beam_gain", "reader")
    select = run.recipe.select
    best = best_of_each_length(groups, run.recipe.train.imitate, beam_gain)
    return rows_by(
        best,
        make_rows.table,
        beam_gain,
        stop=select.stop,
        max_shots=select.max_shots,
    )


def _lists_to_imitate(run: Run, stage: str) -> int:
    """How many of the best lists of every length a stage learns from; 0: from all."""
    if stage == "sft":
        return run.recipe.train.imitate
    return 0


def _label_rows(run: Run, config: StageConfig, table: ItemTable) -> RowSource:
    """Rows of all training questions from their labels or answers; the model is not asked."""
    from leverplus.learn.data.from_answers import AnswerRows
    from leverplus.learn.data.from_labels import LabelRows

    items = run.demonstrations
    seed = run.seed
    queries = [query.id for query in run.shuffled_queries()]
    if isinstance(config, ContrastiveConfig):
        return AnswerRows(items, queries, table, config=config, seed=seed)
    assert isinstance(config, LabelPretrainingConfig)
    rules = run.task.answers
    return LabelRows(items, queries, table, rules, config=config, seed=seed)


def asking_plan(run: Run) -> AskingPlan:
    """How the rounds of a run ask: what the search before them leaves of the calls."""
    from leverplus.learn.data.active import AskingPlan

    section = run.recipe.score
    searched = len(run.training_queries())
    calls = run.affordable_calls() - searched * section.cost(run.recipe.pool.size)
    return AskingPlan(section, calls, searched, run.seed, run.folder / rundir.ACTIVE)


def _active_rows(run: Run, groups: Sequence[Group], make_rows: RowMaker) -> ActiveRows:
    """Rounds in which the selector picks what is asked next, after these groups were searched."""
    from leverplus.learn.data.active import ActiveRows

    plan = asking_plan(run)
    imitate = _lists_to_imitate(run, run.recipe.train.asking)
    queries = run.shuffled_queries()[: plan.most_pools]
    return ActiveRows(
        plan,
        run.scorer,
        run.pools(queries)[0],
        make_rows.table,
        searched=groups,
        make_rows=partial(make_rows, imitate=imitate),
    )
