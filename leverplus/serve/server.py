"""Runs the service: one process, or several on one socket; ends when told to, after the requests under way."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from leverplus.selector.selector import Selector
from leverplus.serve.app import create_app
from leverplus.serve.metrics import make_counters
from leverplus.serve.settings import ServeSettings, read_token
from leverplus.view.connections import PatientProtocol
from leverplus.view.guard import LOOPBACK

if TYPE_CHECKING:
    from fastapi import FastAPI

KEEP_ALIVE_SECONDS = 65
"""Longer than clients and reverse proxies keep a connection, so that they close it and never send into a closed one."""

STALLED_SECONDS = 30.0
"""A client that reads nothing of its answer for so long is hung up on."""

WORKER_SECONDS = 60
"""A worker that gives no sign of life for so long is replaced."""


class ServiceProtocol(PatientProtocol):
    """HTTP with deadlines for the request to come and for the answer to be taken."""

    _stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_stalled()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_stalled()
        super().connection_lost(exc)

    def _cancel_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


@dataclass(frozen=True)
class AppMaker:
    """Makes the application in the process that serves it: what travels to a worker is the settings only."""

    settings: ServeSettings

    def __call__(self) -> FastAPI:
        ServiceProtocol.most = self.settings.connections
        return create_app(self.settings)


def serve(settings: ServeSettings, listening: socket.socket, grace: int, ready: Callable[[], None]) -> None:
    """Answer until SIGTERM or SIGINT; then finish what is under way, within `grace` seconds.

    `ready` is called when the bundle is loaded and connections are taken.
    """
    read_token(loopback=settings.host in LOOPBACK)
    if settings.workers == 1:
        config = _config(settings, AppMaker(settings)(), grace)
        listening.listen(config.backlog)
        ready()
        uvicorn.Server(config).run(sockets=[listening])
        return
    from uvicorn.supervisors import Multiprocess

    Selector.load(settings.bundle)  # a bundle that cannot be served is one sentence here, not one per worker
    file, name = tempfile.mkstemp(prefix="lever-counters-")
    os.close(file)
    try:
        make_counters(Path(name), settings.workers)
        own = replace(settings, counters=name)
        config = _config(own, AppMaker(own), grace)
        listening.listen(config.backlog)
        ready()
        Multiprocess(config, sockets=[listening]).run()
    finally:
        Path(name).unlink(missing_ok=True)


def _config(settings: ServeSettings, app: object, grace: int) -> uvicorn.Config:
    several = settings.workers > 1
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        factory=several,
        workers=settings.workers,
        http=ServiceProtocol,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=grace,
        timeout_worker_healthcheck=WORKER_SECONDS,
        access_log=False,
        log_level="warning",
        ws="none",
        server_header=False,
    )
