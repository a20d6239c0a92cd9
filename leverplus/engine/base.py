"""What an engine is: chunks of requests in, chunks of replies out, in any order, as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from leverplus.backends.base import Reply, Request


class Engine(Protocol):
    """Yields (chunk number, replies, seconds) for every chunk; the caller commits each before the next is asked for."""

    def run(self, chunks: Sequence[Sequence[Request]]) -> Iterator[tuple[int, list[Reply], float]]: ...
