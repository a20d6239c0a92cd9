"""The scorer: every prompt is asked once, every answer is committed as it comes, nonsense is refused."""

from __future__ import annotations

import math
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import tiny_task
from tiny_task import WORDS, TinyBackend, TinyTask, all_prompts, open_scorer

from leverplus.data.metrics.vqa import vqa_accuracy
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError, NotMeasured, ScoringError
from leverplus.learn.maths.rewards import Evidence, Weights, choice_prob
from leverplus.models.base import LocalEngine, Reply, Request
from leverplus.scores.exchange import verify
from leverplus.scores.scorer import EVALUATION, TRAINING, Scorer
from leverplus.scores.store import ScoreStore

ONE, TWO = ("q0", ("d1",)), ("q0", ("d1", "d2"))


def test_calls_are_distinct_prompts_whether_or_not_the_store_held_them(
    scorer, backend
) -> None:
    calls = scorer.meter.calls
    scorer.score([ONE, TWO, ONE])
    scorer.score([ONE])
    assert (calls(TRAINING), calls(EVALUATION)) == (2, 0)
    scorer.score([ONE, ("q1", ())], EVALUATION)
    assert (calls(TRAINING), calls(EVALUATION)) == (2, 2)
    assert scorer.meter.fresh == len(backend.asked) == 3
    (turned,) = scorer.score([("q0", ("d2", "d1"))])
    assert calls(TRAINING) == 3, "another order is another call"
    assert turned.gt_prob != scorer.score([TWO])[0].gt_prob


def test_nothing_is_asked_twice_not_even_by_another_scorer(
    scorer, backend, store_path
) -> None:
    prompts = all_prompts(scorer.task)
    scores = scorer.score(prompts + prompts[:50])
    assert max(Counter(backend.asked).values()) == 1
    # prompts with the same demonstrations are asked side by side
    assert sum(a[1:] != b[1:] for a, b in pairwise(backend.asked)) == 19
    later = TinyBackend()
    other = open_scorer(store_path, later)
    assert other.score(prompts + prompts[:50]) == scores
    assert (later.asked, other.meter.calls(TRAINING)) == ([], 400)
    other.store.close()


def test_a_score_is_what_the_reply_is_worth(scorer) -> None:
    one, score = scorer.score([ONE, TWO])
    item = scorer.task.item(ItemId("q0"))
    said = WORDS[int(4 * tiny_task.number("q0", "d1", "d2"))]
    assert score.raw == score.answer == said
    assert score.accuracy == vqa_accuracy(score.answer, item.answers)
    assert {r.answer: r.count for r in score.references} == {"red": 3, "green": 1}
    red, green = (tiny_task.number("q0", "d1", "d2", w) / 4 for w in ("red", "green"))
    assert score.gt_prob == pytest.approx(red * 1.0 + green / 3)
    assert (one.tokens, score.tokens, scorer.meter.tokens) == (20, 30, 50)
    assert scorer.meter.seconds == pytest.approx(one.seconds + score.seconds)
    strange = Item(ItemId("x"), "?", ("The Red.", "red", "two", "2", ""), "dev")
    counts = AnswerRules("vqa_accuracy").weighed_references(strange)
    assert counts == {"red": 2, "2": 2}, "counted after normalisation"


def test_a_chunk_is_committed_and_told_before_the_next_is_asked(
    scorer, backend, monkeypatch
) -> None:
    held, told, answer = [], [], backend.answer
    scorer.progress = lambda *line: told.append(line)
    monkeypatch.setattr(
        backend,
        "answer",
        lambda requests: held.append(scorer.store.count()) or answer(requests),
    )
    scorer.score(all_prompts(scorer.task)[:40], what="tables")
    assert held == [0, 16, 32]
    assert told == [("tables", done, 40) for done in (0, 16, 32, 40)]


def test_a_failure_costs_the_chunk_in_flight_only(store_path) -> None:
    class Failing(TinyBackend):
        def answer(self, requests):
            if len(self.batches) == 3:
                raise RuntimeError("power cut")
            return super().answer(requests)

    failing, healthy = open_scorer(store_path, Failing()), TinyBackend()
    with pytest.raises(RuntimeError):
        failing.score(all_prompts(failing.task))
    assert failing.store.count() == 48
    open_scorer(store_path, healthy).score(all_prompts(failing.task))
    assert len(healthy.asked) == 400 - 48
    assert set(healthy.asked).isdisjoint(failing.backend.asked)


@pytest.mark.parametrize(
    ("prompt", "kind", "sentence"),
    [
        (("q0", ("nobody",)), DataError, "no item 'nobody'"),
        (("q0", ("d1", "d2", "d1")), ScoringError, "a demonstration occurs twice"),
        (("d1", ("d2", "d1")), ScoringError, "among its own demonstrations"),
        (("q0", ("blank",)), ScoringError, "empty answer"),
        (("q0", ("silent",)), ScoringError, "empty answer"),
        (("silent", ()), ScoringError, "no usable reference answer"),
    ],
)
def test_a_prompt_that_makes_no_sense_is_refused_before_anything_is_asked(
    scorer, backend, prompt, kind, sentence
) -> None:
    with pytest.raises(kind, match=sentence):
        scorer.score([TWO, prompt])
    assert (backend.asked, scorer.store.count()) == ([], 0)


SPOILT = {
    "is nan, expected a finite": {"logprobs": (math.nan, -1.0)},
    "expected a finite number at most 0": {"logprobs": (-1.0, 0.5)},
    "2 references but 1 log-probabilities": {"logprobs": (-1.0,)},
    "cost": {"tokens": -1},
    "not valid Unicode": {"raw": "\ud800"},
    "answered 15 of 16": None,
}


@pytest.mark.parametrize("sentence", SPOILT)
def test_a_reply_that_makes_no_sense_is_refused_and_the_store_stays_whole(
    scorer, backend, monkeypatch, sentence
) -> None:
    answer, change = backend.answer, SPOILT[sentence]

    def spoiled(requests) -> list[Reply]:
        replies = answer(requests)
        if len(backend.batches) == 2:
            spoilt = replies.pop(3)
            replies += [replace(spoilt, **change)] if change else []
        return replies

    monkeypatch.setattr(backend, "answer", spoiled)
    with pytest.raises(ScoringError, match=sentence):
        scorer.score(all_prompts(scorer.task)[:38])
    # the others of its chunk are kept
    assert scorer.store.count() == (31 if change else 16)
    assert verify(scorer.store).clean


def test_nothing_is_not_the_answer_a() -> None:
    """To the official normalisation "A" is an article, and so is nothing at all."""
    item = Item(ItemId("a"), "Which label?", ("A",) * 10, "test")
    for metric in ("exact_match", "vqa_accuracy"):
        rules = AnswerRules(metric)
        assert [rules.score(answer, item) for answer in ("", "A")] == [0.0, 1.0]


# -- labels


class LabelTask(TinyTask):
    """The tiny task with one label an item."""

    labels = WORDS
    answers = AnswerRules("label_accuracy")

    def _make(self, letter: str, split: str) -> list[Item]:
        items = super()._make(letter, split)
        return [replace(item, answers=item.answers[:1]) for item in items]


class Handmade(TinyBackend):
    """Gives the labels fixed log-probabilities and would write something else."""

    def __init__(self, logprobs: Sequence[float] | None) -> None:
        super().__init__()
        self.logprobs = None if logprobs is None else tuple(logprobs)
        self.requests: list[Request] = []

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        self.requests += requests
        return [Reply("blue, I think", self.logprobs, 1) for _ in requests]


@pytest.fixture
def labelled(store_path):
    with ScoreStore(store_path) as store:

        def build(logprobs: Sequence[float] | None) -> Scorer:
            backend = Handmade(logprobs)
            return Scorer(LabelTask(), backend, store, LocalEngine(backend))

        yield build


def test_the_likeliest_label_is_the_answer_whatever_would_be_written(labelled) -> None:
    scorer = labelled([-3.0, -1.0, -2.0, -4.0])
    # q1 is green, q0 is red
    right, wrong = scorer.score([("q1", ("d3",)), ("q0", ("d3",))])
    assert (right.answer, right.accuracy, right.raw) == ("green", 1.0, "green")
    assert (wrong.answer, wrong.accuracy) == ("green", 0.0)
    assert all(
        own.choose and own.references == WORDS for own in scorer.backend.requests
    )
    assert scorer.score([("q1", ("d3",))]) == [right], "as the store holds it"
    assert right.choices == dict(zip(WORDS, (-3.0, -1.0, -2.0, -4.0), strict=True))
    assert [reference.count for reference in right.references] == [0, 1, 0, 0]
    assert right.gt_prob == pytest.approx(math.exp(-1.0) / 3)
    task = scorer.task
    task._by_id[ItemId("q2")] = replace(task.item(ItemId("q2")), answers=("purple",))
    with pytest.raises(ScoringError, match=r"q2 has the label 'purple'; known: red"):
        scorer.score([("q2", ())])


@pytest.mark.parametrize(
    ("logprobs", "share"),
    [
        # half of the probability goes to other words
        ([math.log(p) for p in (0.05, 0.2, 0.1, 0.05)], 0.5),
        ([-2000.0, -2000.0, -2001.0, -3000.0], 1.0 / (2.0 + math.exp(-1.0))),
    ],
)
def test_the_share_of_the_true_label_is_worked_by_hand(
    labelled, logprobs, share
) -> None:
    (score,) = labelled(logprobs).score([("q1", ())])
    assert score.choice_prob == pytest.approx(share)
    rewarded = choice_prob(Evidence(score), Weights(soft=2.0))
    assert rewarded == pytest.approx(2.0 * share)


def test_without_log_probabilities_nothing_becomes_a_number(labelled, scorer) -> None:
    (silent,) = labelled(None).score([("q2", ())])
    assert silent.raw == "blue, I think"
    (free,) = scorer.score([ONE])
    assert free.choices == {}
    for score in (silent, free):
        with pytest.raises(NotMeasured, match="other labels"):
            _ = score.choice_prob
    with pytest.raises(NotMeasured, match="no reference log-probability"):
        _ = silent.gt_prob


KILLS, CHUNK = 20, 4


@pytest.mark.slow
def test_kill_minus_nine_at_twenty_random_moments_costs_at_most_a_chunk_each(
    tmp_path: Path,
) -> None:
    """Started again after each kill: nothing committed is asked again or lost, no key occurs twice."""
    store, log = tmp_path / "scores.db", tmp_path / "asked"
    log.touch()
    command = [sys.executable, tiny_task.__file__, store, log, str(CHUNK), "0.05"]
    rng, committed = random.Random(5), set()
    for _ in range(KILLS):
        held, size = len(committed), log.stat().st_size
        process = subprocess.Popen(command)
        while process.poll() is None and log.stat().st_size == size:
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was done before it was killed"
        assert committed.isdisjoint(_asked(log.read_text()[size:]))
        with ScoreStore(store) as opened:
            for context in opened.contexts():
                for _, score in opened.scan(context):
                    committed.add(" ".join((score.query, *score.demos)))
            assert len(committed) == opened.count() >= held
            assert verify(opened).clean
    size = log.stat().st_size
    subprocess.run(command, check=True)
    assert committed.isdisjoint(_asked(log.read_text()[size:]))
    counts = Counter(_asked(log.read_text()))
    assert len(counts) == 400
    assert counts.total() - 400 <= KILLS * CHUNK
    with ScoreStore(store) as opened:
        assert opened.count() == 400


def _asked(text: str) -> list[str]:
    return [line for line in text.splitlines() if line != "--"]
