"""Counts and logs every request: one line of JSON each, with nothing in it that a client sent but the HTTP method.

A line holds the route, not the path, because a path may name a demonstration. An error of the service itself is logged
by its type and place, without its message, which might quote a question. Where several processes serve, they count
together in the files of the folder that PROMETHEUS_MULTIPROC_DIR names.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from leverplus.web.guard import error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SHARED_COUNTS = "PROMETHEUS_MULTIPROC_DIR"
REQUESTS = Counter(
    "lever_requests", "Requests by route and HTTP status.", ["route", "status"]
)
REQUEST_SECONDS = Histogram(
    "lever_request_seconds", "Time from request to end of the answer.", ["route"]
)
SELECT_SECONDS = Histogram(
    "lever_select_seconds", "Time of one choice, waiting included.", ["kind"]
)
CHATS = Counter(
    "lever_proxy_chats", "Chats that were proxied, by what was done.", ["outcome"]
)
UPSTREAM_FAILURES = Counter(
    "lever_upstream_failures", "Requests that the upstream did not answer."
)
HELD = Gauge(
    "lever_demonstrations",
    "Demonstrations in the bundle.",
    multiprocess_mode="mostrecent",
)
SHOWN = Counter("lever_demonstrations_shown", "Demonstrations chosen.")

NOTES = "lever"
"""Where in a request's scope a route leaves what the log shall say beside the usual."""
_log = logging.getLogger("leverplus.web")


def metrics_text() -> bytes:
    """The page that Prometheus reads: the sums over all processes."""
    registry = REGISTRY
    if SHARED_COUNTS in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


class ErrorOutput(logging.Handler):
    """Writes lines to what is the error output at that moment, each in one piece."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(record.getMessage() + "\n")
        sys.stderr.flush()


def open_log(*, wanted: bool) -> None:
    """Lines go to the error output of this process; a second call changes nothing."""
    _log.propagate = False
    _log.setLevel(logging.INFO if wanted else logging.ERROR)
    if not _log.handlers:
        _log.addHandler(ErrorOutput())


def failure(error: BaseException) -> dict[str, str]:
    """What is said of an error of the service itself: its type, file and line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.filename.rpartition('leverplus/')[2]}:{frame.lineno}"
    return {"error": type(error).__name__, "at": place}


def log_failure(error: BaseException) -> None:
    """An error that is a fault of the service, and does not show in an answer."""
    line = {"level": "error", **failure(error)}
    _log.error(json.dumps(line))


class BrokenAnswer(Exception):
    """An answer that had begun cannot be finished."""


class AccessLog:
    """The outermost layer of a service."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0
        sent = 0
        notes: dict[str, Any] = {}
        scope[NOTES] = notes

        async def counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, counted)
        except Exception as error:
            notes |= failure(error)
            if status:
                # the server ends the connection, so that half an answer shows as half
                raise BrokenAnswer from None
            said = "something went wrong in the service; its log says where"
            await error_response(500, said)(scope, receive, counted)
        finally:
            seconds = time.perf_counter() - started
            self._note(scope, status or 499, sent, seconds, notes)

    def _note(
        self, scope: Scope, status: int, sent: int, seconds: float, notes: Any
    ) -> None:
        route = getattr(scope.get("route"), "path", "other")
        REQUESTS.labels(route, status).inc()
        REQUEST_SECONDS.labels(route).observe(seconds)
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "method": scope["method"][:8],
            "route": route,
            "status": status,
            "ms": round(1000 * seconds, 1),
            "bytes": sent,
        }
        level = logging.ERROR if "error" in notes else logging.INFO
        _log.log(level, json.dumps({**line, **notes}))
