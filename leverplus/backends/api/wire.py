"""Sends one HTTP request and reads its reply: within a deadline, bounded in size, only from the server that was named.

`timeout` holds for the whole attempt: connecting, sending, waiting and reading. A server that sends a byte now and then
does not extend it. Redirects are not followed: prompts would go to a server that the user did not name.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies, proxy_bypass

from leverplus.errors import LeverError, ScoringError

if TYPE_CHECKING:
    import ssl

try:
    import httpcore
except ImportError as error:
    raise LeverError("the openai backend needs a package for HTTP; type `pip install 'leverplus[api]'`") from error

MOST_BYTES = 64 << 20
"""The most bytes of a reply, unpacked. The log-probabilities of 60 answers after 2,000 tokens each take about 12 MB."""

PIECE = 64 << 10
"""Bytes sent at a time; the deadline is checked between two pieces."""

_REDIRECTS = range(300, 400)


class NoReply(Exception):
    """No reply came, or half of one. `sent`: the request may have reached the server, which may charge for it."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class UnreadableReply(ScoringError):
    """A reply that must not be read, and asking again would not help (a redirect, too large); `sent` as above."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True)
class RawReply:
    """A reply as it came, not parsed; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Wire:
    """Sends requests below one address; several threads may use it."""

    def __init__(self, url: str, key: str, timeout: float) -> None:
        self.url, self.timeout = url.rstrip("/"), timeout
        self._deadline = _Deadline()
        self._headers: dict[bytes | str, bytes | str] = {
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "identity",
            "user-agent": "leverplus",
        }
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._pool = _open_pool(self.url, _TimedBackend(self._deadline))

    def ask(self, method: str, path: str, content: bytes = b"", *, above: bool = False) -> RawReply:
        """The reply to one request; NoReply when none came whole in time, Unread when it must not be read.

        `above`: the path lies beside /v1, not below it.
        """
        self._deadline.at = time.monotonic() + self.timeout
        try:
            address = (self.url.removesuffix("/v1") if above else self.url) + path
            with self._pool.stream(method, address, headers=self._headers, content=content) as reply:
                headers = {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in reply.headers}
                if reply.status in _REDIRECTS:
                    raise UnreadableReply(
                        f"{self.url}{path} redirects to {headers.get('location', 'nowhere')[:200]}, where nothing was "
                        "sent; set model.url to the address that answers, if you trust it",
                        sent=False,
                    )
                return RawReply(reply.status, headers, self._body(reply.iter_stream(), headers, path))
        except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.ProxyError) as error:
            raise NoReply(f"cannot be reached ({error})", sent=False) from None
        except httpcore.TimeoutException:
            raise NoReply(f"no answer within model.timeout = {self.timeout:g} s", sent=True) from None
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise NoReply(f"the connection broke ({error or type(error).__name__})", sent=True) from None

    def _body(self, pieces: Iterable[bytes], headers: Mapping[str, str], path: str) -> bytes:
        """The whole body, unpacked; a few bytes that would unpack to gigabytes are not."""
        body, unpack = bytearray(), _unpacker(headers.get("content-encoding", ""))
        try:
            for piece in pieces:
                if unpack is None:
                    body += piece
                else:
                    # One byte more than allowed tells a reply that is too large from one that just fits.
                    body += unpack.decompress(piece, MOST_BYTES + 1 - len(body))
                if len(body) > MOST_BYTES:
                    raise UnreadableReply(
                        f"{self.url}{path} sent a reply of more than {MOST_BYTES >> 20} MiB, which was not read; is "
                        "model.url the address of an /v1 API?",
                        sent=True,
                    )
        except zlib.error as error:
            raise NoReply(f"its answer cannot be unpacked ({error})", sent=True) from None
        return bytes(body)

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.close()


class _Deadline(threading.local):
    """When the request of this thread must be over, as a reading of `time.monotonic`; each thread has its own."""

    at = 0.0

    def left(self, timeout_error: type[Exception]) -> float:
        seconds = self.at - time.monotonic()
        if seconds <= 0:
            raise timeout_error
        return seconds


class _TimedBackend(httpcore.NetworkBackend):
    """Opens connections on which every step may take what is left of the thread's time, whatever httpcore passes."""

    def __init__(self, deadline: _Deadline) -> None:
        self._inner, self._deadline = httpcore.SyncBackend(), deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the thread's deadline decides
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = self._deadline.left(httpcore.ConnectTimeout)
        return _TimedStream(self._inner.connect_tcp(host, port, left, local_address, socket_options), self._deadline)


class _TimedStream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._inner, self._deadline = inner, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        return self._inner.read(max_bytes, self._deadline.left(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        for start in range(0, len(buffer), PIECE):
            self._inner.write(buffer[start : start + PIECE], self._deadline.left(httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        left = self._deadline.left(httpcore.ConnectTimeout)
        return _TimedStream(self._inner.start_tls(ssl_context, server_hostname, left), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _open_pool(url: str, backend: _TimedBackend) -> httpcore.ConnectionPool:
    """Connections to a server, through the proxy that the environment names for it, if any."""
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    proxy = None if proxy_bypass(host) else getproxies().get(scheme)
    if proxy is None:
        return httpcore.ConnectionPool(max_connections=None, network_backend=backend)
    if not proxy.startswith(("http://", "https://")):
        raise LeverError(
            "the proxy that the environment names does not speak HTTP; name another one, or unset the variable"
        )
    return httpcore.HTTPProxy(proxy, max_connections=None, network_backend=backend)


def _unpacker(encoding: str) -> Any:
    """An object that unpacks a body piece by piece; None where it is not packed. Servers are asked not to pack."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in ("gzip", "x-gzip", "deflate"):
        raise NoReply(f"its answer is packed by '{encoding[:40]}', which was not asked for", sent=True)
    return zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: zlib tells gzip from zlib by the first bytes
