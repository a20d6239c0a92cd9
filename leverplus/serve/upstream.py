"""Passes requests on to the upstream and its answers back as they come; follows no redirect, unpacks nothing."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import httpcore
from starlette.responses import StreamingResponse

from leverplus.errors import LeverError
from leverplus.serve.limits import HttpRefusal

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

Header = tuple[bytes, bytes]
CONNECT_SECONDS = 10.0
KEPT_SECONDS = 4.0
"""An idle connection is used again within so many seconds: servers close them after five and more."""

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
"""Headers that hold for one connection only (RFC 9110, 7.6.1)."""

OWN = b"x-lever-"


class Upstream:
    """An OpenAI-compatible server below one address."""

    def __init__(self, url: str, seconds: float, connections: int) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise LeverError(f"--upstream {url[:200]}: give the address of an API, such as http://127.0.0.1:8000/v1")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise LeverError("--upstream: give the address alone; clients send their own keys")
        self.scheme, self.host = parts.scheme.encode(), parts.hostname.encode("idna")
        self.port, self.path = port, parts.path.rstrip("/").encode()
        self.name = parts.netloc.encode()
        self.timeout = {"connect": CONNECT_SECONDS, "read": seconds, "write": seconds, "pool": CONNECT_SECONDS}
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context() if parts.scheme == "https" else None,
            max_connections=connections,
            max_keepalive_connections=connections,
            keepalive_expiry=KEPT_SECONDS,
        )

    async def send(self, method: str, target: bytes, headers: Iterable[Header], content: bytes) -> httpcore.Response:
        """The head of the answer, whose body has yet to come; call its `aclose`. HttpRefusal where none came."""
        url = httpcore.URL(scheme=self.scheme, host=self.host, port=self.port, target=self.path + target)
        kept = [(b"host", self.name), *headers]
        if content or method in ("POST", "PUT", "PATCH"):
            kept.append((b"content-length", str(len(content)).encode()))
        request = httpcore.Request(method, url, headers=kept, content=content, extensions={"timeout": self.timeout})
        try:
            return await self._pool.handle_async_request(request)
        except httpcore.TimeoutException:
            raise HttpRefusal(504, "the upstream did not answer in time") from None
        except (httpcore.NetworkError, httpcore.ProtocolError):
            raise HttpRefusal(502, "the upstream cannot be reached, or broke the connection") from None

    async def close(self) -> None:
        await self._pool.aclose()


def target_of(scope: Scope) -> bytes:
    """The part of a request's address that is passed on: what follows /v1, and its query, as they were written."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = unquote(raw.decode("ascii", "replace"))
    if not raw.startswith(b"/v1/") or "\\" in path or any(ord(sign) < 32 or ord(sign) == 127 for sign in path):
        raise HttpRefusal(400, "this address cannot be passed on")
    segments = path.removeprefix("/v1/").split("/")
    if any(unquote(segment) in ("", ".", "..") for segment in segments):  # unquoted twice: the upstream may do so too
        raise HttpRefusal(400, "this address cannot be passed on")
    query: bytes = scope.get("query_string", b"")
    return raw.removeprefix(b"/v1") + (b"?" + query if query else b"")


def passed_headers(headers: Iterable[Header], *, without: frozenset[bytes] = frozenset()) -> list[Header]:
    """The headers of a message that are passed on."""
    pairs = list(headers)
    named = {name.strip().lower() for key, value in pairs if key.lower() == b"connection" for name in value.split(b",")}
    dropped = HOP_BY_HOP | named | without
    return [(key, value) for key, value in pairs if key.lower() not in dropped and not key.lower().startswith(OWN)]


class PassedAnswer(StreamingResponse):
    """The upstream's answer, passed on piece by piece; however it ends, the upstream's connection is given back."""

    def __init__(self, answer: httpcore.Response, more: Iterable[Header]) -> None:
        super().__init__(_pieces(answer), status_code=answer.status)
        self.answer = answer
        self.raw_headers = [*passed_headers(answer.headers), *more]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.answer.aclose()


async def _pieces(answer: httpcore.Response) -> AsyncIterator[bytes]:
    stream: Any = answer.aiter_stream()
    async for piece in stream:
        yield piece
