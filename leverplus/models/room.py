"""How long a prompt may be: lists of demonstrations that a model has no room for are refused before one is asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leverplus.data.tasks.base import Task
from leverplus.data.types import Item
from leverplus.errors import DataError
from leverplus.models.base import Request

STATED = (
    "max_model_len",
    "context_length",
    "max_context_length",
    "context_window",
    "n_ctx",
)
"""Where a list of models may state how many tokens a prompt and its answer have room for: vLLM and SGLang have the
first, llama.cpp the last, inside `meta`."""

MOST_ROOM = 1 << 30

MEND = (
    "show fewer (`lever fit --shots`; eval.shots and score.dev_shots in a recipe), shorten the longest texts, or take a "
    "model or server with more room"
)

_TOO_LONG = re.compile(
    r"context[ _](length|size|window)|max_model_len|maximum model length|(prompt|input)s? (is|are) too long"
    r"|tokens\W+must be <=",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Room:
    """The tokens that a prompt and its answer have room for at `owner`; `count` says how many they take, or fewer."""

    tokens: int
    owner: str
    count: Callable[[Request], int]

    def require(self, task: Task, shots: int) -> str:
        """Refuse texts, and lists of so many texts of middling length, that do not fit.

        Returns a note where only the longest texts together do not ("": everything fits).
        """
        demos = sorted(task.items("train"), key=letters)
        queries = sorted((*task.items("dev"), *task.items("test")), key=letters)
        if not demos or not queries:
            return ""
        longest = max(demos[-1], queries[-1], key=letters)
        alone = self._needed(longest, ())
        if alone > self.tokens:
            place = getattr(task, "places", {}).get(longest.id, f"item {longest.id}")
            raise DataError(
                f"the longest text, {place}, takes {alone:,} tokens with its answer, and {self.owner} has room for "
                f"{self.tokens:,}; shorten such texts or leave them out, let the model write less (--max-tokens; "
                "model.max_new_tokens in a recipe), or take a model or server with more room"
            )
        middling = queries[len(queries) // 2]
        fit = shots
        while fit and self._needed(middling, _middle(demos, fit)) > self.tokens:
            fit -= 1
        if fit < shots:
            needed = self._needed(middling, _middle(demos, shots))
            raise DataError(
                f"a prompt with {shots} demonstrations of typical length takes {needed:,} tokens with its answer, and "
                f"{self.owner} has room for {self.tokens:,}, which is enough for {fit or 'none'}; {MEND}"
            )
        most = self._needed(queries[-1], demos[-shots:] if shots else ())
        if most <= self.tokens:
            return ""
        return (
            f"note: {shots} demonstrations fit into {self.tokens:,} tokens as a rule, but the longest texts together "
            f"take {most:,}; where such a prompt is met, scoring stops and says which text to shorten"
        )

    def _needed(self, query: Item, demos: Sequence[Item]) -> int:
        return self.count(Request(query, tuple(demos), ()))


def stated_room(row: Mapping[str, Any]) -> int | None:
    """The tokens that a model's entry in the list of models has room for; None where it does not say."""
    for place in (row.get("meta"), row):
        for name in STATED:
            stated = place.get(name) if isinstance(place, Mapping) else None
            if type(stated) is int and 0 < stated < MOST_ROOM:
                return stated
    return None


def is_too_long(words: str) -> bool:
    """Whether a server's refusal says that a prompt does not fit into its context."""
    return _TOO_LONG.search(words) is not None


def too_long(request: Request, said: str) -> str:
    """What a user is told of one prompt that does not fit; `said` is why."""
    longest = max((*request.demos, request.query), key=letters)
    return (
        f"query {request.query.id} with {len(request.demos)} demonstrations is too long ({said}); its longest text is "
        f"item {longest.id}: {MEND}"
    )


def letters(item: Item) -> int:
    """The length of an item's text."""
    return len(item.question)


def _middle(demos: Sequence[Item], count: int) -> Sequence[Item]:
    first = max(0, (len(demos) - count) // 2)
    return demos[first : first + count]
