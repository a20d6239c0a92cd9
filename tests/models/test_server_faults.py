"""A server that fails in a hundred ways: what it charged is stored or reported as lost, to the cent, in every one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import paying_scorer
import pytest
from faulty_server import FAULTS, Books, faulty
from speaking_server import MODEL

from leverplus.errors import ScoringError, plain
from leverplus.models.api.account import Account
from leverplus.models.api.client import Client
from leverplus.models.settings import ModelSection
from leverplus.scores.exchange import verify
from leverplus.scores.store import ScoreStore

PRICES = {"price_in": 2000.0, "price_out": 8000.0}
TAKES = 6


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch) -> None:
    monkeypatch.setattr("leverplus.models.api.client.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("leverplus.models.api.client.MOST_BYTES", 1 << 20)


def section_of(served: Books, **settings: Any) -> ModelSection:
    own = {"retries": 1, "timeout": 20.0, "concurrency": 3, **PRICES, **settings}
    return ModelSection(name=MODEL, url=served.url, **own)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_what_was_charged_is_stored_or_reported_in_every_fault(
    name, tmp_path: Path
) -> None:
    fault = FAULTS[name]
    sentences: list[str] = []
    # a busy machine is no fault
    patience = 1.0 if name.startswith(("hangs", "drips")) else 20.0
    with faulty(fault) as served:
        for _ in range(TAKES):
            section = section_of(served, timeout=patience)
            scorer, prompts = paying_scorer.open_scorer(tmp_path, section)
            try:
                scorer.score(prompts)
                break
            except ScoringError as error:
                sentences.append(str(error))
        assert served.times_left == 0, "the fault was not played"
        account = Account(tmp_path / "paid.jsonl").total
        with ScoreStore(tmp_path / "scores.db") as store:
            assert store.count() == len(prompts), sentences
            assert verify(store).clean
        # one asks whether answers are weighed; then one to weigh and one to write for each
        needed = 1 + 2 * len(prompts)
        charged = len(served.tokens) + served.untold
        assert charged == needed + account.lost + served.untold - served.used_untold
        # nobody can know of a request whether it was read before the end
        unread = account.unpriced - served.untold
        assert 0 <= unread <= (2 if fault.closes else 0)
        assert account.cost == pytest.approx(served.cost(**PRICES), abs=1e-9)
        read, written = (sum(own) for own in zip(*served.tokens, strict=True))
        assert (account.prompt_tokens, account.completion_tokens) == (read, written)
    for sentence in sentences:
        assert sentence == plain(sentence)
        assert len(sentence) < 700
        assert "Traceback" not in sentence


@pytest.mark.slow
def test_a_limit_below_the_price_of_a_few_replies_goes_on_take_by_take(
    tmp_path: Path,
) -> None:
    """At most the requests under way go beyond it, and no prompt is paid for twice."""
    with faulty() as served:
        takes, paid, said = 0, 0.0, ""
        while not takes or said:
            takes, said = takes + 1, ""
            section = section_of(served, max_cost=0.3)
            scorer, prompts = paying_scorer.open_scorer(tmp_path, section)
            try:
                scorer.score(prompts)
            except ScoringError as error:
                said = str(error)
                assert said.startswith("model.max_cost = 0.3 is spent (0")
            now = served.cost(**PRICES)
            dearest = max(own * 2000.0 + other * 8000.0 for own, other in served.tokens)
            assert now - paid < 0.3 + section.concurrency * dearest / 1e6
            paid = now
            assert takes < 60
        assert takes > 2
        assert len(served.tokens) == 1 + 2 * len(prompts)
        total = Account(tmp_path / "paid.jsonl").total
        assert total.cost == pytest.approx(paid, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["drips its head", "drips its body"])
def test_the_timeout_is_a_deadline_for_the_whole_attempt(name) -> None:
    with faulty(FAULTS[name], posts=3, times_left=1) as served:
        client = Client(section_of(served, retries=0, timeout=0.5))
        started = time.monotonic()
        with pytest.raises(ScoringError, match=r"within model\.timeout = 0\.5 s"):
            client.post("/completions", {"prompt": "capital of peru"})
        assert time.monotonic() - started < 1.5


@pytest.mark.parametrize("code", [301, 307])
def test_a_redirect_is_refused_and_nothing_goes_there(code) -> None:
    with faulty() as other, faulty(FAULTS[f"redirect {code}"], posts=3) as served:
        client = Client(section_of(served))
        with pytest.raises(ScoringError, match=r"redirects to .* set model\.url"):
            client.post("/completions", {"prompt": "capital of peru"})
        assert (served.posts, other.posts) == (4, 0)
        assert client.account.take.unpriced == 0


@pytest.mark.slow
def test_a_failed_request_ends_the_asking_and_what_was_under_way_is_stored(
    tmp_path: Path,
) -> None:
    with faulty(FAULTS["refusal 400"], delay=0.05, times_left=1) as served:
        section = section_of(served, logprobs="never")
        scorer, prompts = paying_scorer.open_scorer(tmp_path, section, demos=12)
        with pytest.raises(ScoringError, match="refuses: status 400"):
            scorer.score(prompts)
        assert scorer.store.count() == len(served.tokens)
        # the fourth request fails; how many more were sent before the others saw it depends on the machine
        assert served.posts < len(prompts) / 2


@pytest.mark.slow
def test_ctrl_c_while_scoring_waits_for_what_is_under_way_and_loses_nothing(
    tmp_path: Path,
) -> None:
    with faulty(delay=0.2) as served:
        scorer, prompts = paying_scorer.open_scorer(tmp_path, section_of(served))

        def stop(what: str, done: int, total: int) -> None:
            if done:
                scorer.progress = None
                raise KeyboardInterrupt

        scorer.progress = stop
        with pytest.raises(KeyboardInterrupt):
            scorer.score(prompts)
        before = len(served.tokens)
        assert Account(tmp_path / "paid.jsonl").total.unpriced == 0
        scorer, prompts = paying_scorer.open_scorer(tmp_path, section_of(served))
        scorer.score(prompts)
        assert before < len(served.tokens) == 1 + 2 * len(prompts)
