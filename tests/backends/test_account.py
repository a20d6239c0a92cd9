"""The account of a run with a server: exact sums over all takes, and replies that wait for their scores."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from leverplus.backends.api.account import Account, ReplyPart, part_key
from leverplus.errors import LeverError


def test_sums_and_replies_outlive_a_process_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "paid.jsonl"
    first = Account(path)
    first.sent(again=False)
    first.settled(prompt_tokens=10, completion_tokens=2, cost=0.5, key="a", value=["x", -1.25], tokens=12)
    first.sent(again=True)
    first.settled(prompt_tokens=4, cost=0.25, lost=1)
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
    assert second.take.cost == 0.0
    assert second.earlier_part("a") == ReplyPart(["x", -1.25], 12)
    assert second.earlier_part("a") is None, "each is given once"
    assert Account(path).earlier_part("a") == ReplyPart(["x", -1.25], 12), "until its score is stored"
    second.stored()
    third = Account(path)
    assert third.earlier_part("a") is None
    assert third.total == second.total
    assert len(path.read_text().splitlines()) == 1


def test_a_reply_of_this_take_is_not_given_out_again(tmp_path: Path) -> None:
    """A self-test asks the same thing twice on purpose."""
    account = Account(tmp_path / "paid.jsonl")
    account.sent(again=False)
    account.settled(key="a", value=1, tokens=1)
    assert account.earlier_part("a") is None


def test_half_a_line_at_the_end_is_a_request_that_was_never_settled(tmp_path: Path) -> None:
    path = tmp_path / "paid.jsonl"
    first = Account(path)
    first.sent(again=False)
    with path.open("a") as file:
        file.write('{"settled": 1, "cost": 0.')
    second = Account(path)
    assert (second.total.requests, second.total.unpriced, second.total.cost) == (1, 1, 0.0)
    second.sent(again=False)
    assert Account(path).total.requests == 2
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(LeverError, match=r"line 1 of .* is damaged"):
        Account(path)


def test_facts_stay_and_what_was_spent_before_the_file_existed_counts(tmp_path: Path) -> None:
    path = tmp_path / "paid.jsonl"
    first = Account(path, earlier={"requests": 7, "cost": 1.5})
    first.learn("weighs", True)
    first.stored()
    second = Account(path, earlier={"requests": 7, "cost": 1.5})
    assert second.fact("weighs") is True
    assert (second.total.requests, second.total.cost, second.total.unpriced) == (7, 1.5, 0)


def test_requests_are_told_apart_by_every_word() -> None:
    own = part_key("/completions", {"prompt": "a", "max_tokens": 1})
    assert own == part_key("/completions", {"max_tokens": 1, "prompt": "a"})
    assert own != part_key("/completions", {"prompt": "b", "max_tokens": 1})
    assert own != part_key("/chat/completions", {"prompt": "a", "max_tokens": 1})
