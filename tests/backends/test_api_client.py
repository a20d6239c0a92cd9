"""Asking a server that fails: what is asked again and how late, what is not, what it cost, and what is never said."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate

import pytest

from leverplus.backends.api.client import Client, Refused, RequestPace, _retry_after, usage_of
from leverplus.backends.api.keys import warn_of_plain_key
from leverplus.errors import LeverError, ScoringError
from leverplus.recipe.model import ModelSection

pytest.importorskip("httpcore", reason="the extra `api` is not installed")
from speaking_server import MODEL, Served, speaking

BODY = {"model": MODEL, "prompt": "Question: the capital of peru?\nAnswer:", "max_tokens": 3}


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def served() -> Iterator[Served]:
    with speaking() as server:
        yield server


def client_of(served: Served, **settings) -> tuple[Client, Clock]:
    clock = Clock()
    section = replace(ModelSection(name=MODEL, url=served.url, retries=4, timeout=5.0), **settings)
    return Client(section, RequestPace(section.rate, clock, clock.sleep)), clock


@pytest.mark.parametrize("kind", ["429", "500", "502", "503", "408", "garbage", "cut", "list", "hang up"])
def test_what_may_be_better_next_time_is_asked_again(served, kind) -> None:
    client, clock = client_of(served)
    served.faults = [(kind, {}), (kind, {})]
    assert client.post("/completions", BODY).value["choices"][0]["text"] == " lima"
    assert client.account.take.requests == len(served.asked) == 3
    assert client.account.take.repeated == 2
    assert 0.25 <= clock.slept[0] <= 0.5
    assert 0.5 <= clock.slept[1] <= 1.0


def test_a_server_that_is_too_slow_is_asked_again(served) -> None:
    client, _ = client_of(served, timeout=0.3)
    served.faults = [("slow", {})]
    assert client.post("/completions", BODY).value["choices"][0]["text"] == " lima"
    assert client.account.take.repeated == 1


def test_pauses_double_up_to_a_minute_and_are_drawn_at_random(served) -> None:
    client, clock = client_of(served, retries=10)
    client._jitter = random.Random(7)
    served.faults = [("500", {})] * 10
    client.post("/completions", BODY)
    bases = [min(60.0, 0.5 * 2**n) for n in range(10)]
    assert all(base / 2 <= pause <= base for pause, base in zip(clock.slept, bases, strict=True))
    assert len({pause / base for pause, base in zip(clock.slept, bases, strict=True)}) == 10


@pytest.mark.parametrize("header", [{"retry-after": "7"}, {"retry-after-ms": "7000"}])
def test_a_pause_the_server_asks_for_is_kept_by_everybody(served, header) -> None:
    client, clock = client_of(served)
    served.faults = [("429", header)]
    client.post("/completions", BODY)
    assert clock.slept == [pytest.approx(7.0)]
    client.pace.hold(3.0)
    client.post("/completions", BODY)
    assert clock.slept[1:] == [pytest.approx(3.0)]


def test_a_date_to_wait_for_is_understood() -> None:
    assert _retry_after({"retry-after": formatdate(time.time() + 30, usegmt=True)}) == pytest.approx(30, abs=2)
    assert _retry_after({"retry-after": "soon"}) is None
    assert _retry_after({}) is None


def test_a_server_that_asks_for_an_hour_is_not_waited_for(served) -> None:
    client, clock = client_of(served)
    served.faults = [("429", {"retry-after": "3600"})]
    with pytest.raises(ScoringError, match="asks to wait 3600 s"):
        client.post("/completions", BODY)
    assert clock.slept == []


def test_a_server_that_stays_away_is_given_up_with_a_sentence(served) -> None:
    client, _ = client_of(served, retries=2)
    served.faults = [("503", {})] * 3
    with pytest.raises(ScoringError, match="did not answer in 3 attempts: status 503, fault 503; what was committed"):
        client.post("/completions", BODY)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nobody, _ = client_of(Served(url=f"http://127.0.0.1:{port}/v1"), retries=1)
    with pytest.raises(ScoringError, match="cannot be reached"):
        nobody.models()


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refusal_is_final(served, status) -> None:
    client, _ = client_of(served)
    served.faults = [(str(status), {})]
    with pytest.raises(Refused, match=f"refuses: status {status}, fault {status}") as caught:
        client.post("/completions", BODY)
    assert caught.value.status == status
    assert len(served.asked) == 1


def test_a_server_that_repeats_a_wrong_key_is_quoted_without_it(monkeypatch) -> None:
    monkeypatch.setenv("LEVER_TEST_KEY", "sk-wrong-0123456789")
    with speaking(key="sk-right") as served:
        client, _ = client_of(served, key_env="LEVER_TEST_KEY")
        for ask in (client.models, lambda: client.post("/completions", BODY)):
            with pytest.raises(Refused, match="refuses the key in the environment variable LEVER_TEST_KEY") as caught:
                ask()
            assert "Incorrect API key provided: ***" in str(caught.value)
            assert "sk-wrong" not in repr(caught.value) + str(caught.value.__cause__)
        keyless, _ = client_of(served)
        with pytest.raises(Refused, match=r"wants a key .* name its environment variable in model\.key_env"):
            keyless.models()


def test_a_key_at_the_end_of_what_is_quoted_leaves_no_part_of_itself(monkeypatch) -> None:
    key = "sk-" + 300 * "long-key-"
    monkeypatch.setenv("LEVER_TEST_KEY", key)
    with speaking(key="sk-right") as served:
        client, _ = client_of(served, key_env="LEVER_TEST_KEY")
        with pytest.raises(Refused) as caught:
            client.models()
    assert "provided: ***" in str(caught.value)
    assert "long-key-" not in str(caught.value)


def test_a_variable_that_is_not_set_is_named(served, monkeypatch) -> None:
    monkeypatch.delenv("LEVER_TEST_KEY", raising=False)
    with pytest.raises(LeverError, match=r"model\.key_env = LEVER_TEST_KEY: this environment variable is not set"):
        client_of(served, key_env="LEVER_TEST_KEY")


def test_requests_leave_evenly_and_an_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    pace = RequestPace(120.0, clock, clock.sleep)
    for _ in range(4):
        pace.wait()
    assert clock.slept == pytest.approx([0.5, 0.5, 0.5])
    clock.now += 60.0
    pace.wait()
    pace.wait()
    assert clock.slept == pytest.approx([0.5, 0.5, 0.5, 0.5])
    free = RequestPace(0.0, clock, clock.sleep)
    free.wait()
    free.wait()
    assert len(clock.slept) == 4


def test_a_real_server_sees_no_more_requests_than_the_rate_allows(served) -> None:
    section = ModelSection(name=MODEL, url=served.url, rate=1200.0)
    client, started = Client(section), time.monotonic()
    for _ in range(5):
        client.post("/completions", BODY)
    assert served.times[-1] - started >= 4 * 0.05


def test_tokens_and_money_are_counted_and_end_where_the_user_said(served) -> None:
    client, _ = client_of(served, price_in=1000.0, price_out=50_000.0, max_cost=0.1)
    part = client.post("/completions", BODY)
    asked, written = usage_of(part.value)
    assert part.tokens == 12
    assert (asked, written) == (11, 1)
    assert client.account.take.cost == pytest.approx((11 * 1000 + 1 * 50_000) / 1e6)
    client.post("/completions", BODY)
    with pytest.raises(ScoringError, match=r"model\.max_cost = 0\.1 is spent \(0\.12\)"):
        client.post("/completions", BODY)
    assert len(served.asked) == 2


@pytest.mark.parametrize("reply", [{}, {"usage": None}, {"usage": {"prompt_tokens": "many"}}])
def test_a_server_that_does_not_count_tokens_is_taken_as_it_is(reply) -> None:
    assert usage_of(reply) == (0, 0)


def test_a_price_is_no_use_where_the_server_counts_no_tokens(served, monkeypatch) -> None:
    """The reply that shows it is kept: it may have been charged for. Nothing further is asked."""
    monkeypatch.setattr("leverplus.backends.api.client.usage_of", lambda reply: usage_of({**reply, "usage": None}))
    free, _ = client_of(served)
    assert free.post("/completions", BODY).value["choices"]
    priced, _ = client_of(served, price_out=1.0, max_cost=0.1)
    assert priced.models()
    assert priced.post("/completions", BODY).value["choices"]
    assert priced.account.take.unpriced == 1
    with pytest.raises(ScoringError, match=r"does not count tokens.* take out model\.price_in"):
        priced.post("/completions", BODY)
    assert len(served.asked) == 2


@pytest.mark.parametrize(
    ("url", "key_env", "warned"),
    [
        ("http://models.example:8000/v1", "SOME_KEY", True),
        ("http://10.0.0.5:8000/v1", "SOME_KEY", True),
        ("https://models.example/v1", "SOME_KEY", False),
        ("http://models.example:8000/v1", "", False),
        ("http://127.0.0.1:8000/v1", "SOME_KEY", False),
        ("http://[::1]:8000/v1", "SOME_KEY", False),
        ("http://localhost:8000/v1", "SOME_KEY", False),
    ],
)
def test_a_key_that_would_leave_this_machine_unencrypted_is_warned_of(url: str, key_env: str, warned: bool) -> None:
    warning = warn_of_plain_key(ModelSection(url=url, key_env=key_env))
    assert bool(warning) == warned
    if warned:
        assert "the key in SOME_KEY goes to" in warning
        assert "use https" in warning
