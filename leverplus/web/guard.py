"""Protects pages and services: who may ask, how large a request may be, how slowly it may come, and what is a picture."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import io
import ipaddress
import math
import os
import socket
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import h11
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from leverplus.data.pictures import as_rgb
from leverplus.errors import DataError, LeverError, MissingFile

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

UPLOAD_BYTES = 2_000_000
MAX_PIXELS = 16_000_000  # 48 MB decoded
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
HEADERS = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    b"img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    # Not "no-referrer": with that a browser sends `Origin: null` with the page's own forms.
    b"referrer-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
"""What every answer says, unless it states its own."""

TOKEN_VARIABLE = "LEVER_TOKEN"
TOKEN_HEADER = "x-lever-token"
"""Takes our token where `Authorization` holds the upstream's key."""
SHORTEST_TOKEN = 16
"""Characters; `openssl rand -hex 32` gives 64."""
FOREIGN = "This request came from another page and was refused."


def error_response(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An error in the form that OpenAI's clients read."""
    kind = "invalid_request_error"
    if status >= 500:
        kind = "server_error"
    told = {"message": message, "type": kind, "code": status}
    return JSONResponse({"error": told}, status, headers=dict(headers or {}))


def add_errors(
    app: FastAPI, told: Callable[[int, str, Mapping[str, str] | None], Response]
) -> None:
    """Have every error told in one sentence, which quotes nothing but what the client sent."""

    @app.exception_handler(LeverError)
    async def mendable(_: Request, error: LeverError) -> Response:
        status = 422
        if isinstance(error, MissingFile):
            status = 404
        return told(status, str(error), None)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        said = {"Not Found": "There is nothing at this address."}
        message = said.get(error.detail, error.detail)
        return told(error.status_code, message, error.headers)

    @app.exception_handler(RequestValidationError)
    async def unreadable(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"][1:]))
        status = 422
        if first["type"] == "json_invalid":
            status = 400
        said = f"{where[:80] or 'the request'}: {first['msg'][:200]}"
        return told(status, said, None)


def busy(message: str) -> HTTPException:
    said = f"{message}; send yours again in a moment"
    return HTTPException(503, said, {"retry-after": "1"})


class AccessToken:
    """Compares tokens in a time that does not tell how much of a guess was right; keeps only a digest."""

    def __init__(self, secret: str) -> None:
        self._digest = self._of(secret.encode("utf-8", "surrogateescape"))

    @staticmethod
    def _of(secret: bytes) -> bytes:
        return hashlib.sha256(secret).digest()

    def fits(self, guess: str) -> bool:
        digest = self._of(guess.encode("latin-1"))
        return hmac.compare_digest(digest, self._digest)


def read_token(host: str) -> AccessToken | None:
    """The token of the environment; required where others than this machine can connect."""
    secret = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not secret and host in LOOPBACK:
        return None
    if len(secret) < SHORTEST_TOKEN:
        why = "others could reach this address, so it needs a token"
        if secret:
            why = f"{TOKEN_VARIABLE} has fewer than {SHORTEST_TOKEN} characters and could be guessed"
        raise LeverError(
            f"{why}; type `export {TOKEN_VARIABLE}=$(openssl rand -hex 32)`, or leave --host out to serve this machine only"
        )
    return AccessToken(secret)


def bearer(headers: Mapping[str, str]) -> str:
    """The token of an Authorization header; empty where it is of another kind."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        return ""
    return token.strip()


class Guard:
    """Refuses other hosts (a foreign name that resolves to this machine), other origins, wrong tokens, large bodies.

    A page bound beyond this machine answers to the name it was given, the machine's own names and plain addresses: a
    hostile site cannot put any of them into its visitors' requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        most_bytes: int,
        all_bytes: float = math.inf,
        more_names: Iterable[str] = (),
        token: AccessToken | None = None,
    ) -> None:
        self.app = app
        self.token = token
        self.most_bytes = most_bytes
        self.all_bytes = all_bytes
        self.held = 0
        """Bytes of the bodies of all requests under way."""
        self.local = host in LOOPBACK
        names = {*LOOPBACK, host, *more_names}
        if not self.local:
            names |= {socket.gethostname(), socket.getfqdn()}
        self.names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # start and end of the server; websockets are not answered
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        held = 0

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message["headers"])
                own = {name for name, _ in headers}
                for key, value in HEADERS.items():
                    if key not in own:
                        headers.append((key, value))
                message = {**message, "headers": headers}
            await send(message)

        async def receive_bounded() -> Message:
            nonlocal held
            message = await receive()
            count = len(message.get("body", b""))
            held += count
            self.held += count
            if held > self.most_bytes:
                raise self.too_large()
            if self.held > self.all_bytes:
                raise busy("the service holds as many bytes of requests as it may")
            return message

        try:
            self.check(scope)
            await self.app(scope, receive_bounded, send_with_headers)
        except HTTPException as refusal:
            answer = error_response(
                refusal.status_code, refusal.detail, refusal.headers
            )
            await answer(scope, receive, send_with_headers)
        finally:
            self.held -= held

    def too_large(self) -> HTTPException:
        most = f"{self.most_bytes / 1e6:g} MB"
        return HTTPException(
            413, f"The request is too large; at most {most} are taken."
        )

    def check(self, scope: Scope) -> None:
        """HTTPException for a request that is not let in."""
        headers = headers_of(scope)
        host = headers.get("host", "")
        origin = headers.get("origin")
        if not self.knows(host):
            raise HTTPException(
                403,
                "This service answers to its own address only; open it as it was printed at the start.",
            )
        own = f"{scope.get('scheme', 'http')}://{host.lower()}"
        crossing = headers.get("sec-fetch-site") == "cross-site"
        if crossing and scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(403, FOREIGN)
        if origin is not None and origin.lower() != own:
            raise HTTPException(403, FOREIGN)
        if self.token is not None and not is_open(scope["path"]):
            # both are compared, whichever was sent, so that the time does not depend on it
            given = headers.get(TOKEN_HEADER, "").strip()
            by_header = self.token.fits(given)
            by_bearer = self.token.fits(bearer(headers))
            if not (by_header or by_bearer):
                raise HTTPException(
                    401,
                    f"Send the service's token, as `Authorization: Bearer TOKEN` or `{TOKEN_HEADER}: TOKEN`.",
                    {"www-authenticate": "Bearer"},
                )
        length = headers.get("content-length", "0")
        if "content-length" in headers and "transfer-encoding" in headers:
            # what follows such a request may be meant to pass for another client's: nobody reads it
            said = "The request says in two ways where its body ends."
            raise HTTPException(400, said, {"connection": "close"})
        if len(length) > 15 or int(length) > self.most_bytes:
            raise self.too_large()

    def knows(self, host: str) -> bool:
        """Whether a Host header names this page."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self.names:
            return True
        return not self.local and _is_address(name)


def is_open(path: str) -> bool:
    """Paths that need no token: whether it lives, and the page, which holds nothing of the bundle."""
    return path in ("/", "/healthz", "/readyz") or path.startswith("/assets/")


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers of a request by their names in lower case; of several of one name the last."""
    found = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        found[key] = value.decode("latin-1")
    return found


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def read_upload(
    content: bytes, most_bytes: int = UPLOAD_BYTES, most_pixels: int = MAX_PIXELS
) -> Image.Image:
    """An uploaded picture, checked before it is decoded; everything else is refused with a sentence."""
    if len(content) > most_bytes:
        raise DataError(
            f"the picture is too large; at most {most_bytes // 1_000_000} MB are taken"
        )
    try:
        with warnings.catch_warnings():
            # the limit below is the stricter one
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                width, height = image.size
                if width * height > most_pixels:
                    raise DataError(
                        f"the picture has {width} x {height} pixels; at most {most_pixels:,} are taken"
                    )
                return as_rgb(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"the uploaded file is not a picture in {', '.join(FORMATS)}"
        ) from error


class PatientProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, with deadlines for a request to come and for an answer to be taken, and a bound on
    the connections held at once: uvicorn itself waits for ever."""

    most = 200
    """Connections."""
    request_seconds = 20.0
    """In this time a whole request, headers and picture, must have come."""
    stalled_seconds = 30.0
    """A client that reads nothing of its answer for so long is hung up on."""
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.close()
            return
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        if state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR):
            self._deadline = _cancelled(self._deadline)
        elif self._deadline is None:
            # the next request on a connection that was kept alive
            self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline = _cancelled(self._deadline)
        self._stalled = _cancelled(self._stalled)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        abort = self.transport.abort
        self._stalled = self.loop.call_later(self.stalled_seconds, abort)

    def resume_writing(self) -> None:
        self._stalled = _cancelled(self._stalled)
        super().resume_writing()

    def _start_deadline(self) -> None:
        close = self.transport.close
        self._deadline = self.loop.call_later(self.request_seconds, close)


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None


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
        raise LeverError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another with --port N"
        ) from error
    return listening
