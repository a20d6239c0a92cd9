"""The engine that runs in this process: one chunk after the other, or reply by reply where a backend streams."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from leverplus.backends.base import Answered, Backend, Request, Streams
from leverplus.engine.base import answered_chunk, chunk_starts


class LocalEngine:
    """Asks one backend in this process."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def run(self, requests: Sequence[Request], chunk: int) -> Generator[list[Answered], None, None]:
        if isinstance(self.backend, Streams):
            yield from self.backend.stream(requests)
            return
        for start in chunk_starts(requests, chunk):
            part = requests[start : start + chunk]
            started = time.perf_counter()
            replies = self.backend.answer(part)
            yield answered_chunk(start, len(part), replies, time.perf_counter() - started)
