"""How long a prompt a server takes: what it says of its room, how it counts a prompt, and what its refusals mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from leverplus.backends.base import Request
from leverplus.errors import DataError, ScoringError
from leverplus.recipe.model import ModelSection
from leverplus.tasks.base import Task
from leverplus.types import Item

if TYPE_CHECKING:
    from leverplus.backends.api.client import Client
    from leverplus.backends.api.prompts import ServerPrompts

STATED = ("max_model_len", "context_length", "max_context_length", "context_window")
"""Where a list of models may state how many tokens a prompt and its answer have room for: vLLM and SGLang have the
first. llama.cpp states `n_ctx` inside `meta`."""

LETTERS = 6
"""Characters of a token where a server does not count them. Texts have fewer on average, so that what is refused by
this number does not fit."""

MOST_ROOM = 1 << 30

_TOO_LONG = re.compile(
    r"context[ _](length|size|window)|max_model_len|maximum model length|(prompt|input)s? (is|are) too long"
    r"|tokens\W+must be <=",
    re.IGNORECASE,
)
_TOKENS = re.compile(r"(\d+) tokens")
MEND = (
    "show fewer (`lever fit --shots`; eval.shots and score.dev_shots in a recipe), shorten the longest texts, or start "
    "the server with a larger context"
)


def is_too_long(words: str) -> bool:
    """Whether a server's refusal says that a prompt does not fit into its context."""
    return _TOO_LONG.search(words) is not None


def stated_room(row: Mapping[str, Any]) -> int | None:
    """The tokens that a model's entry in the list of models has room for; None where it does not say."""
    meta = row.get("meta")
    values = [meta.get("n_ctx") if isinstance(meta, Mapping) else None, *(row.get(name) for name in STATED)]
    return next((value for value in values if _is_room(value)), None)


def _is_room(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < MOST_ROOM


class ServerRoom:
    """The room of one model behind a server. Nothing that is asked here is a prompt, and none of it is charged for."""

    def __init__(self, client: Client, section: ModelSection, prompts: ServerPrompts, row: Mapping[str, Any]) -> None:
        self.client, self.section, self.prompts = client, section, prompts
        self.tokens = stated_room(row)
        if self.tokens is None and row.get("owned_by") == "llamacpp":  # older ones say it elsewhere
            settings = (client.beside("/props") or {}).get("default_generation_settings")
            found = settings.get("n_ctx") if isinstance(settings, Mapping) else None
            self.tokens = found if _is_room(found) else None

    def require(self, task: Task, shots: int) -> str:
        """Refuse texts, and lists of so many texts of middling length, that do not fit.

        Returns a note where only the longest texts together do not ("": everything fits, or nobody knows).
        """
        demos = sorted(task.items("train"), key=_letters)
        queries = sorted((item for split in ("dev", "test") for item in task.items(split)), key=_letters)
        if self.tokens is None or not demos or not queries:
            return ""
        longest = max(demos[-1], queries[-1], key=_letters)
        alone = self._needed(longest, ())
        if alone > self.tokens:
            place = getattr(task, "places", {}).get(longest.id, f"item {longest.id}")
            raise DataError(
                f"the longest text, {place}, takes {alone:,} tokens with its answer, and {self._has_room()}; shorten "
                "such texts or leave them out, or start the server with a larger context"
            )
        middling = queries[len(queries) // 2]
        needed = {count: self._needed(middling, _middle(demos, count)) for count in range(shots, -1, -1)}
        if needed[shots] > self.tokens:
            fit = next((count for count, tokens in needed.items() if tokens <= self.tokens), 0)
            raise DataError(
                f"a prompt with {shots} demonstrations of typical length takes {needed[shots]:,} tokens with its "
                f"answer, and {self._has_room()}, which is enough for {fit or 'none'}; {MEND}"
            )
        most = self._needed(queries[-1], demos[-shots:])
        if most <= self.tokens:
            return ""
        return (
            f"note: {shots} demonstrations fit into the server's {self.tokens:,} tokens as a rule, but the longest "
            f"texts together take {most:,}; where the server refuses such a prompt, scoring stops and says which"
        )

    def _has_room(self) -> str:
        return f"{self.section.url} has room for {self.tokens:,}"

    def _needed(self, query: Item, demos: Sequence[Item]) -> int:
        """Tokens of a prompt and its answer; pictures are not counted."""
        bare = [Item(item.id, item.question, item.answers, item.split) for item in (*demos, query)]
        return self.count(Request(bare[-1], tuple(bare[:-1]), ())) + self.section.max_new_tokens

    def count(self, request: Request) -> int:
        """Tokens of a prompt without pictures, as the server counts them; at least so many where it does not."""
        if self.section.prompt != "chat":
            text = self.prompts.text(request)
            return self._counted({"prompt": text, "content": text}) or len(text) // LETTERS
        turns = self.prompts.turns(request)
        if found := self._counted({"messages": turns}):  # vLLM writes the chat as its template does
            return found
        written = (self.client.beside("/apply-template", {"messages": turns}) or {}).get("prompt")  # llama.cpp too
        text = written if isinstance(written, str) and written else self.prompts.chat_text(request)
        return self._counted({"prompt": text, "content": text}) or len(text) // LETTERS

    def _counted(self, asked: Mapping[str, Any]) -> int:
        """Tokens by the server's own count (vLLM takes `prompt` or `messages`, llama.cpp `content`); 0: no answer."""
        reply = self.client.beside("/tokenize", {"model": self.section.name, **asked}) or {}
        count, tokens = reply.get("count"), reply.get("tokens")
        if _is_room(count):
            return count
        return len(tokens) if isinstance(tokens, list) else 0

    def refusal(self, request: Request, words: str) -> ScoringError:
        """What a user is told of a prompt that a server refused as too long, with the number that would fit."""
        items = (*request.demos, request.query)
        longest = max(items, key=_letters)
        fit = _that_fit(request, words)
        enough = "" if fit is None else f"; about {fit or 'none'} of these would fit"
        return ScoringError(
            f"query {request.query.id} with {len(request.demos)} demonstrations is too long for the server ({words})"
            f"{enough}; its longest text is item {longest.id}: {MEND}"
        )


def _that_fit(request: Request, words: str) -> int | None:
    """How many of a prompt's demonstrations fit by the two numbers of a refusal; None where it has no such numbers."""
    numbers = [int(number) for number in _TOKENS.findall(words)]
    if len(numbers) < 2 or not 0 < min(numbers) < max(numbers):
        return None
    room = min(numbers) / max(numbers) * sum(map(_letters, (*request.demos, request.query)))
    used, fit = _letters(request.query), 0
    for demo in reversed(request.demos):  # the nearest stand last
        used += _letters(demo)
        fit += used <= room
    return fit


def _middle(demos: Sequence[Item], count: int) -> Sequence[Item]:
    first = max(0, (len(demos) - count) // 2)
    return demos[first : first + count]


def _letters(item: Item) -> int:
    return len(item.question)
