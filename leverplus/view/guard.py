"""Protects the page: lets in requests from the page itself only, small bodies, and uploads that really are pictures."""

from __future__ import annotations

import io
import ipaddress
import socket
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from leverplus.errors import DataError, LeverError
from leverplus.tasks.pictures import as_rgb

if TYPE_CHECKING:
    from PIL import Image
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

UPLOAD_BYTES = 2_000_000
FORM_BYTES = 64_000
"""What a form may hold besides its picture."""
MAX_PIXELS = 16_000_000  # 48 MB decoded, see `UploadTurns`
MOST_WAITING = 8
"""Uploads that may wait for their turn; each takes 2 MB while it waits, and one at a time is decoded."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    # Not "no-referrer": with that a browser sends `Origin: null` with the page's own forms.
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Refuses other hosts (a foreign name that resolves to this machine), other origins and large bodies.

    A page bound beyond this machine answers to the name it was given, the machine's own names and plain addresses: a
    hostile site cannot put any of them into its visitors' requests.
    """

    headers: Mapping[str, str] = HEADERS
    """What every answer says, unless it states its own."""

    def __init__(self, app: ASGIApp, host: str = "127.0.0.1", more_names: Iterable[str] = ()) -> None:
        self.app = app
        self.local = host in LOOPBACK
        names = {*LOOPBACK, host, *more_names}
        if not self.local:
            names |= {socket.gethostname(), socket.getfqdn()}
        self.names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":  # start and end of the server; websockets are not answered
                await self.app(scope, receive, send)
            return
        status, reason = self.refusal(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message["headers"])
                own = {name for name, _ in headers}
                for key, value in self.headers.items():
                    if key.encode() not in own:  # an answer may state its own, as the report does
                        headers.append((key.encode(), value.encode()))
                message = {**message, "headers": headers}
            await send(message)

        if status:
            await self.refused(status, reason)(scope, receive, send_with_headers)
            return
        await self.app(scope, receive, send_with_headers)

    def refused(self, status: int, reason: str) -> Response:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse(reason, status)

    def foreign(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Why a request comes from elsewhere than from this page or a program of the user's; "" where it does not."""
        host = headers.get("host", "")
        if not self.knows(host):
            return "This service answers to its own address only; open it as it was printed at the start."
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scope.get('scheme', 'http')}://{host.lower()}":
            return "This request came from another page and was refused."
        if headers.get("sec-fetch-site") == "cross-site" and scope["method"] not in ("GET", "HEAD"):
            return "This request came from another page and was refused."
        return ""

    def refusal(self, scope: Scope) -> tuple[int, str]:
        """The HTTP status and a sentence for a request that is refused; (0, "") for one that is let in."""
        headers = headers_of(scope)
        if reason := self.foreign(scope, headers):
            return 403, reason
        if scope["method"] in ("GET", "HEAD"):
            return 0, ""
        length = headers.get("content-length", "")
        if not length.isdigit():
            return 411, "A form must say how long it is."
        if int(length) > UPLOAD_BYTES + FORM_BYTES:
            return 413, f"The picture is too large; at most {UPLOAD_BYTES // 1_000_000} MB are taken."
        return 0, ""

    def knows(self, host: str) -> bool:
        """Whether a Host header names this page."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self.names:
            return True
        return not self.local and _is_address(name)


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers of a request by their names in lower case; of several of one name the last."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Busy(LeverError):
    """More uploads wait for their turn than the page takes."""


class UploadTurns:
    """Lets in one upload at a time: a decoded picture takes a thousand times the memory of its file.

    A picture of 62 KB may have 16 million pixels, which are 48 MB decoded and about twice that while they are worked
    on. Forty at once took gigabytes; so one at a time is worked on, and the number of those that wait is bounded.
    """

    def __init__(self, most_waiting: int | None = None) -> None:
        self.most = MOST_WAITING if most_waiting is None else most_waiting
        self._count = 0
        self._counting, self._working = Lock(), Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self._counting:
            if self._count > self.most:
                raise Busy(f"{self.most} pictures are waiting already; send yours again in a moment")
            self._count += 1
        try:
            with self._working:
                yield
        finally:
            with self._counting:
                self._count -= 1


def read_upload(content: bytes, most_bytes: int = UPLOAD_BYTES, most_pixels: int = MAX_PIXELS) -> Image.Image:
    """An uploaded picture, checked before it is decoded; everything else is refused with a sentence."""
    from PIL import Image

    if len(content) > most_bytes:
        raise DataError(f"the picture is too large; at most {most_bytes // 1_000_000} MB are taken")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below is the stricter one
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                width, height = image.size
                if width * height > most_pixels:
                    raise DataError(f"the picture has {width} x {height} pixels; at most {most_pixels:,} are taken")
                image.verify()  # checks the file without decoding it, after which it must be opened again
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                return as_rgb(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"the uploaded file is not a picture in {', '.join(FORMATS)}") from error
