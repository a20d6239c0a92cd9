"""Defines what a backend does (a frozen model that answers prompts and says how probable given answers were), and the
engines that ask it: requests in, replies out, in any order, as they come."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from leverplus.data.types import Demos, Item, ItemId, Score
from leverplus.errors import ScoringError


@dataclass(frozen=True)
class Request:
    """One prompt: the demonstrations in order with their answers, then the query; and the answers to weigh.

    `references` are distinct answers whose log-probabilities are wanted after this prompt. With `choose` they are all
    the labels there are and the likeliest is the answer: a backend that offers log-probabilities need not generate.
    """

    query: Item
    demos: tuple[Item, ...]
    references: tuple[str, ...]
    choose: bool = False


@dataclass(frozen=True)
class Reply:
    """The model's raw text, and one log-probability per reference (nats, summed over its tokens); None if not offered.

    `tokens` counts the tokens the model processed for this request, its share of common prefixes included.
    """

    raw: str
    logprobs: tuple[float, ...] | None
    tokens: int


class Backend(Protocol):
    """`fingerprint` holds model, revision, prompt template and decoding: everything that could change a reply.

    `answer` returns one reply per request, in order. The caller sorts requests so that those with common leading
    demonstrations stand together; a backend reuses what they share. Batch or one by one, the replies are the same.

    A backend may say more of itself: `weighs` (False: it gives no log-probabilities), `tolerance` (how far rounding
    moves one from batch to batch, nats), `unsteady` (what to do where replies depend on their company), `notice` (what
    the user must know), `prompt_text(request)`, `require_room(shots)`, `usage()` (what was paid), `forget()` (the
    replies are stored), `fixed_answers` (True: it weighs a fixed set of answers, so that none can be made longer).
    """

    def fingerprint(self) -> Mapping[str, str]: ...

    def answer(self, requests: Sequence[Request]) -> list[Reply]: ...


class Answered(NamedTuple):
    """The reply to the request at index `place`, and the seconds it took."""

    place: int
    reply: Reply
    seconds: float


def in_order(parts: Iterable[Sequence[Answered]]) -> list[Reply]:
    """The replies of a stream, in the order of their requests."""
    found: list[Answered] = []
    for part in parts:
        found += part
    found.sort(key=lambda answered: answered.place)
    return [answered.reply for answered in found]


@runtime_checkable
class Streams(Protocol):
    """A backend whose replies come one by one, and are paid for one by one.

    `stream` yields what has come since the last time, in any order; the caller commits it before it asks for more. A
    failure is raised after everything that was under way has come and was yielded.
    """

    def stream(
        self, requests: Sequence[Request]
    ) -> Generator[list[Answered], None, None]: ...


@runtime_checkable
class Recorded(Protocol):
    """A backend that replays: it holds whole scores of some prompts and has no model. Nothing of it is stored again."""

    def scores(self, prompts: Sequence[tuple[ItemId, Demos]]) -> list[Score]: ...

    def candidates(self, query: ItemId) -> Demos: ...


class Engine(Protocol):
    """Yields replies until every request is answered; the caller commits what it got before it asks for more.

    `chunk` requests are asked together where the model computes in batches; of a server, each is asked by itself.
    """

    def run(
        self, requests: Sequence[Request], chunk: int
    ) -> Generator[list[Answered], None, None]: ...


class LocalEngine:
    """Asks one backend in this process: one chunk after the other, or reply by reply where it streams."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def run(
        self, requests: Sequence[Request], chunk: int
    ) -> Generator[list[Answered], None, None]:
        if isinstance(self.backend, Streams):
            yield from self.backend.stream(requests)
            return
        for start in range(0, len(requests), chunk):
            part = requests[start : start + chunk]
            began = time.perf_counter()
            replies = self.backend.answer(part)
            if len(replies) != len(part):
                raise ScoringError(
                    f"the backend answered {len(replies)} of {len(part)} prompts; a backend must answer all of them"
                )
            seconds = (time.perf_counter() - began) / len(part)  # each took its share
            places = range(start, start + len(part))
            yield [Answered(*own, seconds) for own in zip(places, replies, strict=True)]
