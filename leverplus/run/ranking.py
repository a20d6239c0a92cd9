"""The rankings of a run: by labels alone, and by labels and what training measured; neither asks the model anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from leverplus.arms.base import ArmUnavailable
from leverplus.errors import DataError
from leverplus.run.pilot import pilot_items
from leverplus.run.rows import asking_plan
from leverplus.run.run import Run

if TYPE_CHECKING:
    from leverplus.arms.effects import MeasuredTable, Ranking
    from leverplus.arms.labels import Labels
    from leverplus.arms.similarity import Floats
    from leverplus.data.types import ItemId, Score
    from leverplus.scores.scorer import Prompt


def label_model(run: Run) -> Labels | None:
    """What labels predict; None where answers that nobody gave are scored too, of which labels say nothing."""
    from leverplus.arms.labels import learn_labels

    first = list(dict.fromkeys(score.query for score in measured_scores(run)))
    return learn_labels(run.corpus, first)


def measured_ranking(run: Run, labels: Labels | None, text_share: float) -> Ranking:
    """The ranking by labels, similarity and measured effects; ArmUnavailable where too little was measured."""
    from leverplus.arms.effects import fit_ranking

    try:
        return fit_ranking(_table(run, measured_scores(run), labels, text_share))
    except DataError as error:
        raise ArmUnavailable(str(error)) from error


def measured_scores(run: Run) -> list[Score]:
    """Every answer with one demonstration that training asked for, from the store."""
    from leverplus.scores.scorer import TRAINING

    if run.recipe.score.groups:
        members = [score for group in run.imported_groups for score in group.scores]
        return (
            [score for score in members if len(score.demos) == 1]
            if not run.imitates_beams
            else []
        )
    if not (run.recipe.stages or run.recipe.score.pilot):
        return []  # nothing was asked for training, so no model is opened
    asked = run.scorer.meter.asked[TRAINING]
    if not asked:  # nothing was trained here
        return []
    prompts = [
        prompt for prompt in _one_shot_prompts(run) if run.scorer.key(prompt) in asked
    ]
    return run.scorer.known(prompts)


def _one_shot_prompts(run: Run) -> list[Prompt]:
    """Every prompt with one demonstration that training can have asked for."""
    section = run.recipe.score
    queries = run.training_queries()
    if section.rounds:
        queries = run.shuffled_queries()[: asking_plan(run).most_pools]
    pools, _ = run.pools(queries)
    found = [(pool.query, (demo,)) for pool in pools for demo in pool.candidates]
    if section.pilot:
        asked, demos = pilot_items(run)
        found += [(query.id, (demo.id,)) for query in asked for demo in demos]
    return list(dict.fromkeys(found))


def _table(
    run: Run, scores: Sequence[Score], labels: Labels | None, text_share: float
) -> MeasuredTable:
    """The answers as a table, a row for each query."""
    from leverplus.arms.corpus import Queries, picture_groups
    from leverplus.arms.effects import MeasuredTable
    from leverplus.arms.similarity import rows

    places = {item.id: place for place, item in enumerate(run.demonstrations)}
    by_query: dict[ItemId, list[Score]] = {}
    for score in scores:
        if (
            score.query in places
        ):  # a planted mistake may have asked for questions of another split
            by_query.setdefault(score.query, []).append(score)
    width = max((len(own) for own in by_query.values()), default=0)
    candidates = np.zeros((len(by_query), width), np.int64)
    used = np.zeros(candidates.shape, np.bool_)
    accuracy, probability = np.zeros(candidates.shape), np.zeros(candidates.shape)
    weighed = all(score.weighed for score in scores)
    for row, own in enumerate(by_query.values()):
        candidates[row, : len(own)] = [places[score.demos[0]] for score in own]
        used[row, : len(own)] = True
        accuracy[row, : len(own)] = [score.accuracy for score in own]
        if weighed:
            probability[row, : len(own)] = [score.gt_prob for score in own]
    items = [run.task.item(query) for query in by_query]
    vectors = rows(run.demonstration_vectors, [places[query] for query in by_query])
    asked = Queries(items, vectors)
    expected = None
    if labels is not None:
        found = labels.expected(asked, run.corpus)
        expected = labels.of_rows(found, run.corpus, candidates)
    near: dict[str, list[Floats]] = {}
    for name in run.corpus.compared_fields:
        near[name] = []
        for row, shown in enumerate(candidates):
            near[name].append(run.corpus.near(asked[row : row + 1], name, shown)[0])
    return MeasuredTable(
        candidates=candidates,
        used=used,
        accuracy=accuracy,
        probability=probability if weighed else None,
        near={name: np.array(own) for name, own in near.items()},
        fields={"text": text_share, "image": 1.0 - text_share},
        expected=expected,
        groups=picture_groups(items),
        demonstrations=len(run.demonstrations),
    )
