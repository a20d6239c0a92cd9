"""The rankings of a run: by labels alone, and by labels and what training measured; neither asks the model anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from leverplus.errors import DataError
from leverplus.experiment.pilot import pilot_items
from leverplus.experiment.rows import asking_plan
from leverplus.experiment.run import Run

if TYPE_CHECKING:
    from leverplus.ranking.labels import LabelModel
    from leverplus.ranking.ranking import MeasuredTable, Rankings
    from leverplus.scoring.scorer import Prompt
    from leverplus.types import ItemId, Score


def rankings_of(run: Run, text_share: float) -> Rankings:
    """What ranked arms choose by; a part that the data do not allow is left out, with the reason in its place.

    `text_share` is the share of the question in a similarity.
    """
    from leverplus.metrics import MATCHING, metric_named
    from leverplus.ranking.labels import learn_labels
    from leverplus.ranking.ranking import Rankings, fit_ranking

    measured = measured_scores(run)
    labels = None
    # another metric also scores answers that nobody gave, of which labels say nothing
    if run.task.metric in MATCHING:
        first = list(dict.fromkeys(score.query for score in measured))
        metric = metric_named(run.task.metric)
        labels = learn_labels(run.demonstrations, run.demonstration_vectors, metric, first=first)
    try:
        effects, why = fit_ranking(_table(run, measured, labels, text_share)), ""
    except DataError as error:
        effects, why = None, str(error)
    return Rankings(labels, effects, why)


def measured_scores(run: Run) -> list[Score]:
    """Every answer with one demonstration that training asked for, from the store."""
    from leverplus.scoring.scorer import TRAINING

    if run.recipe.score.groups:
        members = [score for group in run.imported_groups for score in group.scores]
        return [score for score in members if len(score.demos) == 1] if not run.imitates_beams else []
    asked = run.scorer.meter.asked[TRAINING]
    if not asked:  # nothing was trained here
        return []
    prompts = [prompt for prompt in _one_shot_prompts(run) if run.scorer.key(prompt) in asked]
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


def _table(run: Run, scores: Sequence[Score], labels: LabelModel | None, text_share: float) -> MeasuredTable:
    """The answers as a table, a row for each query."""
    from leverplus.pools.build import picture_groups
    from leverplus.pools.rank import row_similarities
    from leverplus.pools.similarity import rows
    from leverplus.ranking.labels import expected_of
    from leverplus.ranking.ranking import MeasuredTable

    places = {item.id: place for place, item in enumerate(run.demonstrations)}
    by_query: dict[ItemId, list[Score]] = {}
    for score in scores:
        if score.query in places:  # a planted mistake may have asked for questions of another split
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
    queries = list(by_query)
    near = rows(run.demonstration_vectors, [places[query] for query in queries])
    expected = None
    if labels is not None:
        columns = labels.columns_of(run.demonstrations)[candidates]
        expected = expected_of(labels.expected(queries, near), columns)
    similar = vars(row_similarities(near, run.demonstration_vectors, candidates))
    return MeasuredTable(
        candidates=candidates,
        used=used,
        accuracy=accuracy,
        probability=probability if weighed else None,
        near={name: values for name, values in similar.items() if values is not None},
        fields={"text": text_share, "image": 1.0 - text_share},
        expected=expected,
        groups=picture_groups([run.task.item(query) for query in queries]),
        demonstrations=len(run.demonstrations),
    )
