"""Limits connections to the page: how many there are at once, and how many seconds a request may take to arrive."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from leverplus.errors import LeverError

REQUEST_SECONDS = 20.0
"""In this time a whole request, headers and picture, must have come; uvicorn itself waits for ever."""
KEEP_ALIVE_SECONDS = 5
MOST_CONNECTIONS = 200
# States of the client in which nothing more of its request is to come.
_ARRIVED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)


class PatientProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, with a deadline for every request and a bound on the connections held at once."""

    seconds = REQUEST_SECONDS
    most = MOST_CONNECTIONS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.close()
            return
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in _ARRIVED:
            self._cancel_deadline()
        elif self._deadline is None:  # the next request on a connection that was kept alive
            self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self.seconds, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound before the address is printed, so that what is printed is true."""
    if not 0 <= port <= 65535:
        raise LeverError(f"--port {port}: a port is a number from 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # named as TCP, or asyncio leaves Nagle's algorithm on: a body then waits 40 ms for the head to be acknowledged
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise LeverError(f"cannot listen on {host}:{port} ({error.strerror}); choose another with --port N") from error
    return listening
