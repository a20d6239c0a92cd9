from __future__ import annotations

import math
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import tiny_task
from tiny_task import TinyBackend, all_prompts, open_scorer

from leverplus.backends.base import Reply
from leverplus.errors import DataError, LeverError, ScoringError
from leverplus.metrics import vqa_accuracy
from leverplus.scoring.scorer import EVALUATION, TRAINING, _verdict, info_score, prefixes_of, reference_counts
from leverplus.store.db import ScoreStore
from leverplus.store.exchange import verify
from leverplus.types import Item, ItemId

ONE = ("q0", ("d1",))
TWO = ("q0", ("d1", "d2"))


class TestCounting:
    def test_calls_are_distinct_prompts_whether_or_not_the_store_held_them(self, scorer, backend) -> None:
        scorer.score([ONE, TWO, ONE])
        assert scorer.meter.calls(TRAINING) == 2
        scorer.score([ONE])
        assert (scorer.meter.calls(TRAINING), scorer.meter.calls(EVALUATION)) == (2, 0)
        scorer.score([ONE, ("q1", ())], EVALUATION)
        assert (scorer.meter.calls(TRAINING), scorer.meter.calls(EVALUATION)) == (2, 2)
        assert scorer.meter.fresh == len(backend.asked) == 3

    def test_the_same_demonstrations_in_another_order_are_another_call(self, scorer) -> None:
        first, second = scorer.score([TWO, ("q0", ("d2", "d1"))])
        assert scorer.meter.calls(TRAINING) == 2
        assert first.gt_prob != second.gt_prob

    def test_nothing_is_asked_twice_not_even_by_another_scorer(self, scorer, backend, store_path) -> None:
        prompts = all_prompts(scorer.task)
        scores = scorer.score(prompts + prompts[:50])
        assert max(Counter(backend.asked).values()) == 1
        later = TinyBackend()
        other = open_scorer(store_path, later)
        assert other.score(prompts + prompts[:50]) == scores
        assert later.asked == []
        assert other.meter.calls(TRAINING) == 400
        other.store.close()

    def test_tokens_and_seconds_are_those_of_the_model(self, scorer) -> None:
        scores = scorer.score([ONE, TWO])
        assert [score.tokens for score in scores] == [20, 30]
        assert scorer.meter.tokens == 50
        assert scorer.meter.seconds == pytest.approx(sum(score.seconds for score in scores))


class TestRecords:
    def test_a_score_is_what_the_reply_is_worth(self, scorer) -> None:
        (score,) = scorer.score([TWO])
        item = scorer.task.item(ItemId("q0"))
        assert score.raw == score.answer == tiny_task.WORDS[int(4 * tiny_task.number("q0", "d1", "d2"))]
        assert score.accuracy == vqa_accuracy(score.answer, item.answers)
        assert {r.answer: r.count for r in score.references} == {"red": 3, "green": 1}
        red, green = (tiny_task.number("q0", "d1", "d2", word) / 4 for word in ("red", "green"))
        assert score.gt_prob == pytest.approx(red * 1.0 + green / 3)

    def test_every_prefix_is_a_record_of_its_own_and_the_gain_is_a_subtraction(self, scorer) -> None:
        prompts = prefixes_of([("q0", ("d1", "d2")), ("q0", ("d1", "d3"))])
        assert prompts == [("q0", ()), ("q0", ("d1",)), ("q0", ("d1", "d2")), ("q0", ("d1", "d3"))]
        bare, one, two, _ = scorer.score(prompts)
        assert scorer.store.count() == 4
        assert info_score(two, one) == two.gt_prob - one.gt_prob
        assert info_score(two, one) + info_score(one, bare) == pytest.approx(two.gt_prob - bare.gt_prob)

    def test_the_gain_over_another_prefix_is_refused(self, scorer) -> None:
        two, other, stranger, bare = scorer.score([TWO, ("q0", ("d3",)), ("q1", ("d1",)), ("q0", ())])
        for wrong in (other, stranger, bare, two):
            with pytest.raises(ScoringError, match="needs the score without its last or first"):
                info_score(two, wrong)
        with pytest.raises(ScoringError):
            info_score(bare, bare)

    def test_references_are_counted_after_normalisation(self) -> None:
        item = Item(ItemId("x"), "?", ("The Red.", "red", "two", "2", ""), "dev")
        assert dict(reference_counts(item)) == {"red": 2, "2": 2}


class TestChunks:
    def test_a_chunk_is_committed_before_the_next_is_asked(self, scorer, backend, monkeypatch) -> None:
        held = []
        answer = backend.answer
        monkeypatch.setattr(backend, "answer", lambda requests: held.append(scorer.store.count()) or answer(requests))
        scorer.score(all_prompts(scorer.task))
        assert held == list(range(0, 400, 16))

    def test_prompts_with_the_same_demonstrations_are_asked_side_by_side(self, scorer, backend) -> None:
        scorer.score(all_prompts(scorer.task))
        shown = [prompt[1:] for prompt in backend.asked]
        assert sum(a != b for a, b in pairwise(shown)) == 19

    def test_a_failure_costs_the_chunk_in_flight_only(self, store_path) -> None:
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

    def test_progress_tells_how_far_it_is(self, scorer) -> None:
        told = []
        scorer.progress = lambda what, done, total: told.append((what, done, total))
        scorer.score(all_prompts(scorer.task)[:40], what="tables")
        assert told == [("tables", done, 40) for done in (0, 16, 32, 40)]


class TestBadInput:
    @pytest.mark.parametrize(
        ("prompt", "kind", "sentence"),
        [
            (("q0", ("nobody",)), DataError, "no item 'nobody'"),
            (("nobody", ()), DataError, "no item 'nobody'"),
            (("q0", ("d1", "d2", "d1")), ScoringError, "a demonstration occurs twice"),
            (("d1", ("d2", "d1")), ScoringError, "among its own demonstrations"),
            (("q0", ("blank",)), ScoringError, "empty answer"),
            (("q0", ("silent",)), ScoringError, "empty answer"),
            (("blank", ()), ScoringError, "no usable reference answer"),
            (("silent", ()), ScoringError, "no usable reference answer"),
        ],
    )
    def test_a_prompt_that_makes_no_sense_is_refused_before_anything_is_asked(
        self, scorer, backend, prompt, kind, sentence
    ) -> None:
        scorer.score([ONE])
        with pytest.raises(kind, match=sentence):
            scorer.score([TWO, prompt])
        assert len(backend.asked) == 1
        assert scorer.store.count() == 1
        assert verify(scorer.store).clean

    @pytest.mark.parametrize(
        ("spoil", "sentence"),
        [
            (lambda reply: replace(reply, logprobs=(math.nan, -1.0)), "log-probability of 'red' is nan"),
            (lambda reply: replace(reply, logprobs=(-1.0, 0.5)), "expected a finite number at most 0"),
            (lambda reply: replace(reply, logprobs=(-1.0, -math.inf)), "expected a finite number at most 0"),
            (lambda reply: replace(reply, logprobs=(-1.0,)), "2 references but 1 log-probabilities"),
            (lambda reply: replace(reply, tokens=-1), "cost"),
            (lambda reply: replace(reply, raw="\ud800"), "not valid Unicode"),
            (lambda reply: None, "answered 15 of 16"),
        ],
    )
    def test_a_reply_that_makes_no_sense_is_refused_and_the_store_stays_whole(
        self, scorer, backend, monkeypatch, spoil, sentence
    ) -> None:
        prompts = [("q0", (f"d{row}",)) for row in range(1, 20)] + [("q0", ("d0", f"d{row}")) for row in range(1, 20)]
        answer = backend.answer

        def spoiled(requests) -> list[Reply]:
            replies = answer(requests)
            if len(backend.batches) == 2:
                replies[3] = spoil(replies[3])
            return [reply for reply in replies if reply is not None]

        monkeypatch.setattr(backend, "answer", spoiled)
        with pytest.raises(ScoringError, match=sentence):
            scorer.score(prompts)
        assert scorer.store.count() == (16 if "answered 15" in sentence else 31), "the others of its chunk are kept"
        assert verify(scorer.store).clean

    def test_a_model_that_says_nothing_is_wrong_and_a_model_without_probabilities_says_so(
        self, scorer, backend, monkeypatch
    ) -> None:
        monkeypatch.setattr(backend, "answer", lambda requests: [Reply("", None, 1) for _ in requests])
        (score,) = scorer.score([ONE])
        assert (score.answer, score.accuracy, score.correct) == ("", 0.0, False)
        with pytest.raises(LeverError, match="no reference log-probability was measured"):
            _ = score.gt_prob

    @pytest.mark.parametrize("metric", ["exact_match", "vqa_accuracy"])
    def test_nothing_is_not_the_answer_a(self, metric) -> None:
        """To the official normalisation "A" is an article, and so is nothing at all."""
        assert _verdict("plain", metric, "", ("A",) * 10).accuracy == 0.0
        assert _verdict("plain", metric, "A", ("A",) * 10).accuracy == 1.0


KILLS, CHUNK = 20, 4


@pytest.mark.slow
def test_kill_minus_nine_at_twenty_random_moments_costs_at_most_a_chunk_each(tmp_path: Path) -> None:
    """Started again after each kill: nothing committed is asked again or lost, no key occurs twice."""
    store, log = tmp_path / "scores.db", tmp_path / "asked"
    log.touch()
    command = [sys.executable, tiny_task.__file__, str(store), str(log), str(CHUNK), "0.05"]
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
            committed = {" ".join((s.query, *s.demos)) for c in opened.contexts() for _, s in opened.scan(c)}
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
        assert verify(opened).clean


def _asked(text: str) -> list[str]:
    return [line for line in text.splitlines() if line != "--"]
