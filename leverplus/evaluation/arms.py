"""Arms: the ways of choosing demonstrations. Each gives, for every query and number of shots, an ordered list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

import numpy as np
import torch

from leverplus.embedders.base import Vectors
from leverplus.evaluation.names import MODEL_FREE
from leverplus.evaluation.predictions import Prediction
from leverplus.metrics import metric_named, normalise_answer
from leverplus.policies.base import Policy
from leverplus.policies.items import ItemTable, choose_demos
from leverplus.pools.build import forbidden_positions
from leverplus.pools.rank import (
    PoolSimilarities,
    demos_at,
    pool_likeness,
    pool_similarities,
    rank_mmr,
    rank_nearest,
    rank_two_stage,
)
from leverplus.pools.similarity import cosine, nearest, rows, weighted_similarity
from leverplus.ranking.labels import LabelModel, expected_of
from leverplus.ranking.ranking import Ranking, ranked
from leverplus.scoring.scorer import EVALUATION, Scorer
from leverplus.tasks.base import Task
from leverplus.types import Demos, Item, Pool

Choices = Mapping[int, Sequence[Demos]]
"""For every number of shots the demonstrations of every query, in the order of the pools."""

CALIBRATED = "_calibrated"
"""The ending of the name of an arm whose answers were calibrated after the model was asked."""

POOLS_AT_ONCE = 128  # queries compared with the whole labelled set at a time, which bounds the memory


def asks_model(arm: str) -> bool:
    """Whether an arm's answers are the model's own, as they came."""
    return arm not in MODEL_FREE and not arm.endswith(CALIBRATED)


@dataclass(frozen=True)
class EvaluationContext:
    """What all arms share: the queries and their pools, the demonstrations with their vectors, and the scorer."""

    task: Task
    scorer: Scorer
    queries: Sequence[Item]
    pools: Sequence[Pool]
    table: ItemTable
    demonstrations: Sequence[Item]
    vectors: Vectors
    whole_corpus: bool = False
    """Whether every demonstration can be shown; else only those of a query's pool."""
    purpose: str = EVALUATION
    """What the calls are counted as."""

    @cached_property
    def query_vectors(self) -> Vectors:
        places = torch.tensor([self.table.row(query.id) for query in self.queries], dtype=torch.long)  # (B,)
        blocks = {name: block[places].numpy() for name, block in self.table.blocks.items()}
        return Vectors(blocks.get("image"), blocks["text"], blocks["answer"])

    @cached_property
    def similarities(self) -> PoolSimilarities:
        return pool_similarities(self.pools, self.query_vectors, self.demonstrations, self.vectors)

    def ask(self, lists: Sequence[Demos], what: str, pools: Sequence[Pool] | None = None) -> list[Prediction]:
        """What the model answers to every query (or those of `pools`) with its demonstrations."""
        own = self.pools if pools is None else pools
        prompts = [(pool.query, demos) for pool, demos in zip(own, lists, strict=True)]
        return [Prediction.of(score) for score in self.scorer.score(prompts, self.purpose, what)]


def prefixes(full: Sequence[Demos], shots: Sequence[int]) -> Choices:
    """The first n of every list: for arms that choose one after the other."""
    found = {}
    for n in shots:
        found[n] = [demos[:n] for demos in full]
    return found


def suffixes(full: Sequence[Demos], shots: Sequence[int]) -> Choices:
    """The last n of every list: for arms that put what they rank first next to the query."""
    found = {}
    for n in shots:
        found[n] = [demos[len(demos) - n :] for demos in full]
    return found


def nearest_arm(context: EvaluationContext, text_weight: float, shots: Sequence[int]) -> Choices:
    """The candidates most similar to the query, by question with this weight and by picture with the rest."""
    near = context.similarities
    positions = rank_nearest(near.image, near.text, text_weight, max(shots))  # (B, most shots), nearest last
    return suffixes(demos_at(context.pools, positions), shots)


def two_stage_arm(context: EvaluationContext, shots: Sequence[int]) -> Choices:
    """The half of the pool with the most similar pictures, of those the most similar questions."""
    near = context.similarities
    assert near.image is not None
    positions = rank_two_stage(near.image, near.text, max(shots))  # (B, most shots), nearest last
    return suffixes(demos_at(context.pools, positions), shots)


def mmr_arm(context: EvaluationContext, text_weight: float, mmr_lambda: float, shots: Sequence[int]) -> Choices:
    """Candidates near to the query and unlike each other."""
    near = context.similarities
    relevance = weighted_similarity(near.image, near.text, text_weight)  # (B, K)
    likeness = pool_likeness(context.pools, context.demonstrations, context.vectors, text_weight)
    positions = rank_mmr(relevance, likeness, mmr_lambda, max(shots))  # (B, most shots), chosen first last
    return suffixes(demos_at(context.pools, positions), shots)


def learned(
    policy: Policy, pools: Sequence[Pool], table: ItemTable, shots: Sequence[int], *, allow_stop: bool = False
) -> Choices:
    """The policy's greedy choice of exactly n demonstrations, or of at most n if it may stop."""
    return prefixes(choose_demos(policy, table, pools, max(shots), allow_stop=allow_stop), shots)


def vote(answers: Sequence[str]) -> str:
    """The most common answer after normalising; among equally common ones the last, which is nearest to the query."""
    normalised = [normalise_answer(answer) for answer in answers]
    counts = Counter(normalised)
    most = max(counts.values())
    last = max(place for place, answer in enumerate(normalised) if counts[answer] == most)
    return answers[last]


def majority_arm(task: Task, queries: Sequence[Item], lists: Sequence[Demos]) -> list[Prediction]:
    """The most common answer among the demonstrations, without asking the model."""
    metric = metric_named(task.metric)
    predictions = []
    for query, demos in zip(queries, lists, strict=True):
        answer = vote([task.item(demo).answer for demo in demos])
        predictions.append(Prediction(query.id, demos, answer, metric(answer, query.answers)))
    return predictions


def label_vote_arm(context: EvaluationContext, text_weight: float, neighbours: int) -> list[Prediction]:
    """The most common answer among the nearest items of the whole labelled set; asks no model."""
    forbidden = forbidden_positions(context.queries, context.demonstrations)
    lists: list[Demos] = []
    for start in range(0, len(context.queries), POOLS_AT_ONCE):
        part = slice(start, start + POOLS_AT_ONCE)
        found, value = nearest(
            rows(context.query_vectors, part), context.vectors, forbidden[part], text_weight, neighbours
        )
        for places, similarities in zip(found, value, strict=True):
            allowed = places[similarities > -np.inf]  # -inf fills up where a query has too few allowed items
            nearest_last = [context.demonstrations[place].id for place in allowed[::-1].tolist()]
            lists.append(tuple(nearest_last))
    voted = majority_arm(context.task, context.queries, lists)
    return [Prediction(own.item, (), own.answer, own.accuracy) for own in voted]


def ranked_arm(
    context: EvaluationContext, ranking: Ranking, labels: LabelModel | None, shots: Sequence[int]
) -> Choices:
    """The demonstrations of the highest score, the best last: of the whole corpus, or of the pools."""
    places = {item.id: place for place, item in enumerate(context.demonstrations)}
    forbidden = forbidden_positions(context.queries, context.demonstrations)
    columns = None if labels is None else labels.columns_of(context.demonstrations)  # (N,)
    full: list[Demos] = []
    for start in range(0, len(context.queries), POOLS_AT_ONCE):
        part = slice(start, start + POOLS_AT_ONCE)
        own = rows(context.query_vectors, part)
        allowed = np.full((len(own), len(places)), context.whole_corpus)  # (B, N)
        for row, pool in enumerate(context.pools[part]):
            if not context.whole_corpus:
                allowed[row, [places[demo] for demo in pool.candidates]] = True
            allowed[row, forbidden[start + row]] = False
        near = {"text": cosine(own.text, context.vectors.text)}
        if own.image is not None and context.vectors.image is not None:
            near["image"] = cosine(own.image, context.vectors.image)
        expected = None
        if labels is not None and columns is not None:
            names = [query.id for query in context.queries[part]]
            expected = expected_of(labels.expected(names, own), np.broadcast_to(columns, allowed.shape))
        scores = ranking.score(near, expected, np.broadcast_to(ranking.effect, allowed.shape))
        for chosen in ranked(scores, allowed, max(shots)).tolist():
            full.append(tuple(context.demonstrations[place].id for place in chosen))
    return suffixes(full, shots)


def label_regression_arm(context: EvaluationContext, labels: LabelModel) -> list[Prediction]:
    """The answer that labels let expect most of; asks no model."""
    metric = metric_named(context.task.metric)
    expected = labels.expected([query.id for query in context.queries], context.query_vectors)  # (B, A)
    predictions = []
    for query, place in zip(context.queries, expected.argmax(axis=1).tolist(), strict=True):
        answer = labels.answers[place]
        predictions.append(Prediction(query.id, (), answer, metric(answer, query.answers)))
    return predictions


def oracle_any(zero: Sequence[Prediction], greedy: Sequence[Sequence[Prediction]], shots: int) -> list[Prediction]:
    """The best of no demonstration and the greedy oracle at 1..shots, the shortest among equals; costs no call.

    `greedy[b][m]` is the greedy oracle's prediction for query b with m + 1 demonstrations.
    """
    best = []
    for none, steps in zip(zero, greedy, strict=True):
        tried = [none, *steps[:shots]]
        best.append(max(tried, key=lambda own: (own.accuracy, -len(own.demos))))
    return best


def best_pairs(context: EvaluationContext) -> list[Prediction]:
    """The best of all ordered pairs of every pool: K (K - 1) calls per query."""
    prompts = [(pool.query, pair) for pool in context.pools for pair in permutations(pool.candidates, 2)]
    # all pools are asked in one batch; the scores come back in the order of the prompts
    scores = iter(context.scorer.score(prompts, EVALUATION, "all ordered pairs"))
    best = []
    for pool in context.pools:
        tried = [next(scores) for _ in range(len(pool) * (len(pool) - 1))]
        best.append(Prediction.of(max(tried, key=lambda score: score.accuracy)))
    return best
