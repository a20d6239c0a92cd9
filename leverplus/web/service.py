"""What serves a bundle: its settings, the selector, the threads that choose, and what a request may be shown."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request

from leverplus.bundle.hub import DEMOS, MANIFEST
from leverplus.bundle.selector import Selector
from leverplus.data.rundir import read_json
from leverplus.errors import LeverError
from leverplus.web.guard import MAX_PIXELS, busy, read_token, read_upload

if TYPE_CHECKING:
    from PIL import Image

    from leverplus.bundle.demo import Demo

Made = TypeVar("Made")
FILTER_HEADER = "x-lever-filter"
OWN_ID = "id"
"""The name under which a filter means a demonstration's id, and not its metadata."""
_DATA_URL = re.compile(r"^data:[^,]{0,200};base64,", re.IGNORECASE)


@dataclass(frozen=True)
class ServeSettings:
    """One record that the command line fills and every worker process gets; limits are per process."""

    bundle: str
    host: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    """Names besides its own that the service answers to, such as that of a reverse proxy."""
    upstream: str = ""
    shots: int | None = None
    """Demonstrations the proxy puts in; None: as many as the bundle recommends."""
    deadline_ms: int = 1000
    """The proxy waits so long for a choice, then passes the request on unchanged."""
    seconds: float = 10.0
    """The longest time of one request to the JSON API."""
    threads: int = 2
    queue: int = 64
    """Requests that may wait for a thread; more are told to come back (503)."""
    workers: int = 1
    body_mb: float = 20.0
    read_only: bool = False
    log: bool = True

    @property
    def body_bytes(self) -> int:
        return int(self.body_mb * 1_000_000)


class ServedSelector:
    """The selector to choose with now.

    Demonstrations that `lever demos`, another worker or another program changed are seen by the selector itself at its
    next choice. Here the rest: a folder that was exchanged as a whole, or whose way of choosing was changed, is loaded
    anew by the thread that finds it so, while the old one goes on answering.
    """

    def __init__(self, address: str) -> None:
        self._selector = _open(address)
        self._lock = threading.Lock()
        self._folder: Path | None = None
        source = self._selector.source
        if source.writable:
            self._folder = source.folder
            self._manner = _manner(source.folder)

    def current(self) -> Selector:
        if self._folder is not None and self._lock.acquire(blocking=False):
            try:
                manner = _manner(self._folder)
                if manner != self._manner:
                    self._selector = _open(str(self._folder))
                    self._manner = manner
            except (LeverError, OSError):
                pass  # half copied, or gone for a moment: the next request looks again
            finally:
                self._lock.release()
        return self._selector


def _manner(folder: Path) -> tuple[Any, ...]:
    """Which database it is, and the manifest but for what `lever demos` changes in it."""
    stat = (folder / DEMOS).stat()
    facts = read_json(folder / MANIFEST)
    return stat.st_dev, stat.st_ino, {**facts, "demonstrations": None}


def _open(address: str) -> Selector:
    """A selector whose embedder is open already, so that the first visitor does not wait for it."""
    selector = Selector.load(address)
    if selector.way.vector_fields:
        _ = selector.source.embedder
    return selector


class WorkQueue:
    """Threads that choose, and a bounded number of requests that wait for one.

    Work that has a thread cannot be stopped: it keeps its place until it ends, so that slow work fills the queue and
    newcomers are told to come back, instead of everybody waiting longer and longer.
    """

    def __init__(self, threads: int, most_waiting: int) -> None:
        self.most = threads + most_waiting
        self.under_way = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lever-select")

    async def run(self, work: Callable[[float], Made], seconds: float) -> Made:
        """What `work` returns; it gets the time (of `time.monotonic`) at which nobody waits for it any more."""
        if self.under_way >= self.most:
            raise busy(f"{self.under_way} requests are waiting already")
        self.under_way += 1
        until = time.monotonic() + seconds

        def begun() -> Made:
            check_time(until)  # it may have waited for its thread too long
            return work(until)

        future = asyncio.get_running_loop().run_in_executor(self._pool, begun)
        future.add_done_callback(self._ended)
        done, _ = await asyncio.wait({future}, timeout=seconds)
        if not done:
            raise too_slow()
        return future.result()

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self.under_way -= 1
        future.exception()  # looked at, though perhaps nobody waits any more

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def too_slow() -> HTTPException:
    return HTTPException(504, "this took longer than it may and was given up")


def check_time(until: float) -> None:
    """Between two steps of a long piece of work: stop where nobody waits for it any more."""
    if time.monotonic() > until:
        raise too_slow()


class Service:
    """What all routes of a worker share."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.token = read_token(settings.host)
        self.served = ServedSelector(settings.bundle)
        self.work = WorkQueue(settings.threads, settings.queue)


def decoded_picture(image: str, settings: ServeSettings) -> Image.Image:
    """The picture inside a data URL or base64. A path is not base64 of a picture, and no address is fetched."""
    return read_upload(picture_content(image), settings.body_bytes, MAX_PIXELS)


def picture_content(image: str) -> bytes:
    body = _DATA_URL.sub("", image, count=1)
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError):
        raise HTTPException(
            422,
            "image must be a data URL such as data:image/png;base64,... or base64 of a picture file; addresses are not "
            "fetched",
        ) from None


@dataclass(frozen=True)
class Filter:
    """Whether a demonstration passes all of some conditions; `cache_key` names them."""

    cache_key: str
    conditions: Sequence[Mapping[str, set[str]]]

    def __call__(self, demo: Demo) -> bool:
        for wanted in self.conditions:
            for key, values in wanted.items():
                own = demo.id if key == OWN_ID else demo.meta.get(key)
                if own not in values:
                    return False
        return True


def read_filter(header: str) -> Filter:
    """Whether a demonstration passes `KEY=VALUE&KEY=VALUE`, percent-encoded.

    Every key must hold; of a key that is said several times, one of its values. A demonstration without the key does
    not pass. A comma ends a filter, and all of them must hold: that is how servers join a header that was sent twice,
    so that a client can narrow what a reverse proxy in front of it allows, and never widen it.
    """
    conditions = []
    for text in header.split(","):
        wanted: dict[str, set[str]] = {}
        for part in text.split("&"):
            key, sign, value = part.partition("=")
            if not sign or not key.strip():
                raise LeverError(
                    f"{FILTER_HEADER} must be KEY=VALUE, several with & between them, percent-encoded"
                )
            values = wanted.setdefault(unquote(key.strip()), set())
            values.add(unquote(value.strip()))
        conditions.append(wanted)
    return Filter(header, conditions)


def filter_of(request: Request) -> str | None:
    """The filter of a request's header, with commas where it was sent several times; None where there is none."""
    found = request.headers.getlist(FILTER_HEADER)
    if not found:
        return None
    return ",".join(found)


def allowed_by(
    header: str | None, ids: Sequence[str] | None
) -> Sequence[str] | Callable[[Demo], bool] | None:
    """What a request may be shown: what its header lets pass and, where its body names ids, only these."""
    if header is None:
        return ids
    passes = read_filter(header)
    if ids is None:
        return passes
    named = set(ids)
    return lambda demo: str(demo.id) in named and passes(demo)
