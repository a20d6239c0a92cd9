"""The OpenAI-compatible proxy: puts demonstrations in front of the last user turn of a chat, and passes on the rest.

No call of a user fails because of us: where choosing fails, takes too long or is not called for, the request is passed
on as it came, and where the upstream refuses the longer request, the original is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from leverplus.errors import LeverError
from leverplus.serve.access import NOTES, log_failure
from leverplus.serve.api import picture_content
from leverplus.serve.filters import FILTER_HEADER, read_filter
from leverplus.serve.guard import OWN_HEADER, bearer
from leverplus.serve.limits import BodyBudget, HttpRefusal, Overloaded, TooSlow, WorkQueue
from leverplus.serve.splice import ChatText, NoChat, read_chat
from leverplus.serve.upstream import Header, PassedAnswer, Upstream, passed_headers, target_of
from leverplus.view.guard import headers_of, read_upload

if TYPE_CHECKING:
    import httpcore
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive

    from leverplus.serve.metrics import Metrics
    from leverplus.serve.served import ServedSelector
    from leverplus.serve.settings import AccessToken, ServeSettings

CHAT = "/v1/chat/completions"
SHOTS_HEADER = "x-lever-shots"
REFUSED = (400, 413, 422)
"""What an upstream answers to a prompt that is too long, or to pictures it does not take."""

LONGEST_HEADER = 4000
"""Characters of the header that lists ids; ids that do not fit whole are left out."""


@dataclass(frozen=True)
class PreparedChat:
    """A chat as it is sent to the upstream: `outcome` is one of `metrics.OUTCOMES`."""

    content: bytes
    outcome: str
    ids: Sequence[str] = ()
    fingerprint: str = ""

    def headers(self) -> list[Header]:
        if self.outcome not in ("chosen", "none"):
            return [(b"x-lever-unchanged", self.outcome.encode())]
        return [(b"x-lever-demos", listed(self.ids)), (b"x-lever-fingerprint", self.fingerprint.encode())]


def listed(ids: Sequence[str]) -> bytes:
    """Ids for a header: percent-encoded, with commas between."""
    found: list[str] = []
    for name in ids:
        if len(name) > LONGEST_HEADER or len(",".join([*found, quote(name, safe="")])) > LONGEST_HEADER:
            break
        found.append(quote(name, safe=""))
    return ",".join(found).encode("ascii")


class OpenAIProxy:
    """Answers everything below /v1."""

    def __init__(
        self,
        settings: ServeSettings,
        served: ServedSelector,
        metrics: Metrics,
        *,
        queue: WorkQueue,
        bodies: BodyBudget,
        token: AccessToken | None,
    ) -> None:
        self.settings, self.served, self.metrics = settings, served, metrics
        self.queue, self.bodies, self.token = queue, bodies, token
        self.upstream = Upstream(settings.upstream, settings.upstream_seconds, settings.connections)

    async def answer(self, request: Request) -> Response:
        target = target_of(request.scope)
        with await self.bodies.read(request) as held:
            content = bytes(held)
            headers = self._headers(request)
            if request.method == "POST" and request.url.path == CHAT:
                return await self._chat(request, target, headers, content)
            return PassedAnswer(await self._ask(request, target, headers, content), [])

    async def _chat(self, request: Request, target: bytes, headers: list[Header], content: bytes) -> Response:
        prepared = await self._prepare(content, request.headers.get(SHOTS_HEADER), _joined(request, FILTER_HEADER))
        answer = await self._ask(request, target, headers, prepared.content)
        if prepared.content is not content and answer.status in REFUSED:
            await answer.aclose()
            prepared = PreparedChat(content, "refused")
            answer = await self._ask(request, target, headers, content)
        self.metrics.add("lever_proxy_chats_total", prepared.outcome)
        self.metrics.add("lever_demonstrations_shown_total", by=len(prepared.ids))
        request.scope[NOTES] |= {"outcome": prepared.outcome, "demos": len(prepared.ids)}
        return PassedAnswer(answer, prepared.headers())

    def _headers(self, request: Request) -> list[Header]:
        """The client's headers, its key among them; our own token is not given away."""
        dropped = {b"host", b"content-length", b"expect"}
        if self.token is not None and self.token.fits(bearer(headers_of(request.scope))):
            dropped.add(b"authorization")
        return passed_headers(request.scope["headers"], without=frozenset({*dropped, OWN_HEADER.encode()}))

    async def _ask(self, request: Request, target: bytes, headers: list[Header], content: bytes) -> httpcore.Response:
        """The upstream's answer; it is not asked any longer once the client has gone."""
        asking = asyncio.create_task(self.upstream.send(request.method, target, headers, content))
        gone = asyncio.create_task(_until_gone(request.receive))
        try:
            await asyncio.wait({asking, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise HttpRefusal(499, "the client went away")
            return asking.result()
        except HttpRefusal as refusal:
            if refusal.status != 499:
                self.metrics.add("lever_upstream_failures_total")
            raise
        finally:
            gone.cancel()
            asking.cancel()  # does nothing where it is done

    async def _prepare(self, content: bytes, shots: str | None, only: str | None) -> PreparedChat:
        """The request with demonstrations, or as it came with the reason."""
        started = time.perf_counter()
        try:
            return await self.queue.run(lambda _: self.choose(content, shots, only), self.settings.deadline_ms / 1000)
        except TooSlow:
            return PreparedChat(content, "deadline")
        except Overloaded:
            return PreparedChat(content, "busy")
        except NoChat:
            return PreparedChat(content, "unreadable")
        except LeverError:
            return PreparedChat(content, "error")
        except Exception as error:
            log_failure(error)  # a fault of ours, and still the user's call goes on
            return PreparedChat(content, "error")
        finally:
            self.metrics.observe("lever_select_seconds", "proxy", time.perf_counter() - started)

    def choose(self, content: bytes, shots: str | None, only: str | None = None) -> PreparedChat:
        """Runs in a thread: read the chat, choose, write the turns in."""
        if shots is not None and shots.strip() == "0":
            return PreparedChat(content, "off")
        chat = read_chat(content)
        if chat.is_conversation:
            return PreparedChat(content, "conversation")
        wanted = self.settings.shots if shots is None else _whole(shots)
        allowed = None if only is None else read_filter(only)
        selector = self.served.current()
        question, image = asked_of(chat)
        picture = None
        if image is not None and "image" in selector.source.rows.blocks:
            picture = read_upload(picture_content(image), self.settings.body_bytes, self.settings.pixels)
        fingerprint = selector.fingerprint
        demos = selector.select(question=question, image=picture, shots=wanted, allowed=allowed)
        if not demos:
            return PreparedChat(content, "none", (), fingerprint)
        longer = chat.with_turns(selector.turns(demos)).encode()
        return PreparedChat(longer, "chosen", tuple(demo.id for demo in demos), fingerprint)


def asked_of(chat: ChatText) -> tuple[str, str | None]:
    """The words of the last user turn, and its first picture where that stands in a data URL."""
    content = chat.messages[chat.last_user].get("content")
    if isinstance(content, str):
        return content, None
    if not isinstance(content, list):
        raise NoChat("the user turn has no content")
    parts = [part for part in content if isinstance(part, Mapping)]
    words = [part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]
    urls = [_url(part.get("image_url")) for part in parts if part.get("type") == "image_url"]
    inside = [url for url in urls if url is not None and url[:5].lower() == "data:"]
    return "\n".join(words), inside[0] if inside and urls[0] is inside[0] else None


def _url(value: Any) -> str | None:
    found = value.get("url") if isinstance(value, Mapping) else value
    return found if isinstance(found, str) else None


def _joined(request: Request, name: str) -> str | None:
    """A header as one text, with commas where it was sent several times."""
    return ",".join(request.headers.getlist(name)) if name in request.headers else None


def _whole(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and len(text.strip()) < 6):
        raise LeverError(f"{SHOTS_HEADER} must be a whole number")
    return int(text)


async def _until_gone(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
