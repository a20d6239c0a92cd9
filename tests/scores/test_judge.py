"""A judge behind a server: its calls are counted, priced, bounded by money of their own, and kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leverplus.data.metrics.base import Example
from leverplus.data.tasks.settings import JudgeSection
from leverplus.errors import ScoringError
from leverplus.scores.judge import Judge

sys.path += [str(Path(__file__).parents[1] / "models")]
from speaking_server import MODEL, Handler, Served, serving


class SaysYes(Handler):
    """Says yes to whatever holds the word cat, and takes ten tokens in and two out for it."""

    def _answer(self, body) -> None:
        self.served.asked.append((self.path, body))
        text = str(body["messages"][-1]["content"])
        _, _, judged = text.partition("Answer to judge:")
        reply = "Yes." if "cat" in judged else "No."
        choice = {"index": 0, "message": {"role": "assistant", "content": reply}}
        usage = {"prompt_tokens": 10, "completion_tokens": 2}
        self._send(200, {"choices": [choice], "usage": usage})


def judge_at(served: Served, folder: Path, **more: float) -> Judge:
    section = JudgeSection(
        model=f"{served.url}#{MODEL}", price_in=1000.0, price_out=10_000.0, **more
    )
    return Judge(section, folder / "scores.db", folder / "paid.jsonl")


EXAMPLE = Example(["the cat"], question="What sits there?")
A_VERDICT = (10 * 1000 + 2 * 10_000) / 1e6


def test_verdicts_are_counted_priced_and_asked_once(tmp_path: Path) -> None:
    served = Served(weighs=False)
    with serving(SaysYes, served):
        judge = judge_at(served, tmp_path)
        assert judge("a small cat", EXAMPLE)
        assert not judge("a dog", EXAMPLE)
        assert judge("a small cat", EXAMPLE)
        spent = judge.usage()
        assert (spent["calls"], spent["unclear"]) == (2, 0)
        assert spent["cost"] == pytest.approx(2 * A_VERDICT)
        asked = len(served.asked)
        again = judge_at(served, tmp_path)
        assert again("a small cat", EXAMPLE), "from the store"
        assert len(served.asked) == asked


def test_judging_ends_when_its_own_money_is_spent(tmp_path: Path) -> None:
    served = Served(weighs=False)
    with serving(SaysYes, served):
        judge = judge_at(served, tmp_path, max_cost=2.5 * A_VERDICT)
        for number in range(3):
            assert judge(f"cat {number}", EXAMPLE)
        with pytest.raises(ScoringError, match=r"max_cost = 0\.075 is spent"):
            judge("one cat more", EXAMPLE)
        assert judge.usage()["cost"] == pytest.approx(3 * A_VERDICT)
