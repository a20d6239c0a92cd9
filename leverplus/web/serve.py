"""The service as a FastAPI application: the JSON API over one bundle; one process, or several on one socket."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException
from uvicorn.supervisors import Multiprocess

from leverplus.bundle.selector import Selector
from leverplus.bundle.store import DamagedStore
from leverplus.data.types import ItemId
from leverplus.errors import LeverError
from leverplus.version import __version__
from leverplus.web.guard import (
    Guard,
    PatientProtocol,
    add_errors,
    error_response,
    read_token,
)
from leverplus.web.metrics import (
    HELD,
    SELECT_SECONDS,
    SHARED_COUNTS,
    SHOWN,
    AccessLog,
    log_failure,
    metrics_text,
    open_log,
)
from leverplus.web.pages import ASSETS, render
from leverplus.web.proxy import OpenAIProxy
from leverplus.web.service import (
    ServeSettings,
    Service,
    allowed_by,
    check_time,
    decoded_picture,
    filter_of,
    picture_content,
)

MOST_QUERIES = 256
"""Queries of one request to /select_many, and demonstrations of one to /demos."""
CONNECTIONS = 512
MEMORY = 256_000_000
"""Bytes of the bodies of all requests under way."""
SECONDS_TO_WRITE = 60.0
"""Adding embeds, and may wait for another writer of the same bundle."""
KEEP_ALIVE_SECONDS = 65
"""Longer than clients and reverse proxies keep a connection, so that they close it and never send into a closed one."""
WORKER_SECONDS = 60
"""A worker that gives no sign of life for so long is replaced."""
DAMAGED = (
    "the demonstrations of this service cannot be read any more; whoever runs it must put a whole copy of the bundle "
    "in its place, which is then used without a restart"
)
PASSED_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Only = Annotated[str | None, Depends(filter_of)]
"""What the header `x-lever-filter` says."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Choice(_Strict):
    """How to choose. `images`: whether the answer holds the demonstrations' pictures."""

    shots: int | None = None
    allowed: list[str] | None = None
    explain: bool = False
    images: bool = True


class SelectQuery(Choice):
    """One query. `image` is a data URL or base64 of a picture file; `vectors` are its own instead of the embedder's."""

    question: str
    image: str | None = None
    vectors: dict[str, list[float]] | None = None


class SelectManyBody(Choice):
    """Many queries; what is said here holds for those that do not say it themselves."""

    queries: Annotated[list[SelectQuery], Field(max_length=MOST_QUERIES)]


class NewDemo(_Strict):
    """A demonstration to add."""

    question: str
    answer: str | None = None
    answers: list[str] | None = None
    image: str | None = None
    id: str | None = None
    meta: dict[str, str] | None = None


class AddBody(_Strict):
    """Demonstrations to add; a single one may stand alone."""

    demos: Annotated[list[NewDemo], Field(min_length=1, max_length=MOST_QUERIES)]

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, value: Any) -> Any:
        if isinstance(value, dict) and "demos" not in value:
            return {"demos": [value]}
        return value


class JsonApi(Service):
    """The routes over one bundle; what chooses or writes is done by threads."""

    async def done(
        self, work: Callable[[float], dict[str, Any]], seconds: float = 0.0
    ) -> Response:
        """The answer that a thread makes, within so many seconds (0: those of the settings)."""
        limit = seconds or self.settings.seconds
        return JSONResponse(await self.work.run(work, limit))

    async def page(self) -> Response:
        return Response(render("serve", title="lever serve"), media_type="text/html")

    async def healthz(self) -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    async def readyz(self) -> Response:
        """Whether a request would find room now."""
        waiting = self.work.under_way
        most = self.work.most
        status = 200
        said = "ready"
        if waiting >= most:
            status = 503
            said = "busy"
        found = {"status": said, "waiting": waiting, "most": most}
        return JSONResponse(found, status)

    async def metrics(self) -> Response:
        """Counters of all workers in Prometheus' text format."""
        with suppress(DamagedStore):
            HELD.set(len(self.served.current()))
        return Response(metrics_text(), media_type="text/plain; version=0.0.4")

    async def info(self) -> Response:
        """What is served: arm, shots, how many demonstrations, fingerprint, limits."""
        settings = self.settings

        def told(_: float) -> dict[str, Any]:
            selector = self.served.current()
            return {
                "name": settings.bundle.rstrip("/").rpartition("/")[2],
                "version": __version__,
                "arm": selector.arm,
                "shots": selector.shots,
                "most_shots": selector.way.most_shots,
                "calls": selector.way.calls,
                **_size(selector),
                "pictures": "image" in selector.source.corpus.blocks,
                "writable": selector.source.writable and not settings.read_only,
                "upstream": bool(settings.upstream),
                "limits": {
                    "body_bytes": settings.body_bytes,
                    "seconds": settings.seconds,
                    "queries": MOST_QUERIES,
                    "queue": settings.queue,
                },
            }

        return await self.done(told)

    async def select(self, query: SelectQuery, only: Only) -> Response:
        """Choose demonstrations for one query."""

        def chosen(_: float) -> dict[str, Any]:
            started = time.perf_counter()
            selector = self.served.current()
            fingerprint = selector.fingerprint
            found = self.choose(selector, query, only)
            return {**found, "fingerprint": fingerprint, "ms": _ms(started)}

        with SELECT_SECONDS.labels("api").time():
            return await self.done(chosen)

    async def select_many(self, body: SelectManyBody, only: Only) -> Response:
        """Choose for many queries, each as if it were asked alone."""
        shared = body.model_dump(exclude_unset=True, exclude={"queries"})

        def chosen(until: float) -> dict[str, Any]:
            started = time.perf_counter()
            selector = self.served.current()
            fingerprint = selector.fingerprint
            results = []
            for number, query in enumerate(body.queries):
                check_time(until)
                own = query.model_dump(exclude_unset=True)
                whole = query.model_copy(update={**shared, **own})
                try:
                    results.append(self.choose(selector, whole, only))
                except DamagedStore:
                    raise  # no fault of this query
                except LeverError as error:
                    raise HTTPException(422, f"query {number}: {error}") from None
            return {"results": results, "fingerprint": fingerprint, "ms": _ms(started)}

        with SELECT_SECONDS.labels("api").time():
            return await self.done(chosen)

    def choose(
        self, selector: Selector, query: SelectQuery, only: str | None
    ) -> dict[str, Any]:
        image = query.image
        picks = selector.select(
            question=query.question,
            image=None if image is None else decoded_picture(image, self.settings),
            shots=query.shots,
            allowed=allowed_by(only, query.allowed),
            explain=query.explain,
            vectors=query.vectors,
        )
        SHOWN.inc(len(picks))
        demos = []
        for demo in picks:
            row = {"id": demo.id, "question": demo.question, "answer": demo.answer}
            if query.images and demo.image is not None:
                row["image"] = demo.data_url() or ""
            demos.append(row)
        found: dict[str, Any] = {"demos": demos}
        if picks.lists:
            found["lists"] = [[demo.id for demo in own] for own in picks.lists]
        if picks.answer is not None:
            found["answer"] = picks.answer
        if picks.explanation is not None:
            found["explanation"] = picks.explanation
        return found

    async def add(self, body: AddBody) -> Response:
        """Add demonstrations; they are used at once, by every worker."""

        def added(until: float) -> dict[str, Any]:
            selector = self._writable()
            names = []
            for demo in body.demos:
                if demo.id is not None:
                    names.append(ItemId(demo.id))
            if taken := selector.source.rows_of(names):
                raise HTTPException(
                    409,
                    f"there is a demonstration {next(iter(taken))[:80]} already; delete it first",
                )
            rows = []
            for demo in body.demos:
                check_time(until)
                row: dict[str, Any] = demo.model_dump(exclude_none=True)
                if demo.image is not None:
                    # refused here where it is too large or no picture
                    decoded_picture(demo.image, self.settings)
                    row["image"] = picture_content(demo.image)
                rows.append(row)
            return {"ids": selector.add(rows), **_size(selector)}

        return await self.done(added, SECONDS_TO_WRITE)

    async def delete(self, id: str) -> Response:
        """Delete a demonstration for good."""

        def deleted(_: float) -> dict[str, Any]:
            selector = self._writable()
            if not selector.source.rows_of([ItemId(id)]):
                raise HTTPException(404, "there is no such demonstration")
            selector.delete([id])
            return {"deleted": [id], **_size(selector)}

        return await self.done(deleted, SECONDS_TO_WRITE)

    def _writable(self) -> Selector:
        if self.settings.read_only:
            raise HTTPException(
                403,
                "this service was started with --read-only; use `lever demos` on its machine",
            )
        return self.served.current()


def _size(selector: Selector) -> dict[str, Any]:
    return {"count": len(selector), "fingerprint": selector.fingerprint}


def _ms(started: float) -> float:
    return round(1000 * (time.perf_counter() - started), 3)


def damaged(_: Request, error: Exception) -> Response:
    log_failure(error)
    return error_response(503, DAMAGED, {"retry-after": "1"})


def create_app(settings: ServeSettings) -> FastAPI:
    """The service over one bundle."""
    open_log(wanted=settings.log)
    api = JsonApi(settings)
    proxy = OpenAIProxy(api, settings.upstream) if settings.upstream else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        if proxy is not None:
            await proxy.client.aclose()
        api.work.close()

    app = FastAPI(
        title="lever serve",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.add_middleware(
        Guard,
        host=settings.host,
        most_bytes=settings.body_bytes,
        all_bytes=MEMORY,
        more_names=settings.names,
        token=api.token,
    )
    app.add_middleware(AccessLog)  # added last: outermost
    app.add_exception_handler(DamagedStore, damaged)
    add_errors(app, error_response)
    app.mount("/assets", StaticFiles(packages=[ASSETS]))
    app.get("/", include_in_schema=False)(api.page)
    app.get("/healthz")(api.healthz)
    app.get("/readyz")(api.readyz)
    app.get("/info")(api.info)
    app.get("/metrics")(api.metrics)
    app.post("/select")(api.select)
    app.post("/select_many")(api.select_many)
    app.post("/demos")(api.add)
    app.delete("/demos/{id:path}")(api.delete)
    if proxy is not None:
        passed = app.api_route(
            "/v1/{path:path}", methods=PASSED_METHODS, include_in_schema=False
        )
        passed(proxy.answer)
    return app


class ServiceProtocol(PatientProtocol):
    most = CONNECTIONS


@dataclass(frozen=True)
class AppMaker:
    """Makes the application in the process that serves it: what travels to a worker is the settings only."""

    settings: ServeSettings

    def __call__(self) -> FastAPI:
        return create_app(self.settings)


def serve(
    settings: ServeSettings,
    listening: socket.socket,
    grace: int,
    ready: Callable[[], None],
) -> None:
    """Answer until SIGTERM or SIGINT; then finish what is under way, within `grace` seconds.

    `ready` is called when the bundle is loaded and connections are taken.
    """
    several = settings.workers > 1
    maker: Any = AppMaker(settings)
    config = uvicorn.Config(
        maker if several else maker(),
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
    if not several:
        listening.listen(config.backlog)
        ready()
        uvicorn.Server(config).run(sockets=[listening])
        return
    # what cannot be served is one sentence here, not one per worker
    read_token(settings.host)
    Selector.load(settings.bundle)
    with tempfile.TemporaryDirectory(prefix="lever-counters-") as folder:
        os.environ[SHARED_COUNTS] = folder
        listening.listen(config.backlog)
        ready()
        Multiprocess(config, sockets=[listening]).run()
