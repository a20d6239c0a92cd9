"""Counts and logs every request: one line of JSON each, with nothing in it that a client sent but the HTTP method.

A line holds the route, not the path, because a path may name a demonstration. An error of the service itself is logged
by its type and place, without its message, which might quote a question.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from leverplus.serve.limits import HttpRefusal, error_response
from leverplus.serve.metrics import STATUSES, Metrics, route_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NOTES = "lever"
"""Where in a request's scope a route leaves what the log shall say beside the usual."""

_log = logging.getLogger("leverplus.serve")


class ErrorOutput(logging.Handler):
    """Writes lines to what is the error output at that moment, each in one piece."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(record.getMessage() + "\n")
        sys.stderr.flush()


def open_log(*, wanted: bool) -> None:
    """Lines go to the error output of this process; a second call changes nothing."""
    _log.propagate = False
    _log.setLevel(logging.INFO if wanted else logging.ERROR)
    if not any(isinstance(handler, ErrorOutput) for handler in _log.handlers):
        _log.addHandler(ErrorOutput())


def raised_at(error: BaseException) -> str:
    """Where an error was raised: file and line."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('leverplus/')[2]}:{frames[-1].lineno}" if frames else "?"


def log_failure(error: BaseException) -> None:
    """An error that is a fault of the service, and does not show in an answer."""
    _log.error(json.dumps({"level": "error", "error": type(error).__name__, "at": raised_at(error)}))


class AccessLog:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, sent = time.perf_counter(), 0, 0
        notes: dict[str, Any] = {}
        scope[NOTES] = notes
        self.metrics.add("lever_requests_in_flight")

        async def counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, counted)
        except Exception as error:
            notes |= {"error": type(error).__name__, "at": raised_at(error)}
            if not status:
                said = error.response() if isinstance(error, HttpRefusal) else _fault()
                await said(scope, receive, counted)
            else:
                raise BrokenAnswer from None  # the server ends the connection, so that half an answer shows as half
        finally:
            self._note(scope, status or 499, sent, time.perf_counter() - started, notes)

    def _note(self, scope: Scope, status: int, sent: int, seconds: float, notes: dict[str, Any]) -> None:
        route, metrics = route_of(scope["path"]), self.metrics
        metrics.add("lever_requests_in_flight", by=-1.0)
        metrics.add("lever_requests_total", route, str(status) if str(status) in STATUSES else "other")
        metrics.add("lever_response_bytes_total", by=sent)
        metrics.observe("lever_request_seconds", route, seconds)
        if not _log.isEnabledFor(logging.INFO) and "error" not in notes:
            return
        method = scope["method"] if scope["method"] in METHODS else "other"
        line = {"time": _now(), "method": method, "route": route, "status": status, "ms": round(1000 * seconds, 1)}
        level = logging.ERROR if "error" in notes else logging.INFO
        _log.log(level, json.dumps({**line, "bytes": sent, **notes}))


class BrokenAnswer(Exception):
    """An answer that had begun cannot be finished."""


def _fault() -> Any:
    return error_response(500, "something went wrong in the service; its log says where")


def _now() -> str:
    moment = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1000):03d}Z"
