"""The engine that runs in this process: one chunk after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from leverplus.backends.base import Backend, Reply, Request


class LocalEngine:
    """Asks one backend in this process."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def run(self, chunks: Sequence[Sequence[Request]]) -> Iterator[tuple[int, list[Reply], float]]:
        for number, chunk in enumerate(chunks):
            started = time.perf_counter()
            replies = self.backend.answer(chunk)
            yield number, replies, time.perf_counter() - started
