"""What a model replied in use, as the answers that a way of choosing makes one answer of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leverplus.bundle.demo import Demo, Picks
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import ItemId, Reference, Score
from leverplus.errors import LeverError

Reply = str | Mapping[str, float]
"""The model's words, or the log-probability of every label."""
Ask = Callable[[list[dict[str, Any]]], Reply]
"""Gets an OpenAI chat and gives the model's reply."""

UNKNOWN = float("nan")


@dataclass(frozen=True)
class Answered:
    """The answer to a question, the lists of demonstrations that were shown, and what the model answered to each."""

    answer: str
    lists: Sequence[Picks]
    given: Sequence[str]


def heard(
    query: ItemId, demos: Sequence[Demo], reply: Reply, rules: AnswerRules
) -> Score:
    """A reply as arms read answers; nobody knows here whether it is right."""
    references: list[Reference] = []
    if isinstance(reply, str):
        raw, answer = reply, rules.cut_answer(reply)
    elif isinstance(reply, Mapping) and reply:
        raw = answer = max(reply, key=lambda label: reply[label])
        references = [Reference(label, 0, float(reply[label])) for label in reply]
    else:
        raise LeverError(
            f"`ask` gave {reply!r}; it must give the model's words, or the log-probability of every label by its name"
        )
    return Score(
        query=query,
        demos=tuple(demo.id for demo in demos),
        raw=raw,
        answer=answer,
        accuracy=UNKNOWN,
        correct=False,
        references=tuple(references),
        token_f1=UNKNOWN,
        edit_similarity=UNKNOWN,
        tokens=0,
        seconds=UNKNOWN,
    )
