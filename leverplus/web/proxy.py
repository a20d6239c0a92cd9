"""The OpenAI-compatible proxy: puts demonstrations in front of the last user turn of a chat, and passes on the rest.

No call of a user fails because of us: where choosing fails, takes too long or is not called for, the request is passed
on as it came, and where the upstream refuses the longer request, the original is sent. Answers are passed on as they
come; no redirect is followed, nothing is unpacked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import httpx
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from leverplus.data.fields import asked_in
from leverplus.data.parsing import parse_json
from leverplus.errors import LeverError
from leverplus.web.guard import bearer, headers_of
from leverplus.web.metrics import (
    CHATS,
    NOTES,
    SELECT_SECONDS,
    SHOWN,
    UPSTREAM_FAILURES,
    log_failure,
)
from leverplus.web.service import (
    Service,
    decoded_picture,
    filter_of,
    read_filter,
)

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from leverplus.arms.corpus import Corpus

CHAT = "/v1/chat/completions"
SHOTS_HEADER = "x-lever-shots"
REFUSED = (400, 413, 422)
"""What an upstream answers to a prompt that is too long, or to pictures it does not take."""
LONGEST_HEADER = 4000
"""Characters of the header that lists ids; ids that do not fit whole are left out."""
CONNECT_SECONDS = 10.0
KEPT_SECONDS = 4.0
"""An idle connection is used again within so many seconds: servers close them after five and more."""
UPSTREAM_SECONDS = 600.0
"""The longest silence of the upstream."""
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
"""Headers that hold for one connection only (RFC 9110, 7.6.1)."""
OURS = (b"host", b"content-length", b"expect")
"""Headers of a request that whoever sends it sets."""

Header = tuple[bytes, bytes]


class NoChat(ValueError):
    """A text that is not a chat request as this proxy understands it."""


@dataclass(frozen=True)
class PreparedChat:
    """A chat as it is sent to the upstream; `outcome` is chosen, none, or why it is passed on unchanged."""

    content: bytes
    outcome: str
    ids: tuple[str, ...] = ()
    fingerprint: str = ""

    def headers(self) -> list[Header]:
        if self.outcome not in ("chosen", "none"):
            return [(b"x-lever-unchanged", self.outcome.encode())]
        return [
            (b"x-lever-demos", listed(self.ids)),
            (b"x-lever-fingerprint", self.fingerprint.encode()),
        ]


def listed(ids: Iterable[str]) -> bytes:
    """Ids for a header: percent-encoded, with commas between."""
    text = ""
    for name in ids:
        longer = f"{text},{quote(name, safe='')}".removeprefix(",")
        if len(longer) > LONGEST_HEADER:
            break
        text = longer
    return text.encode("ascii")


class OpenAIProxy:
    """Answers everything below /v1 from the server at `url`."""

    def __init__(self, service: Service, url: str) -> None:
        self.service = service
        try:
            self.url = httpx.URL(url)
        except httpx.InvalidURL:
            self.url = httpx.URL("")
        if self.url.scheme not in ("http", "https") or not self.url.host:
            raise LeverError(
                f"--upstream {url[:200]}: give the address of an API, such as http://127.0.0.1:8000/v1"
            )
        if self.url.userinfo or self.url.query or self.url.fragment:
            raise LeverError(
                "--upstream: give the address alone; clients send their own keys"
            )
        self.timeout = httpx.Timeout(CONNECT_SECONDS, read=UPSTREAM_SECONDS)
        limits = httpx.Limits(keepalive_expiry=KEPT_SECONDS)
        self.client = httpx.AsyncClient(limits=limits, trust_env=False)

    async def answer(self, request: Request) -> Response:
        content = await request.body()
        if request.method != "POST" or request.url.path != CHAT:
            return PassedAnswer(await self._ask(request, content), [])
        shots = request.headers.get(SHOTS_HEADER)
        prepared = await self._prepare(content, shots, filter_of(request))
        answer = await self._ask(request, prepared.content)
        if prepared.content is not content and answer.status_code in REFUSED:
            await answer.aclose()
            prepared = PreparedChat(content, "refused")
            answer = await self._ask(request, content)
        count = len(prepared.ids)
        CHATS.labels(prepared.outcome).inc()
        SHOWN.inc(count)
        request.scope[NOTES] |= {"outcome": prepared.outcome, "demos": count}
        return PassedAnswer(answer, prepared.headers())

    async def _ask(self, request: Request, content: bytes) -> httpx.Response:
        """The head of the upstream's answer; it is not asked any longer once the client has gone."""
        token = self.service.token
        dropped: tuple[bytes, ...] = OURS
        if token is not None and token.fits(bearer(headers_of(request.scope))):
            dropped = (*OURS, b"authorization")  # our own token is not given away
        path = self.url.raw_path.rstrip(b"/") + target_of(request.scope)
        passed = httpx.Request(
            request.method,
            self.url.copy_with(raw_path=path),
            headers=passed_headers(request.scope["headers"], *dropped),
            content=content or None,
            extensions={"timeout": self.timeout.as_dict()},
        )
        asking = asyncio.create_task(self.client.send(passed, stream=True))
        gone = asyncio.create_task(_until_gone(request.receive))
        try:
            await asyncio.wait({asking, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise HTTPException(499, "the client went away")
            return asking.result()
        except httpx.TransportError as error:
            UPSTREAM_FAILURES.inc()
            status = 502
            said = "the upstream cannot be reached, or broke the connection"
            if isinstance(error, httpx.TimeoutException):
                status = 504
                said = "the upstream did not answer in time"
            raise HTTPException(status, said) from None
        finally:
            gone.cancel()
            asking.cancel()  # does nothing where it is done

    async def _prepare(
        self, content: bytes, shots: str | None, only: str | None
    ) -> PreparedChat:
        """The request with demonstrations, or as it came with the reason."""
        outcome = "error"
        try:
            with SELECT_SECONDS.labels("proxy").time():
                seconds = self.service.settings.deadline_ms / 1000
                work = self.service.work
                return await work.run(
                    lambda _: self.choose(content, shots, only), seconds
                )
        except HTTPException as refusal:
            outcome = "busy"
            if refusal.status_code == 504:
                outcome = "deadline"
        except NoChat:
            outcome = "unreadable"
        except LeverError:
            pass
        except Exception as error:
            log_failure(error)  # a fault of ours, and still the user's call goes on
        return PreparedChat(content, outcome)

    def choose(
        self, content: bytes, shots: str | None, only: str | None = None
    ) -> PreparedChat:
        """Runs in a thread: read the chat, choose, write the turns in."""
        if shots is not None and shots.strip() == "0":
            return PreparedChat(content, "off")
        body = read_chat(content)
        messages = body["messages"]
        roles = [message.get("role") for message in messages]
        if {"assistant", "tool", "function"} & set(roles):
            # the caller's own shots, or a talk under way
            return PreparedChat(content, "conversation")
        if "user" not in roles:
            raise NoChat("there is no user turn")
        last = len(roles) - 1 - roles[::-1].index("user")
        question, image = asked_of(messages[last])
        wanted = self.service.settings.shots if shots is None else _whole(shots)
        selector = self.service.served.current()
        picture = None
        if image is not None and _sees_pictures(selector.source.corpus):
            picture = decoded_picture(image, self.service.settings)
        fingerprint = selector.fingerprint
        allowed = None if only is None else read_filter(only)
        demos = selector.select(
            question=question, image=picture, shots=wanted, allowed=allowed
        )
        if not demos:
            return PreparedChat(content, "none", (), fingerprint)
        messages[last:last] = selector.turns(demos)
        longer = json.dumps(body).encode()
        ids = tuple(demo.id for demo in demos)
        return PreparedChat(longer, "chosen", ids, fingerprint)


def _sees_pictures(corpus: Corpus) -> bool:
    """Whether the demonstrations have pictures: a bundle keeps no vectors of them where its arm compares words alone."""
    if "image" in corpus.blocks:
        return True
    first = corpus.items(corpus.open_rows()[:1])
    return any(item.image is not None for item in first.values())


def read_chat(content: bytes) -> dict[str, Any]:
    """The body of a chat request, whose messages are objects; NoChat where it is none."""
    try:
        body: Any = parse_json(content)
    except (ValueError, RecursionError) as error:
        raise NoChat(type(error).__name__) from None
    if not isinstance(body, dict):
        raise NoChat("it is no object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise NoChat("it has no messages")
    if not all(isinstance(message, dict) for message in messages):
        raise NoChat("a message is no object")
    return body


def asked_of(message: Mapping[str, Any]) -> tuple[str, str | None]:
    """The words of a user turn, and its first picture where that stands in a data URL."""
    if not isinstance(message.get("content"), (str, list)):
        raise NoChat("the user turn has no content")
    words, urls = asked_in(message)
    image = str(next(iter(urls), ""))
    if image[:5].lower() != "data:":
        return words, None
    return words, image


def _whole(text: str) -> int:
    number = text.strip()
    if not number.isdecimal() or len(number) > 5:
        raise LeverError(f"{SHOTS_HEADER} must be a whole number")
    return int(number)


async def _until_gone(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def target_of(scope: Scope) -> bytes:
    """The part of a request's address that is passed on: what follows /v1, and its query, as they were written."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = unquote(raw.decode("ascii", "replace"))
    # unquoted twice: the upstream may do so too
    segments = set(map(unquote, path.removeprefix("/v1/").split("/")))
    odd = any(ord(sign) < 32 or sign in "\\\x7f" for sign in path)
    climbs = not segments.isdisjoint(("", ".", ".."))
    if odd or climbs or not raw.startswith(b"/v1/"):
        raise HTTPException(400, "this address cannot be passed on")
    target = raw.removeprefix(b"/v1")
    if query := scope.get("query_string", b""):
        target += b"?" + query
    return target


def passed_headers(headers: Iterable[Header], *dropped: bytes) -> list[Header]:
    """The headers of a message that are passed on."""
    pairs = list(headers)
    connection = {*HOP_BY_HOP, *dropped}
    for key, value in pairs:
        if key.lower() == b"connection":
            connection.update(map(bytes.strip, value.lower().split(b",")))
    kept = []
    for key, value in pairs:
        name = key.lower()
        if name not in connection and not name.startswith(b"x-lever-"):
            kept.append((key, value))
    return kept


class PassedAnswer(StreamingResponse):
    """The upstream's answer, passed on piece by piece; however it ends, the upstream's connection is given back."""

    def __init__(self, answer: httpx.Response, more: Iterable[Header]) -> None:
        super().__init__(answer.aiter_raw(), answer.status_code)
        self.answer = answer
        # the server that answers the client says when
        self.raw_headers = [*passed_headers(answer.headers.raw, b"date"), *more]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.answer.aclose()
