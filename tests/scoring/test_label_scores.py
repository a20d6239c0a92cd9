"""Classification: every label is weighed, the likeliest is the answer, and the true one's share is a reward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_task import WORDS, TinyBackend, TinyTask

from leverplus.backends.base import Reply, Request
from leverplus.engine.local import LocalEngine
from leverplus.errors import NotMeasured, ScoringError
from leverplus.maths.rewards import Evidence, Weights, choice_prob
from leverplus.scoring.scorer import Scorer
from leverplus.store.db import ScoreStore
from leverplus.types import Item, ItemId


class LabelTask(TinyTask):
    """The tiny task with one label an item."""

    labels = WORDS
    metric = "label_accuracy"

    def _make(self, letter: str, split: str) -> list[Item]:
        return [replace(item, answers=item.answers[:1]) for item in super()._make(letter, split)]


class Handmade(TinyBackend):
    """Gives the labels fixed log-probabilities and would write something else."""

    def __init__(self, logprobs: Sequence[float] | None) -> None:
        super().__init__()
        self.logprobs = logprobs
        self.requests: list[Request] = []

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        self.requests += requests
        return [Reply("blue, I think", None if self.logprobs is None else tuple(self.logprobs), 1) for _ in requests]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[ScoreStore]]:
    stores: list[ScoreStore] = []
    yield stores
    for store in stores:
        store.close()


def scorer_of(backend: TinyBackend, path: Path, opened: list[ScoreStore], task: TinyTask | None = None) -> Scorer:
    opened.append(ScoreStore(path))
    return Scorer(task or LabelTask(), backend, opened[-1], LocalEngine(backend))


def test_the_likeliest_label_is_the_answer_whatever_would_be_written(tmp_path, opened) -> None:
    backend = Handmade([-3.0, -1.0, -2.0, -4.0])
    scorer = scorer_of(backend, tmp_path / "s.db", opened)
    right, wrong = scorer.score([("q1", ("d3",)), ("q0", ("d3",))])  # q1 is green, q0 is red
    assert (right.answer, right.accuracy, right.raw) == ("green", 1.0, "green")
    assert (wrong.answer, wrong.accuracy) == ("green", 0.0)
    assert all(request.choose and request.references == WORDS for request in backend.requests)


def test_all_labels_survive_the_store_and_only_the_true_one_counts(tmp_path, opened) -> None:
    first = scorer_of(Handmade([-3.0, -1.0, -2.0, -4.0]), tmp_path / "s.db", opened)
    score = first.score([("q1", ("d3",))])[0]
    later = scorer_of(TinyBackend(), tmp_path / "s.db", opened)
    later.backend = first.backend  # the same context: the store answers
    assert later.score([("q1", ("d3",))])[0] == score
    assert score.choices == dict(zip(WORDS, (-3.0, -1.0, -2.0, -4.0), strict=True))
    assert [reference.count for reference in score.references] == [0, 1, 0, 0]
    assert score.gt_prob == pytest.approx(math.exp(-1.0) / 3)


def test_the_share_of_the_true_label_is_worked_by_hand(tmp_path, opened) -> None:
    logs = [math.log(p) for p in (0.05, 0.2, 0.1, 0.05)]  # half of the probability goes to other words
    score = scorer_of(Handmade(logs), tmp_path / "s.db", opened).score([("q1", ())])[0]
    assert score.choice_prob == pytest.approx(0.5)
    assert choice_prob(Evidence(score), Weights(soft=2.0)) == pytest.approx(1.0)


def test_shares_hold_where_probabilities_vanish(tmp_path, opened) -> None:
    score = scorer_of(Handmade([-2000.0, -2000.0, -2001.0, -3000.0]), tmp_path / "s.db", opened).score([("q1", ())])[0]
    assert score.choice_prob == pytest.approx(1.0 / (2.0 + math.exp(-1.0)))


def test_without_log_probabilities_the_answer_is_cut_from_the_text(tmp_path, opened) -> None:
    score = scorer_of(Handmade(None), tmp_path / "s.db", opened).score([("q2", ())])[0]
    assert score.raw == "blue, I think"
    with pytest.raises(NotMeasured, match="other labels"):
        _ = score.choice_prob


def test_free_answers_have_no_share_among_labels(scorer) -> None:
    score = scorer.score([("q0", ("d1",))])[0]
    assert score.choices == {}
    with pytest.raises(NotMeasured, match="other labels"):
        _ = score.choice_prob


def test_a_label_that_is_not_one_is_named(tmp_path, opened) -> None:
    task = LabelTask()
    task._by_id[ItemId("q0")] = replace(task.item(ItemId("q0")), answers=("purple",))
    with pytest.raises(ScoringError, match=r"q0 has the label 'purple'; known: red"):
        scorer_of(TinyBackend(), tmp_path / "s.db", opened, task).score([("q0", ())])
