"""The service as a FastAPI application: routes, and what stands before them."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from leverplus import __version__
from leverplus.errors import LeverError
from leverplus.selector.store import DamagedStore
from leverplus.serve.access import AccessLog, log_failure, open_log
from leverplus.serve.api import AddBody, JsonApi, SelectManyBody, SelectQuery
from leverplus.serve.guard import ServiceGuard
from leverplus.serve.limits import RETRY_SECONDS, BodyBudget, HttpRefusal, WorkQueue, error_response
from leverplus.serve.metrics import Metrics
from leverplus.serve.page import front_page, read_asset
from leverplus.serve.proxy import OpenAIProxy
from leverplus.serve.served import ServedSelector
from leverplus.serve.settings import ServeSettings, read_token
from leverplus.view.guard import LOOPBACK

if TYPE_CHECKING:
    from pydantic import BaseModel

JSON = "application/json"
DAMAGED = (
    "the demonstrations of this service cannot be read any more; whoever runs it must put a whole copy of the bundle "
    "in its place, which is then used without a restart"
)
PASSED_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
SECONDS_TO_WRITE = 60.0
"""Adding embeds, and may wait for another writer of the same bundle."""


class Service:
    """What all routes of a worker share."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.token = read_token(loopback=settings.host in LOOPBACK)
        self.metrics = Metrics(Path(settings.counters) if settings.counters else None, settings.workers)
        self.served = ServedSelector(settings.bundle, self.metrics)
        self.api = JsonApi(settings, self.served, self.metrics)
        self.queue = WorkQueue(settings.threads, settings.queue, self.metrics)
        self.bodies = BodyBudget(settings.body_bytes, int(settings.memory_mb * 1_000_000), self.metrics)
        self.proxy: OpenAIProxy | None = None
        if settings.upstream:
            self.proxy = OpenAIProxy(
                settings, self.served, self.metrics, queue=self.queue, bodies=self.bodies, token=self.token
            )

    async def worked(self, request: Request, work: Callable[[bytearray, float], bytes], seconds: float) -> Response:
        """Read the body, have a thread do the work, and answer what it made."""
        started = time.perf_counter()
        with await self.bodies.read(request) as content:
            made = await self.queue.run(lambda until: work(content, until), seconds)
        if request.url.path.startswith("/select"):
            self.metrics.observe("lever_select_seconds", "api", time.perf_counter() - started)
        return Response(made, media_type=JSON)

    async def close(self) -> None:
        if self.proxy is not None:
            await self.proxy.upstream.close()
        self.queue.close()
        self.metrics.close()


def create_app(settings: ServeSettings) -> FastAPI:
    """The service over one bundle."""
    open_log(wanted=settings.log)
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="lever serve", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False,
        lifespan=lifespan, openapi_url="/openapi.json",
    )  # fmt: skip
    app.state.service = service
    app.add_middleware(ServiceGuard, settings=settings, token=service.token)
    app.add_middleware(AccessLog, metrics=service.metrics)  # added last: outermost
    _add_errors(app)
    _add_page(app)
    _add_health(app, service)
    _add_select(app, service)
    _add_demos(app, service)
    if service.proxy is not None:
        _add_proxy(app, service.proxy)
    return app


def _add_errors(app: FastAPI) -> None:
    """Every error is JSON with one sentence, which quotes nothing but what the client sent."""

    @app.exception_handler(LeverError)
    async def mendable(_: Request, error: LeverError) -> Response:
        if isinstance(error, DamagedStore):
            log_failure(error)
            return error_response(503, DAMAGED, {"retry-after": str(RETRY_SECONDS)})
        return error.response() if isinstance(error, HttpRefusal) else error_response(422, str(error))

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        said = {404: "there is no such route", 405: "this route does not take this method"}
        return error_response(error.status_code, said.get(error.status_code, str(error.detail)), error.headers)


def _body(kind: type[BaseModel]) -> dict[str, Any]:
    """How a route's body is described in /openapi.json."""
    return {"requestBody": {"required": True, "content": {JSON: {"schema": kind.model_json_schema()}}}}


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(front_page(), media_type="text/html")

    @app.get("/assets/{name}", include_in_schema=False)
    async def assets(name: str) -> Response:
        found = read_asset(name)
        if found is None:
            raise HttpRefusal(404, "there is no such file")
        return Response(found[0], media_type=found[1], headers={"cache-control": "max-age=3600"})


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        """Whether the process answers."""
        return Response(b'{"status": "ok"}', media_type=JSON)

    @app.get("/readyz")
    async def readyz() -> Response:
        """Whether a request would find room now."""
        waiting, most = service.queue.under_way, service.queue.most
        ready = json.dumps({"status": "ready" if waiting < most else "busy", "waiting": waiting, "most": most})
        return Response(ready, 200 if waiting < most else 503, media_type=JSON)

    @app.get("/info")
    async def info() -> Response:
        """What is served: arm, shots, how many demonstrations, fingerprint, limits."""
        made = await service.queue.run(lambda _: service.api.info(), service.settings.seconds)
        return Response(made, media_type=JSON)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters of all workers in Prometheus' text format."""
        text = service.metrics.text(service.api.gauges())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_select(app: FastAPI, service: Service) -> None:
    @app.post("/select", openapi_extra=_body(SelectQuery))
    async def select(request: Request) -> Response:
        """Choose demonstrations for one query."""
        return await service.worked(request, service.api.select, service.settings.seconds)

    @app.post("/select_many", openapi_extra=_body(SelectManyBody))
    async def select_many(request: Request) -> Response:
        """Choose for many queries, each as if it were asked alone."""
        return await service.worked(request, service.api.select_many, service.settings.seconds)


def _add_demos(app: FastAPI, service: Service) -> None:
    @app.post("/demos", openapi_extra=_body(AddBody))
    async def add(request: Request) -> Response:
        """Add demonstrations; they are used at once, by every worker."""
        return await service.worked(request, service.api.add, SECONDS_TO_WRITE)

    @app.delete("/demos/{name:path}")
    async def delete(name: str) -> Response:
        """Delete a demonstration for good."""
        made = await service.queue.run(lambda _: service.api.delete(name), SECONDS_TO_WRITE)
        return Response(made, media_type=JSON)


def _add_proxy(app: FastAPI, proxy: OpenAIProxy) -> None:
    @app.api_route("/v1/{path:path}", methods=PASSED_METHODS, include_in_schema=False)
    async def passed(request: Request) -> Response:
        return await proxy.answer(request)
