"""What an engine is: requests in, replies out, in any order, as they come."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from leverplus.backends.base import Answered, Reply, Request
from leverplus.errors import ScoringError


class Engine(Protocol):
    """Yields replies until every request is answered; the caller commits what it got before it asks for more.

    `chunk` requests are asked together where the model computes in batches; of a server, each is asked by itself.
    """

    def run(self, requests: Sequence[Request], chunk: int) -> Generator[list[Answered], None, None]: ...


def chunk_starts(requests: Sequence[Request], chunk: int) -> range:
    """Where each chunk begins."""
    return range(0, len(requests), chunk)


def answered_chunk(start: int, count: int, replies: Sequence[Reply], seconds: float) -> list[Answered]:
    """The replies to `count` requests from `start` on that were asked together; each took its share of the time."""
    if len(replies) != count:
        raise ScoringError(f"the backend answered {len(replies)} of {count} prompts; a backend must answer all of them")
    return [Answered(start + place, reply, seconds / count) for place, reply in enumerate(replies)]
