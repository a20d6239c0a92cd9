"""What the stages of a run learn from, by its recipe: searched groups, labels, rounds of asking, imported beams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from leverplus import catalog
from leverplus.data import rundir
from leverplus.errors import TrainingError
from leverplus.learn.settings import (
    ContrastiveConfig,
    LabelPretrainingConfig,
    StageConfig,
)
from leverplus.run.run import Run

if TYPE_CHECKING:
    from leverplus.data.types import Group
    from leverplus.learn.data.active import ActiveRows, AskingPlan
    from leverplus.learn.data.expected_accuracy import ExpectedAccuracy
    from leverplus.learn.data.from_search import RowMaker
    from leverplus.learn.data.rows import Row, RowSource
    from leverplus.learn.policies.base import Policy
    from leverplus.learn.policies.table import ItemTable


def search_groups(run: Run, policy: Policy | None = None) -> list[Group]:
    """Groups of lists with their scores, asked of the model once; imported groups are taken as they are.

    Lists that are drawn from the selector need a trained one, `policy`; without it they are left out.
    """
    from leverplus.learn.data.mining import keep_groups
    from leverplus.learn.data.plan import find_groups

    section = run.recipe.score
    if policy is None:
        section = replace(section, samples=0, selector_beams=0)
    if section.groups:
        run.say(f"{len(run.imported_groups)} imported groups; nothing is searched")
        if run.imitates_beams:
            return run.imported_groups
        return keep_groups(run.imported_groups, section.keep, section.tiers)
    run.require_model()
    queries = run.training_queries()
    pools, table = run.pools(queries)
    groups = find_groups(
        run.scorer, pools, section, seed=run.seed, table=table, policy=policy
    )
    if not groups:
        raise TrainingError(
            f"none of {len(queries)} searched groups is kept; loosen score.keep or score.tiers, or raise score.mine"
        )
    run.say(
        f"searched {len(queries):,} training {'query' if len(queries) == 1 else 'queries'} with {run.calls():,} calls"
    )
    return groups


def wants_expected_accuracy(run: Run) -> bool:
    """Whether the reward asks for the expected accuracy of answers; refused where the metric does not allow it."""
    reward = run.recipe.reward
    if "expected_accuracy" not in (reward.components or (reward.mode,)):
        return False
    from leverplus.data.metrics import MATCHING
    from leverplus.learn.data.expected_accuracy import INSTEAD

    if run.task.answers.metric not in MATCHING:
        raise TrainingError(
            f'reward "expected_accuracy" needs a metric by which an answer that nobody gave scores nothing '
            f"({', '.join(MATCHING)}), and the task has {run.task.answers.metric}; {INSTEAD}"
        )
    return True


def learn_expected_accuracy(run: Run) -> ExpectedAccuracy | None:
    """Predicts the accuracy of answers, learnt from the labels of all training questions; None where nobody asks."""
    if not wants_expected_accuracy(run):
        return None
    from leverplus.arms.similarity import rows
    from leverplus.learn.data.expected_accuracy import ExpectedAccuracy

    asked = {item.id for item in run.shuffled_queries()}
    places = [
        place for place, item in enumerate(run.demonstrations) if item.id in asked
    ]
    return ExpectedAccuracy(
        [run.demonstrations[place] for place in places],
        rows(run.demonstration_vectors, places),
        run.task.answers,
        seed=run.seed,
        tell=partial(run.show_progress, "learning what labels predict"),
    )


def row_maker(
    run: Run, table: ItemTable, expected: ExpectedAccuracy | None
) -> RowMaker:
    """Makes rows of scored groups by the reward of the recipe."""
    from leverplus.learn.data.from_search import RowMaker

    select = run.recipe.select
    return RowMaker(table, run.recipe.reward, select.stop, select.max_shots, expected)


def searched_rows(
    run: Run, groups: Sequence[Group], make_rows: RowMaker, stage: str
) -> list[Row]:
    """Rows of searched groups: the best lists for imitation (sft), all of them for every other stage."""
    if run.imitates_beams:
        return _beam_rows(run, groups, make_rows.table)
    return make_rows(groups, imitate=lists_to_imitate(run, stage))


def lists_to_imitate(run: Run, stage: str) -> int:
    """How many of the best lists of every length a stage learns from; 0: from all."""
    return run.recipe.train.imitate if stage == "sft" else 0


def _beam_rows(run: Run, groups: Sequence[Group], table: ItemTable) -> list[Row]:
    """Rows of imported beams, whose answers nobody judged: the reward is what the earlier code's search gained."""
    from leverplus.learn.data.from_search import rows_by
    from leverplus.learn.data.search import best_of_each_length

    beam_gain = catalog.load(catalog.LEGACY, "beam_gain", "reader")
    select = run.recipe.select
    best = best_of_each_length(groups, run.recipe.train.imitate, beam_gain)
    return rows_by(best, table, beam_gain, stop=select.stop, max_shots=select.max_shots)


def label_rows(run: Run, config: StageConfig, table: ItemTable) -> RowSource:
    """Rows of all training questions from their labels or answers; the model is not asked."""
    from leverplus.learn.data.from_answers import AnswerRows
    from leverplus.learn.data.from_labels import LabelRows

    queries = [query.id for query in run.shuffled_queries()]
    if isinstance(config, ContrastiveConfig):
        items = run.demonstrations
        return AnswerRows(items, queries, table, config=config, seed=run.seed)
    assert isinstance(config, LabelPretrainingConfig)
    return LabelRows(
        run.demonstrations,
        queries,
        table,
        run.task.answers,
        config=config,
        seed=run.seed,
    )


def asking_plan(run: Run) -> AskingPlan:
    """How the rounds of a run ask: what the search before them leaves of the calls."""
    from leverplus.learn.data.active import AskingPlan

    recipe, searched = run.recipe, len(run.training_queries())
    calls = run.affordable_calls() - searched * recipe.score.cost(recipe.pool.size)
    return AskingPlan(
        recipe.score, calls, searched, run.seed, run.folder / rundir.ACTIVE
    )


def active_rows(run: Run, groups: Sequence[Group], make_rows: RowMaker) -> ActiveRows:
    """Rounds in which the selector picks what is asked next, after these groups were searched."""
    from leverplus.learn.data.active import ActiveRows

    plan = asking_plan(run)
    own = partial(make_rows, imitate=lists_to_imitate(run, run.recipe.train.asking))
    queries = run.shuffled_queries()[: plan.most_pools]
    return ActiveRows(
        plan,
        run.scorer,
        run.pools(queries)[0],
        make_rows.table,
        searched=groups,
        make_rows=own,
    )
