"""Asking a server that fails: what is asked again and how late, what is not, what it cost, and what is never said."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from speaking_server import MODEL, Served, speaking

from leverplus.errors import LeverError, ScoringError
from leverplus.models.api.account import Account, ReplyPart, part_key
from leverplus.models.api.client import (
    Client,
    Refused,
    RequestPace,
    _retry_after,
    usage_of,
)
from leverplus.models.settings import ModelSection, warn_of_plain_key

BODY = {"model": MODEL, "prompt": "Question: the capital of peru?\nAnswer:"}


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


def client_of(url: str, **settings: Any) -> tuple[Client, Clock]:
    own = {"name": MODEL, "url": url, "retries": 4, "timeout": 5.0, **settings}
    section, clock = ModelSection(**own), Clock()
    return Client(section, RequestPace(section.rate, clock, clock.sleep)), clock


def text_of(client: Client) -> str:
    return client.post("/completions", BODY).value["choices"][0]["text"]


@pytest.mark.parametrize(
    "kind", ["429", "500", "503", "408", "garbage", "cut", "list", "hang up"]
)
def test_what_may_be_better_next_time_is_asked_again(served, kind) -> None:
    client, clock = client_of(served.url)
    served.faults = [(kind, {}), (kind, {})]
    assert text_of(client) == " lima"
    take = client.account.take
    assert (take.requests, take.repeated, len(served.asked)) == (3, 2, 3)
    assert 0.25 <= clock.slept[0] <= 0.5 <= clock.slept[1] <= 1.0


@pytest.mark.slow
def test_a_server_that_is_too_slow_is_asked_again(served) -> None:
    client, _ = client_of(served.url, timeout=0.3)
    served.faults = [("slow", {})]
    assert text_of(client) == " lima"
    assert client.account.take.repeated == 1


def test_pauses_double_up_to_a_minute_and_are_drawn_at_random(served) -> None:
    client, clock = client_of(served.url, retries=10)
    client._jitter = random.Random(7)
    served.faults = [("500", {})] * 10
    text_of(client)
    shares = set()
    for number, pause in enumerate(clock.slept):
        shares.add(pause / min(60.0, 0.5 * 2**number))
    assert len(shares) == 10
    assert min(shares) >= 0.5
    assert max(shares) <= 1.0


def test_a_pause_the_server_asks_for_is_kept_by_everybody_up_to_ten_minutes(
    served,
) -> None:
    client, clock = client_of(served.url)
    served.faults = [("429", {"retry-after": "7"})]
    text_of(client)
    client.pace.hold(3.0)
    text_of(client)
    assert clock.slept == pytest.approx([7.0, 3.0])
    served.faults = [("429", {"retry-after": "3600"})]
    with pytest.raises(ScoringError, match="asks to wait 3600 s"):
        text_of(client)
    soon = formatdate(time.time() + 30, usegmt=True)
    assert _retry_after({"retry-after": soon}) == pytest.approx(30, abs=2)
    assert _retry_after({"retry-after": "soon"}) is _retry_after({}) is None


def test_a_server_that_stays_away_is_given_up_with_a_sentence(served) -> None:
    client, _ = client_of(served.url, retries=2)
    served.faults = [("503", {})] * 3
    said = "did not answer in 3 attempts: status 503, fault 503; what was committed"
    with pytest.raises(ScoringError, match=said):
        text_of(client)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nobody, _ = client_of(f"http://127.0.0.1:{port}/v1", retries=1)
    with pytest.raises(ScoringError, match="cannot be reached"):
        nobody.models()


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refusal_is_final(served, status) -> None:
    client, _ = client_of(served.url)
    served.faults = [(str(status), {})]
    said = f"refuses: status {status}, fault {status}"
    with pytest.raises(Refused, match=said) as caught:
        text_of(client)
    assert caught.value.status == status
    assert len(served.asked) == 1


@pytest.mark.parametrize("key", ["sk-wrong-0123456789", "sk-" + 300 * "long-key-"])
def test_a_server_that_repeats_a_wrong_key_is_quoted_without_it(
    monkeypatch, key
) -> None:
    monkeypatch.setenv("LEVER_TEST_KEY", key)
    with speaking(key="sk-right") as served:
        client, _ = client_of(served.url, key_env="LEVER_TEST_KEY")
        for ask in (client.models, lambda: text_of(client)):
            said = "refuses the key in the environment variable LEVER_TEST_KEY"
            with pytest.raises(Refused, match=said) as caught:
                ask()
            assert "Incorrect API key provided: ***" in str(caught.value)
            shown = repr(caught.value) + str(caught.value.__cause__)
            assert key[:12] not in shown
        keyless, _ = client_of(served.url)
        with pytest.raises(Refused, match=r"wants a key .* in model\.key_env"):
            keyless.models()
    monkeypatch.delenv("LEVER_TEST_KEY")
    with pytest.raises(LeverError, match="LEVER_TEST_KEY: this environment variable"):
        client_of("http://127.0.0.1:9/v1", key_env="LEVER_TEST_KEY")


def test_requests_leave_evenly_and_an_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    pace = RequestPace(120.0, clock, clock.sleep)
    for _ in range(4):
        pace.wait()
    assert clock.slept == pytest.approx([0.5, 0.5, 0.5])
    clock.now += 60.0
    pace.wait()
    pace.wait()
    free = RequestPace(0.0, clock, clock.sleep)
    free.wait()
    free.wait()
    assert clock.slept == pytest.approx([0.5, 0.5, 0.5, 0.5])


def test_tokens_and_money_are_counted_and_end_where_the_user_said(served) -> None:
    prices = {"price_in": 1000.0, "price_out": 50_000.0, "max_cost": 0.1}
    client, _ = client_of(served.url, **prices)
    part = client.post("/completions", BODY)
    assert (part.tokens, usage_of(part.value)) == (12, (11, 1))
    assert client.account.take.cost == pytest.approx((11 * 1000 + 50_000) / 1e6)
    text_of(client)
    with pytest.raises(ScoringError, match=r"max_cost = 0\.1 is spent \(0\.12\)"):
        text_of(client)
    assert len(served.asked) == 2
    for reply in ({}, {"usage": None}, {"usage": {"prompt_tokens": "many"}}):
        assert usage_of(reply) == (0, 0)


def test_a_price_is_no_use_where_the_server_counts_no_tokens(
    served, monkeypatch
) -> None:
    """The reply that shows it is kept: it may have been charged for. Nothing further is asked."""
    monkeypatch.setattr("leverplus.models.api.client.usage_of", lambda _reply: (0, 0))
    free, _ = client_of(served.url)
    assert text_of(free)
    priced, _ = client_of(served.url, price_out=1.0, max_cost=0.1)
    assert priced.models()
    assert text_of(priced)
    assert priced.account.take.unpriced == 1
    with pytest.raises(ScoringError, match=r"not count tokens.* take out model\.price"):
        text_of(priced)
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
def test_a_key_that_would_leave_this_machine_unencrypted_is_warned_of(
    url: str, key_env: str, warned: bool
) -> None:
    warning = warn_of_plain_key(url, key_env)
    assert ("SOME_KEY goes to" in warning and "use https" in warning) == warned


# -- the account


def test_sums_and_replies_outlive_a_process_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "paid.jsonl"
    first = Account(path)
    first.sent(again=False)
    part = {"key": "a", "value": ["x", -1.25], "tokens": 12}
    first.settled(prompt_tokens=10, completion_tokens=2, cost=0.5, **part)
    assert first.earlier_part("a") is None, "a self-test asks the same twice on purpose"
    first.sent(again=True)
    first.settled(prompt_tokens=4, cost=0.25, lost=1)
    first.learn("weighs", True)
    first.sent(again=False)  # and killed here
    second = Account(path)
    assert asdict(second.total) == {
        "requests": 3,
        "repeated": 1,
        "prompt_tokens": 14,
        "completion_tokens": 2,
        "cost": 0.75,
        "lost": 1,
        "unpriced": 1,
    }
    assert (second.take.cost, second.fact("weighs")) == (0.0, True)
    assert second.earlier_part("a") == ReplyPart(["x", -1.25], 12)
    assert second.earlier_part("a") is None, "each is given once"
    until_stored = Account(path)
    assert until_stored.earlier_part("a") == ReplyPart(["x", -1.25], 12)
    second.stored()
    third = Account(path)
    assert third.earlier_part("a") is None
    assert (third.total, third.fact("weighs")) == (second.total, True)
    assert len(path.read_text().splitlines()) == 2


def test_half_a_line_at_the_end_is_a_request_that_was_never_settled(
    tmp_path: Path,
) -> None:
    path = tmp_path / "paid.jsonl"
    Account(path).sent(again=False)
    with path.open("a") as file:
        file.write('{"settled": 1, "cost": 0.')
    second = Account(path)
    total = second.total
    assert (total.requests, total.unpriced, total.cost) == (1, 1, 0.0)
    second.sent(again=False)
    assert Account(path).total.requests == 2
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(LeverError, match=r"line 1 of .* is damaged"):
        Account(path)


def test_requests_are_told_apart_by_every_word() -> None:
    own = part_key("/completions", {"prompt": "a", "max_tokens": 1})
    assert own == part_key("/completions", {"max_tokens": 1, "prompt": "a"})
    assert own != part_key("/completions", {"prompt": "b", "max_tokens": 1})
    assert own != part_key("/chat/completions", {"prompt": "a", "max_tokens": 1})
