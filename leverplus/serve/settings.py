"""The settings of a service: one record that the command line fills and every worker process gets."""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass

from leverplus.errors import LeverError

TOKEN_VARIABLE = "LEVER_TOKEN"
SHORTEST_TOKEN = 16
"""Characters; `openssl rand -hex 32` gives 64."""


@dataclass(frozen=True)
class ServeSettings:
    """Limits are per worker process, except `workers` itself."""

    bundle: str
    host: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    """Names besides its own that the service answers to, such as that of a reverse proxy."""
    upstream: str = ""
    shots: int | None = None
    """Demonstrations the proxy puts in; None: as many as the bundle recommends."""
    deadline_ms: int = 1000
    """The proxy waits so long for a choice, then passes the request on unchanged."""
    upstream_seconds: float = 600.0
    """The longest silence of the upstream."""
    seconds: float = 10.0
    """The longest time of one request to the JSON API."""
    threads: int = 2
    queue: int = 64
    """Requests that may wait for a thread; more are told to come back (503)."""
    workers: int = 1
    body_mb: float = 20.0
    memory_mb: float = 256.0
    """Bodies of all requests together that are held at one time."""
    megapixels: float = 16.0
    connections: int = 512
    read_only: bool = False
    log: bool = True
    counters: str = ""
    """The file in which workers count together; empty: each for itself."""

    @property
    def body_bytes(self) -> int:
        return int(self.body_mb * 1_000_000)

    @property
    def pixels(self) -> int:
        return int(self.megapixels * 1_000_000)


class AccessToken:
    """Compares tokens in a time that does not tell how much of a guess was right; keeps only a digest."""

    def __init__(self, secret: str) -> None:
        self._digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()

    def fits(self, guess: bytes) -> bool:
        return hmac.compare_digest(hashlib.sha256(guess).digest(), self._digest)


def read_token(*, loopback: bool) -> AccessToken | None:
    """The token of the environment; required where others than this machine can connect."""
    secret = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not secret:
        if loopback:
            return None
        raise LeverError(
            f"others could reach this address, so it needs a token; type "
            f"`export {TOKEN_VARIABLE}=$(openssl rand -hex 32)`, or leave --host out to serve this machine only"
        )
    if len(secret) < SHORTEST_TOKEN:
        raise LeverError(
            f"{TOKEN_VARIABLE} has {len(secret)} characters, fewer than {SHORTEST_TOKEN}, and could be guessed; "
            f"type `export {TOKEN_VARIABLE}=$(openssl rand -hex 32)`"
        )
    return AccessToken(secret)
