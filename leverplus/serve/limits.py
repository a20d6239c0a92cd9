"""Bounds of the service: bytes held in memory, requests that wait, seconds that one may take.

What is refused is an `HttpRefusal` with its status; nothing that is over a bound is read to its end first.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from leverplus.errors import LeverError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from leverplus.serve.metrics import Metrics

Made = TypeVar("Made")
RETRY_SECONDS = 1


class HttpRefusal(LeverError):
    """A request that is not answered: `status` and a sentence for its sender."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})

    def response(self) -> Response:
        return error_response(self.status, str(self), self.headers)


class Overloaded(HttpRefusal):
    """As much as this worker takes is under way already."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message, {"retry-after": str(RETRY_SECONDS)})


class TooSlow(HttpRefusal):
    """The work took longer than it may."""

    def __init__(self) -> None:
        super().__init__(504, "this took longer than it may and was given up")


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error in the form that OpenAI's clients read."""
    from starlette.responses import Response

    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = json.dumps({"error": {"message": message, "type": kind, "code": status}})
    return Response(body, status, dict(headers or {}), media_type="application/json")


class BodyBudget:
    """Reads bodies of requests into memory, each and all together within bounds."""

    def __init__(self, most: int, all_together: int, metrics: Metrics) -> None:
        self.most, self.all_together, self.metrics = most, all_together, metrics
        self._held = 0

    async def read(self, request: Request) -> HeldBody:
        """The whole body. Over the bound it is refused as soon as that is known: by its head, or at the first byte."""
        from starlette.requests import ClientDisconnect

        body = HeldBody(self)
        try:
            async for piece in request.stream():
                body.grow(piece)
        except ClientDisconnect:
            body.release()
            raise HttpRefusal(499, "the client went away") from None
        except BaseException:
            body.release()
            raise
        return body

    def take(self, count: int) -> None:
        if self._held + count > self.all_together:
            raise Overloaded("the service holds as many bytes of requests as it may; send yours again in a moment")
        self._held += count
        self.metrics.add("lever_body_bytes_held", by=count)

    def give_back(self, count: int) -> None:
        self._held -= count
        self.metrics.add("lever_body_bytes_held", by=-count)

    def too_large(self) -> HttpRefusal:
        return HttpRefusal(413, f"the request is too large; at most {self.most / 1e6:g} MB are taken")


class HeldBody:
    """A body in memory; counted until it is released."""

    def __init__(self, budget: BodyBudget) -> None:
        self.budget, self.content = budget, bytearray()

    def grow(self, piece: bytes) -> None:
        if len(self.content) + len(piece) > self.budget.most:
            raise self.budget.too_large()
        self.budget.take(len(piece))
        self.content += piece

    def release(self) -> None:
        """Forget the content; a second time does nothing."""
        count, self.content = len(self.content), bytearray()
        if count:
            self.budget.metrics.add("lever_request_bytes_total", by=count)
            self.budget.give_back(count)

    def __enter__(self) -> bytearray:
        return self.content

    def __exit__(self, *_: object) -> None:
        self.release()


class WorkQueue:
    """Threads that choose, and a bounded number of requests that wait for one.

    Work that has a thread cannot be stopped: it keeps its place until it ends, so that slow work fills the queue and
    newcomers are told to come back, instead of everybody waiting longer and longer.
    """

    def __init__(self, threads: int, most_waiting: int, metrics: Metrics) -> None:
        self.most = threads + most_waiting
        self.metrics = metrics
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lever-select")
        self.under_way = 0
        self._counting = Lock()

    async def run(self, work: Callable[[float], Made], seconds: float) -> Made:
        """What `work` returns; it gets the time (of `time.monotonic`) at which nobody waits for it any more."""
        if self.under_way >= self.most:
            raise Overloaded(f"{self.under_way} requests are waiting already; send yours again in a moment")
        self._count(1)
        future = self._pool.submit(work, time.monotonic() + seconds)
        future.add_done_callback(lambda _: self._count(-1))
        waiting = asyncio.wrap_future(future)
        done, _ = await asyncio.wait({waiting}, timeout=seconds)
        if not done:
            _drop(future, waiting)
            raise TooSlow
        return waiting.result()

    def _count(self, more: int) -> None:
        with self._counting:
            self.under_way += more
        self.metrics.add("lever_queue_waiting", by=more)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _drop(future: Future[Any], waiting: asyncio.Future[Any]) -> None:
    """Nobody waits any more: what has no thread yet is never begun, and what comes of the rest is not looked at."""
    future.cancel()
    waiting.add_done_callback(lambda done: None if done.cancelled() else done.exception())


def check_time(until: float) -> None:
    """Between two steps of a long piece of work: stop where nobody waits for it any more."""
    if time.monotonic() > until:
        raise TooSlow
