from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leverplus.errors import ScoringError
from leverplus.models.base import Request
from leverplus_lab.world.backend import WorldBackend
from leverplus_lab.world.task import WorldTask


@pytest.fixture(scope="module")
def task() -> WorldTask:
    return WorldTask()


@pytest.fixture(scope="module")
def backend(task) -> WorldBackend:
    return WorldBackend(task)


def requests_of(task: WorldTask, shots: int, count: int) -> list[Request]:
    train, requests = task.items("train"), []
    for place, query in enumerate(task.items("dev")[:count]):
        demos = tuple(train[place // 2 : place // 2 + shots])
        references = tuple(task.answers.weighed_references(query))
        requests.append(Request(query, demos, references))
    return requests


def test_a_right_answer_beats_a_shuffled_one_where_the_model_knows_the_facts(
    task, backend
) -> None:
    """Queries about facts that pretraining saw; wrong answers are those of other such queries."""
    known = [item for item in task.items("dev") if item.meta["unknown"] == "0"][:60]
    wrong = [item.answer for item in known[1:] + known[:1]]
    pairs = [
        (item, other)
        for item, other in zip(known, wrong, strict=True)
        if other not in item.answers
    ]
    requests = [Request(item, (), (item.answer, other)) for item, other in pairs]
    margins = [
        reply.logprobs[0] - reply.logprobs[1] for reply in backend.answer(requests)
    ]
    assert np.mean(np.array(margins) > 0) > 0.9


def test_each_picture_is_seen_once(task, monkeypatch) -> None:
    backend, seen = WorldBackend(task), []
    see = backend.model.see
    monkeypatch.setattr(
        backend.model,
        "see",
        lambda pictures: seen.append(len(pictures)) or see(pictures),
    )
    requests = requests_of(task, 3, 6)
    backend.answer(requests)
    backend.answer(requests)
    assert sum(seen) == len({item.id for r in requests for item in (r.query, *r.demos)})


def test_nine_demonstrations_and_no_references_are_refused(task, backend) -> None:
    (request,) = requests_of(task, 8, 1)
    with pytest.raises(ScoringError, match="at most 8 demonstrations, not 9"):
        backend.answer(
            [replace(request, demos=(*request.demos, task.items("train")[0]))]
        )
    with pytest.raises(ScoringError, match="no true answers whose probability"):
        backend.answer([replace(request, references=())])
