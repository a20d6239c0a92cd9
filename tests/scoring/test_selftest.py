from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_task import TinyBackend, TinyTask

from leverplus.backends.base import Reply
from leverplus.backends.world import WorldBackend
from leverplus.errors import ScoringError
from leverplus.scoring.selftest import self_test
from leverplus.tasks.world import WorldTask


@pytest.fixture(scope="module")
def task() -> WorldTask:
    return WorldTask()


@pytest.fixture
def world(task) -> WorldBackend:
    return WorldBackend(task)


def test_the_world_passes_to_a_ten_thousandth(task, world) -> None:
    found = self_test(task, world, tolerance=1e-4)
    assert found.prompts == 32
    assert found.spans_checked == 64
    assert found.batch_gap < 1e-4
    assert found.right_over_wrong is not None
    assert found.right_error is not None
    assert found.right_over_wrong > 3 * found.right_error
    assert found.picture_effect is not None
    assert found.picture_effect > 0.1


def test_a_backend_without_log_probabilities_is_judged_by_its_answers(task, world, monkeypatch) -> None:
    answer = world.answer
    monkeypatch.setattr(world, "answer", lambda requests: [replace(r, logprobs=None) for r in answer(requests)])
    found = self_test(task, world)
    assert found.right_over_wrong is None
    assert found.picture_effect is not None
    assert 0.2 < found.picture_effect <= 1.0


def test_a_model_that_cannot_see_fails(task, world, monkeypatch) -> None:
    monkeypatch.setattr(world.model, "see", lambda pictures: torch.zeros(len(pictures), 2, 192))
    with pytest.raises(ScoringError, match="does not see them"):
        self_test(task, world)


def test_a_model_that_guesses_fails() -> None:
    with pytest.raises(ScoringError, match="a model that knows the task prefers right ones"):
        self_test(TinyTask(), TinyBackend())


def test_an_answer_that_depends_on_its_company_fails(task, world, monkeypatch) -> None:
    answer = world.answer

    def leaking(requests) -> list[Reply]:
        return [
            replace(reply, logprobs=tuple(lp - 1e-3 * place for lp in reply.logprobs))
            for place, reply in enumerate(answer(requests))
        ]

    monkeypatch.setattr(world, "answer", leaking)
    with pytest.raises(ScoringError, match="log-probabilities differ by"):
        self_test(task, world)


def test_weighing_other_words_than_the_answer_fails(task, world, monkeypatch) -> None:
    monkeypatch.setattr(world, "answer_span", lambda request, reference: reference.split()[0][1:])
    with pytest.raises(ScoringError, match="would be weighed instead of"):
        self_test(task, world)


def test_all_problems_are_told_at_once(task, world, monkeypatch) -> None:
    monkeypatch.setattr(world, "answer_span", lambda request, reference: "?")
    monkeypatch.setattr(world, "answer", lambda requests: [Reply("red", (-1.0, -1.0), 1) for _ in requests])
    with pytest.raises(ScoringError) as caught:
        self_test(task, world)
    assert str(caught.value).count("\n  - ") == 3
