"""The tiny model really learns in context: measured on questions whose needed facts are known or shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from leverplus.data.metrics.vqa import vqa_accuracy
from leverplus.data.types import Item
from leverplus.models.base import Request
from leverplus_lab.world.backend import WorldBackend
from leverplus_lab.world.task import WorldTask

NEEDS = {"likes": "shape", "fears": "shape", "carries": "colour", "hides": "colour"}
COUNT = 50

Ask = Callable[[Sequence[Item], Sequence[Sequence[Item]]], float]


@pytest.fixture(scope="module")
def task() -> WorldTask:
    return WorldTask(0)


@pytest.fixture(scope="module")
def ask(task: WorldTask) -> Ask:
    """Mean official accuracy of queries with their demonstrations."""
    backend = WorldBackend(task)

    def measure(queries: Sequence[Item], demos: Sequence[Sequence[Item]]) -> float:
        requests = [
            Request(q, tuple(d), tuple(Counter(q.answers)))
            for q, d in zip(queries, demos, strict=True)
        ]
        replies = backend.answer(requests)
        return float(
            np.mean(
                [
                    vqa_accuracy(r.raw, list(q.answers))
                    for r, q in zip(replies, queries, strict=True)
                ]
            )
        )

    return measure


def clean(items: Sequence[Item], **meta: str) -> list[Item]:
    wanted = {"mislabelled": "false", **meta}.items()
    return [item for item in items if wanted <= item.meta.items()]


def test_known_facts_are_answered_without_demonstrations_and_unknown_ones_are_not(
    task: WorldTask, ask: Ask
) -> None:
    known, unknown = (
        clean(task.items("test"), facts="1", unknown=count)[:COUNT]
        for count in ("0", "1")
    )
    nothing: list[list[Item]] = [[]] * COUNT
    assert ask(known, nothing) > 0.8
    assert ask(unknown, nothing) < 0.15, (
        "there are 48 names; guessing is right about once in 48"
    )


@pytest.mark.slow
def test_a_demonstration_with_the_needed_fact_teaches_it_and_one_without_does_not(
    task: WorldTask, ask: Ask
) -> None:
    queries = clean(task.items("test"), facts="1", unknown="1")[:COUNT]
    telling, others = [], []
    for query in queries:
        relation, dialect = query.meta["relation"], query.meta["dialect"]
        same = clean(task.items("train"), dialect=dialect, relation=relation)
        key = NEEDS[relation]
        telling.append(
            [next(demo for demo in same if demo.meta[key] == query.meta[key])]
        )
        others.append(
            [next(demo for demo in same if demo.meta[key] != query.meta[key])]
        )
    assert ask(queries, telling) > 0.85
    assert ask(queries, others) < 0.2


@pytest.mark.slow
def test_a_question_of_two_unknown_facts_needs_two_demonstrations(
    task: WorldTask, ask: Ask
) -> None:
    queries = clean(task.items("test"), facts="2", unknown="2")[:COUNT]
    pairs = []
    for query in queries:
        same = clean(
            task.items("train"),
            relation=query.meta["relation"],
            dialect=query.meta["dialect"],
        )
        shape, colour = query.meta["shape"], query.meta["colour"]
        by_shape = next(
            d for d in same if d.meta["shape"] == shape and d.meta["colour"] != colour
        )
        by_colour = next(
            d for d in same if d.meta["colour"] == colour and d.meta["shape"] != shape
        )
        pairs.append([by_shape, by_colour])
    both = ask(queries, pairs)
    assert both > 0.5
    assert (
        max(
            ask(queries, [pair[:1] for pair in pairs]),
            ask(queries, [pair[1:] for pair in pairs]),
        )
        < both - 0.3
    )


@pytest.mark.slow
def test_a_demonstration_in_the_other_dialect_can_spoil_a_right_answer(
    task: WorldTask, ask: Ask
) -> None:
    queries = clean(task.items("test"), facts="1", unknown="0")[:COUNT]
    tempting = []
    for query in queries:
        other = "american" if query.meta["dialect"] == "british" else "british"
        tempting.append(
            [
                next(
                    d
                    for d in clean(task.items("train"), dialect=other)
                    if d.meta["facts"] == "1"
                )
            ]
        )
    without = ask(queries, [[]] * len(queries))
    assert ask(queries, tempting) < without - 0.05
