"""Lets requests in: to this service's own names, from no foreign page, with the token where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from leverplus.serve.limits import error_response
from leverplus.serve.settings import AccessToken, ServeSettings
from leverplus.view.guard import HEADERS, Guard, headers_of

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Scope

STRICT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
OWN_HEADER = "x-lever-token"
"""Takes our token where `Authorization` holds the upstream's key."""


def is_open(path: str) -> bool:
    """Paths that need no token: whether it lives, and the page, which holds nothing of the bundle."""
    return path in ("/", "/healthz", "/readyz") or path.startswith("/assets/")


def bearer(headers: Mapping[str, str]) -> bytes:
    """The token of an Authorization header; empty where it is of another kind."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip().encode("latin-1") if kind.lower() == "bearer" else b""


class ServiceGuard(Guard):
    """Refuses foreign hosts and origins, wrong tokens, and bodies that say they are too large, before reading them."""

    headers: Mapping[str, str] = {**HEADERS, "content-security-policy": STRICT_POLICY}

    def __init__(self, app: ASGIApp, settings: ServeSettings, token: AccessToken | None) -> None:
        super().__init__(app, settings.host, settings.names)
        self.settings, self.token = settings, token

    def refused(self, status: int, reason: str) -> Response:
        # what follows a request that is not plain HTTP may be meant to pass for another client's: nobody reads it
        more = {401: {"www-authenticate": "Bearer"}, 400: {"connection": "close"}}
        return error_response(status, reason, more.get(status, {}))

    def refusal(self, scope: Scope) -> tuple[int, str]:
        headers = headers_of(scope)
        if reason := self.foreign(scope, headers):
            return 403, reason
        if not self.may_pass(scope["path"], headers):
            return 401, f"Send the service's token, as `Authorization: Bearer TOKEN` or `{OWN_HEADER}: TOKEN`."
        if "content-length" in headers and "transfer-encoding" in headers:
            return 400, "The request says in two ways where its body ends."
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            return 400, "The length of the body is not a number."
        if len(length) > 15 or int(length) > self.settings.body_bytes:
            return 413, f"The request is too large; at most {self.settings.body_mb:g} MB are taken."
        return 0, ""

    def may_pass(self, path: str, headers: Mapping[str, str]) -> bool:
        if self.token is None or is_open(path):
            return True
        own = headers.get(OWN_HEADER, "").strip().encode("latin-1")
        # both are compared, whichever was sent, so that the time does not depend on it
        by_header, by_bearer = self.token.fits(own), self.token.fits(bearer(headers))
        return by_header or by_bearer
