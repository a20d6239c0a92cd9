"""A server that fails in a hundred ways: what it charged is stored or reported as lost, to the cent, in every one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("httpcore", reason="the extra `api` is not installed")
import paying_scorer
from faulty_server import FAULTS, Books, faulty
from speaking_server import MODEL

from leverplus.backends.api.account import Account
from leverplus.backends.api.client import Client
from leverplus.errors import ScoringError, plain
from leverplus.recipe.model import ModelSection
from leverplus.store.db import ScoreStore
from leverplus.store.exchange import verify

PRICE_IN, PRICE_OUT = 2000.0, 8000.0
TAKES = 6


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch) -> None:
    monkeypatch.setattr("leverplus.backends.api.client.FIRST_PAUSE", 0.01)


@pytest.fixture(autouse=True)
def small_replies(monkeypatch) -> None:
    monkeypatch.setattr("leverplus.backends.api.wire.MOST_BYTES", 1 << 20)


def section_of(served: Books, **settings) -> ModelSection:
    own = {"retries": 1, "timeout": 20.0, "concurrency": 3, "price_in": PRICE_IN, "price_out": PRICE_OUT}
    return ModelSection(name=MODEL, url=served.url, **{**own, **settings})


def test_there_are_faults_enough() -> None:
    assert len(FAULTS) >= 50


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_what_was_charged_is_stored_or_reported_in_every_fault(name, tmp_path: Path) -> None:
    fault = FAULTS[name]
    sentences: list[str] = []
    with faulty(fault) as served:
        patience = 1.0 if name.startswith(("hangs", "drips")) else 20.0  # a busy machine is no fault
        for _ in range(TAKES):
            scorer, prompts = paying_scorer.open_scorer(tmp_path, section_of(served, timeout=patience))
            try:
                scorer.score(prompts)
                break
            except ScoringError as error:
                sentences.append(str(error))
        assert served.times_left == 0, "the fault was not played"
        account = Account(tmp_path / "paid.jsonl").total
        charged = len(served.tokens) + served.untold
        with ScoreStore(tmp_path / "scores.db") as store:
            records = store.count()
            assert verify(store).clean
        assert records == len(prompts), sentences
        needed = 1 + 2 * records  # one asks whether answers are weighed; then one to weigh and one to write for each
        assert charged == needed + account.lost + served.untold - served.used_untold
        unread = account.unpriced - served.untold  # nobody can know of a request whether it was read before the end
        assert 0 <= unread <= (2 if fault.closes else 0)
        assert account.cost == pytest.approx(served.cost(PRICE_IN, PRICE_OUT), abs=1e-9)
        assert account.prompt_tokens == sum(asked for asked, _ in served.tokens)
        assert account.completion_tokens == sum(written for _, written in served.tokens)
    for sentence in sentences:
        assert sentence == plain(sentence)
        assert len(sentence) < 700
        assert "Traceback" not in sentence


def test_a_limit_below_the_price_of_a_few_replies_goes_on_take_by_take(tmp_path: Path) -> None:
    """At most the requests under way go beyond it, and no prompt is paid for twice."""
    with faulty() as served:
        done, takes, paid, sentences = False, 0, 0.0, set()
        while not done and takes < 60:
            takes += 1
            section = section_of(served, max_cost=0.3)
            scorer, prompts = paying_scorer.open_scorer(tmp_path, section)
            try:
                scorer.score(prompts)
                done = True
            except ScoringError as error:
                sentences.add(str(error)[:32])
            now = served.cost(PRICE_IN, PRICE_OUT)
            dearest = max(asked * PRICE_IN + written * PRICE_OUT for asked, written in served.tokens) / 1e6
            assert now - paid < 0.3 + section.concurrency * dearest
            paid = now
        assert done
        assert takes > 2
        assert sentences == {"model.max_cost = 0.3 is spent (0"}
        assert len(served.tokens) == 1 + 2 * len(prompts)
        assert Account(tmp_path / "paid.jsonl").total.cost == pytest.approx(paid, abs=1e-9)


@pytest.mark.parametrize("name", ["drips its head", "drips its body"])
def test_the_timeout_is_a_deadline_for_the_whole_attempt(name) -> None:
    with faulty(FAULTS[name], posts=3, times_left=1) as served:
        client = Client(section_of(served, retries=0, timeout=0.5))
        started = time.monotonic()
        with pytest.raises(ScoringError, match=r"no answer within model\.timeout = 0\.5 s"):
            client.post("/completions", {"prompt": "capital of peru"})
        assert time.monotonic() - started < 1.5


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_nothing_goes_there(code) -> None:
    with faulty() as other, faulty(FAULTS[f"redirect {code}"], posts=3) as served:
        client = Client(section_of(served))
        with pytest.raises(ScoringError, match=r"redirects to .* set model\.url to the address that answers"):
            client.post("/completions", {"prompt": "capital of peru"})
        assert served.posts == 4
        assert other.posts == 0
        assert client.account.take.unpriced == 0


def test_a_failed_request_ends_the_asking_and_what_was_under_way_is_stored(tmp_path: Path) -> None:
    with faulty(FAULTS["refusal 400"], delay=0.05, times_left=1) as served:
        scorer, prompts = paying_scorer.open_scorer(tmp_path, section_of(served, logprobs="never"), demos=12)
        with pytest.raises(ScoringError, match="refuses: status 400"):
            scorer.score(prompts)
        assert scorer.store.count() == len(served.tokens)
        # the fourth request fails; how many more were sent before the others saw it depends on the machine
        assert served.posts < len(prompts) / 2


def test_ctrl_c_while_scoring_waits_for_what_is_under_way_and_loses_nothing(tmp_path: Path) -> None:
    with faulty(delay=0.2) as served:
        scorer, prompts = paying_scorer.open_scorer(tmp_path, section_of(served))
        told = []

        def stop(what: str, done: int, total: int) -> None:
            told.append(done)
            if done and len(told) == 2:
                raise KeyboardInterrupt

        scorer.progress = stop
        with pytest.raises(KeyboardInterrupt):
            scorer.score(prompts)
        before = len(served.tokens)
        assert Account(tmp_path / "paid.jsonl").total.unpriced == 0
        scorer, prompts = paying_scorer.open_scorer(tmp_path, section_of(served))
        scorer.score(prompts)
        assert before < len(served.tokens) == 1 + 2 * len(prompts)


KILLS, THREADS = 20, 3


@contextmanager
def starting(folder: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, paying_scorer.__file__, str(folder), url, str(THREADS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        yield made
        made.stdin.close()


def start(maker: subprocess.Popen[str]) -> int:
    maker.stdin.write("go\n")
    maker.stdin.flush()
    return int(maker.stdout.readline())


@pytest.mark.slow
def test_twenty_kills_repeat_at_most_what_was_under_way(tmp_path: Path) -> None:
    """A process that tests the backend and then scores, killed with -9 at random moments and started again."""
    rng, tested = random.Random(3), 0
    with faulty(delay=0.02) as served, starting(tmp_path, served.url) as maker:
        for number in range(KILLS):
            before, process = served.posts, start(maker)
            while served.posts == before or (number >= KILLS // 2 and not (tmp_path / "selftests.jsonl").is_file()):
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, 0.15))
            os.kill(process, signal.SIGKILL)
            assert int(maker.stdout.readline()) == signal.SIGKILL, "it was done before it was killed"
            tested += not (tmp_path / "selftests.jsonl").is_file()
        start(maker)
        assert int(maker.stdout.readline()) == 0
        account = Account(tmp_path / "paid.jsonl").total
        asked, charged = len(served.tokens), served.cost(PRICE_IN, PRICE_OUT)
    assert 0 < tested < KILLS, "some kills hit the self-test, some the scoring"
    assert len((tmp_path / "selftests.jsonl").read_text().splitlines()) == 1, "the self-test was passed once"
    alone = tmp_path / "alone"
    alone.mkdir()
    with faulty() as served, starting(alone, served.url) as maker:
        start(maker)
        assert int(maker.stdout.readline()) == 0
        needed = len(served.tokens)
    assert asked - needed <= KILLS * THREADS
    assert asked - needed <= account.unpriced <= KILLS * (THREADS + 1), "and lists of models under way"
    assert account.cost <= charged
