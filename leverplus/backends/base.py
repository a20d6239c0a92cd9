"""Defines what a backend does: a frozen model that answers prompts and says how probable given answers were."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from leverplus.types import Demos, Item, ItemId, Score


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
    """

    def fingerprint(self) -> Mapping[str, str]: ...

    def answer(self, requests: Sequence[Request]) -> list[Reply]: ...


class Answered(NamedTuple):
    """The reply to the request at index `place`, and the seconds it took."""

    place: int
    reply: Reply
    seconds: float


@runtime_checkable
class Streams(Protocol):
    """A backend whose replies come one by one, and are paid for one by one.

    `stream` yields what has come since the last time, in any order; the caller commits it before it asks for more. A
    failure is raised after everything that was under way has come and was yielded.
    """

    def stream(self, requests: Sequence[Request]) -> Generator[list[Answered], None, None]: ...


@runtime_checkable
class Recorded(Protocol):
    """A backend that replays: it holds whole scores of some prompts and has no model. Nothing of it is stored again."""

    def scores(self, prompts: Sequence[tuple[ItemId, Demos]]) -> list[Score]: ...

    def holds(self, query: ItemId) -> bool: ...

    def candidates(self, query: ItemId) -> Demos: ...
