"""Answers "Try it": for a question and a picture, the demonstrations a selector picks and what its model answers."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leverplus.errors import LeverError
from leverplus.selector.query import query_item
from leverplus.types import Item
from leverplus.view.choice import ExplainedChoice, explain_pooled, explain_served

if TYPE_CHECKING:
    from leverplus.selector.selector import Selector

MOST_CHARACTERS = 2_000
"""The longest question."""


@dataclass(frozen=True)
class Answer:
    """What the model said; `accuracy` is None where the query has no references."""

    text: str
    accuracy: float | None


@dataclass(frozen=True)
class Attempt:
    """What was asked, what was picked, and the answers with the picks and with none."""

    query: Item
    choice: ExplainedChoice
    chosen: Answer
    alone: Answer


def attempt(
    selector: Selector, *, question: str, shots: int, item: Item | None = None, picture: bytes | None = None
) -> Attempt:
    """Ask one query: an item as it is, an item's picture with another question, or the file of a picture of one's own.

    The file is read as `lever select --image` reads it, so that the same picture gives the same demonstrations.
    """
    asked = " ".join(question.split())
    if len(asked) > MOST_CHARACTERS:
        raise LeverError(f"the question has {len(asked):,} characters; at most {MOST_CHARACTERS:,} are taken")
    if item is None and picture is None:
        raise LeverError("choose a query of the task or a picture of your own")
    with tempfile.TemporaryDirectory() as folder:
        if item is not None and picture is None and asked in ("", item.question):
            query = item
        elif not asked:
            raise LeverError("the question is empty; type what you want to ask about your picture")
        else:
            image = picture if picture is not None or item is None else selector.run.task.image(item)
            query = query_item(asked, image, Path(folder))
        # A query of the task as it is gets the pool it was evaluated with, any other what `lever select` gives it.
        explain_query = explain_pooled if query is item else explain_served
        choice = explain_query(selector, query, shots)
        chosen, alone = _ask(selector, query, choice)
    return Attempt(query, choice, chosen, alone)


def _ask(selector: Selector, query: Item, choice: ExplainedChoice) -> tuple[Answer, Answer]:
    """The model's answers with the chosen demonstrations and with none."""
    from leverplus.backends.base import Request
    from leverplus.metrics import metric_named, postprocess_named

    task = selector.run.task
    demos = tuple(task.item(demo) for demo in choice.demos)
    # A backend weighs references with every prompt; a query without any borrows the answers of its demonstrations.
    answers = query.answers or tuple(demo.answer for demo in demos)
    references = tuple(dict.fromkeys(answers))  # each once
    with_demos, alone = selector.run.backend.answer([Request(query, demos, references), Request(query, (), references)])
    postprocess, metric = postprocess_named(task.postprocess), metric_named(task.metric)

    def judged(raw: str) -> Answer:
        text = postprocess(raw)
        return Answer(text, metric(text, list(query.answers)) if query.answers else None)

    return judged(with_demos.raw), judged(alone.raw)
