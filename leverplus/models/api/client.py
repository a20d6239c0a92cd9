"""Sends requests to a server: paced, retried, counted in the account, and with the key kept out of every message.

A request that may succeed next time (server busy, failing, unreachable, not understood) is sent again after a pause
that doubles and is drawn at random, or as long as the server says; all threads keep a pause that the server asks for.
`model.timeout` holds for a whole attempt: a server that sends a byte now and then does not extend it. Redirects are not
followed: prompts would go to a server that the user did not name. Requests run in an event loop of their own, because
only there can httpx be stopped at any moment; the thread that asks waits for its reply.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, TypeGuard

import httpx

from leverplus.errors import LeverError, ScoringError, plain
from leverplus.models.api.account import Account, ReplyPart, part_key
from leverplus.models.room import is_too_long
from leverplus.models.settings import ModelSection

Reader = Callable[[dict[str, Any]], Any]
"""Takes from a reply what is needed, as something that JSON can hold; ScoringError where it cannot be used."""

RETRY_STATUSES = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Timeout, conflict, too early, too many requests, and every failure of the server itself."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds
LONGEST_WAIT = 600.0
"""Seconds. A server that asks for more is busy for long, or the user's credit is used up: the user should know."""

MOST_TOKENS = 1 << 40
"""No request takes as many: a server that states more does not count them."""

MOST_SHOWN = 300
"""Characters of a server's message that are shown."""

MOST_BYTES = 64 << 20
"""The most bytes of a reply, unpacked. The log-probabilities of 60 answers after 2,000 tokens each take about 12 MB."""


class Refused(ScoringError):
    """The server refuses, and would refuse again; `status` is its HTTP status, `words` what it said."""

    def __init__(self, message: str, status: int, words: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.words = words


class RequestHalted(ScoringError):
    """This request was not sent because another failed, whose error says why."""


class _TryAgain(Exception):
    """An attempt failed and another may succeed; `pause` is what the server asked for, in seconds.

    `sent`: the request may have reached the server, which may charge for it.
    """

    def __init__(
        self, reason: str, *, pause: float | None = None, sent: bool = True
    ) -> None:
        super().__init__(reason)
        self.pause = pause
        self.sent = sent


class RequestPace:
    """When the next request may leave: evenly spaced, and not before a pause the server asked for is over."""

    def __init__(
        self,
        per_minute: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self.spacing = 60.0 / per_minute if per_minute else 0.0
        self.clock = clock
        self.sleep = sleep
        self._next, self._lock = 0.0, threading.Lock()

    def wait(self) -> None:
        with self._lock:
            start = max(self.clock(), self._next)
            self._next = start + self.spacing
        # The lock is not held while sleeping, so that other threads can take the slots after this one.
        delay = start - self.clock()
        if delay > 0:
            self.sleep(delay)

    def hold(self, seconds: float) -> None:
        """Let no thread send a request for so many seconds from now."""
        with self._lock:
            self._next = max(self._next, self.clock() + seconds)


class Client:
    """Posts JSON to a server and reads what comes back; every attempt is in the account. `halt` ends its waiting."""

    def __init__(
        self,
        section: ModelSection,
        pace: RequestPace | None = None,
        account: Account | None = None,
    ) -> None:
        self.section, self.url = section, section.url.rstrip("/")
        self.account = Account() if account is None else account
        self.halt = threading.Event()  # ends pauses early when another thread fails
        self.pace = pace or RequestPace(section.rate, sleep=self.halt.wait)
        self._jitter = random.Random()  # moves pauses only, never a result
        self._key = _key_from_environment(section.key_env)
        self._model: str | None = None
        self._uncounted = False
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        try:
            # Connections go through the proxy that the environment names for this server, if any.
            self._http = httpx.AsyncClient(
                headers=headers, limits=unlimited, timeout=None
            )
        except (ValueError, ImportError) as error:
            raise LeverError(
                f"the proxy that the environment names cannot be used ({error}); name another, or unset the variable"
            ) from error
        self._loop = _running_loop(os.getpid())
        weakref.finalize(self, _close, self._http, self._loop)

    def post(
        self, path: str, body: Mapping[str, Any], read: Reader = lambda reply: reply
    ) -> ReplyPart:
        """What `read` makes of the server's answer, and its tokens.

        An answer that an earlier take paid for is used first. ScoringError when the server stays away or `read` does
        not accept its answer, Refused when it says no.
        """
        key = part_key(path, body)
        return self.account.earlier_part(key) or self._ask(
            "POST", path, body, key, read
        )

    def models(self) -> list[dict[str, Any]]:
        """What the server says it serves; empty where it does not say."""
        try:
            listed = self._ask("GET", "/models").value.get("data")
        except Refused as error:
            # a wrong key would be refused for every prompt too
            if error.status in (401, 403):
                raise
            return []
        rows = listed if isinstance(listed, list) else []
        return [row for row in rows if isinstance(row, dict)]

    def count_tokens(self, text: str, **prompt: Any) -> int | None:
        """Tokens of a prompt as the server counts them for nothing beside its /v1; None where it does not.

        vLLM counts `prompt` or `messages`, llama.cpp a text.
        """
        if not self.url.endswith("/v1"):
            return None
        body = {"model": self.section.name, "content": text, **prompt}
        address = self.url.removesuffix("/v1") + "/tokenize"
        self.pace.wait()
        try:
            reply = self._attempt("POST", address, body).value
        except (ScoringError, _TryAgain):
            return None
        count = reply.get("count")
        tokens = reply.get("tokens")
        if isinstance(tokens, list) and not _is_count(count):
            count = len(tokens)
        if _is_count(count) and count:
            return count
        return None

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        key: str = "",
        read: Reader | None = None,
    ) -> ReplyPart:
        """Attempts until one succeeds; without a `key` the request is not charged for."""
        section = self.section
        for attempt in range(section.retries + 1):
            self.pace.wait()
            # after the wait, in which other threads may have spent the rest, or failed
            self._check_may_ask()
            try:
                return self._attempt(
                    method, self.url + path, body, key, read, again=attempt > 0
                )
            except _TryAgain as again:
                if attempt == section.retries:
                    raise ScoringError(
                        f"{section.url}{path} did not answer in {attempt + 1} attempts: {again}; what was committed "
                        f"stays: check that the server is well and that its address is right (`curl {section.url}/models` "
                        "must answer), then type the same command, or raise model.retries or model.timeout"
                    ) from None
                self._pause(again, attempt)
        raise AssertionError("a request has at least one attempt")

    def _attempt(
        self,
        method: str,
        address: str,
        body: Mapping[str, Any] | None,
        key: str = "",
        read: Reader | None = None,
        *,
        again: bool = False,
    ) -> ReplyPart:
        """One attempt, settled in the account whatever comes of it."""
        # At each step `bill` is what holds if the attempt ends there; `finally` writes it into the account.
        unknown: dict[str, Any] = {"unpriced": 1} if key else {}
        bill = unknown
        self.account.sent(again=again)
        try:
            asked = self._exchange(method, address, json.dumps(body).encode())
            response, content = asyncio.run_coroutine_threadsafe(
                asked, self._loop
            ).result()
            bill = {}  # a refusal is not charged for
            self._check_status(response, content)
            bill = unknown
            reply = self._parsed(address, content)
            if read is None:
                return ReplyPart(reply, 0)
            bill = self._bill(reply)
            tokens = bill.get("prompt_tokens", 0) + bill.get("completion_tokens", 0)
            try:
                self._check_model(reply)
                value = read(reply)
            except ScoringError:
                bill["lost"] = int("unpriced" not in bill)
                raise
            bill |= {"key": key, "value": value, "tokens": tokens}
            return ReplyPart(value, tokens)
        except _TryAgain as error:
            if not error.sent:
                bill = {}
            raise
        finally:
            self.account.settled(**bill)

    async def _exchange(
        self, method: str, address: str, content: bytes
    ) -> tuple[httpx.Response, bytes]:
        """Send a request and read the whole reply, up to `MOST_BYTES` and a little more."""
        sent = False
        body = bytearray()

        async def note(event: str, _info: Mapping[str, Any]) -> None:
            """What httpx calls at each step."""
            nonlocal sent
            sent = sent or event.endswith("send_request_headers.started")

        try:
            async with (
                asyncio.timeout(self.section.timeout),
                self._http.stream(
                    method, address, content=content, extensions={"trace": note}
                ) as response,
            ):
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > MOST_BYTES:
                        break
                return response, bytes(body)
        except TimeoutError:
            reason = f"no answer within model.timeout = {self.section.timeout:g} s"
        except (httpx.RequestError, httpx.InvalidURL) as error:
            reason = "cannot be reached"
            if sent:
                reason = "the connection broke"
            reason += f" ({error or type(error).__name__})"
        raise _TryAgain(self._safe_to_show(reason), sent=sent)

    def _check_status(self, response: httpx.Response, content: bytes) -> None:
        status = response.status_code
        address = response.url
        if response.is_success:
            return
        if response.is_redirect:
            to = response.headers.get("location", "nowhere")[:200]
            raise ScoringError(
                f"{address} redirects to {to}, where nothing was sent; set model.url to the address that answers, if "
                "you trust it"
            )
        words = self._message_of(status, content)
        # older servers say 500 to what will never fit
        if status in RETRY_STATUSES and not is_too_long(words):
            raise _TryAgain(words, pause=_retry_after(response.headers))
        variable = self.section.key_env
        if status not in (401, 403):
            said = f"{address} refuses: {words}"
        elif variable:
            said = f"{self.url} refuses the key in the environment variable {variable} ({words})"
        else:
            said = (
                f"{self.url} wants a key ({words}); name its environment variable in model.key_env (`lever fit "
                "--key-env NAME`)"
            )
        raise Refused(said, status, words)

    def _parsed(self, address: str, content: bytes) -> dict[str, Any]:
        if len(content) > MOST_BYTES:
            raise ScoringError(
                f"{address} sent a reply of more than {MOST_BYTES >> 20} MiB, which was not read; is model.url the "
                "address of an /v1 API?"
            )
        try:
            reply = json.loads(content)
        # ValueError: cut short, no JSON, no Unicode, a number of 5,000 digits; RecursionError: nested too deeply
        except (ValueError, RecursionError) as error:
            reason = f"its answer is not understood ({error})"
            raise _TryAgain(self._safe_to_show(reason)) from None
        if not isinstance(reply, dict):
            raise _TryAgain("its answer is not a JSON object")
        return reply

    def _bill(self, reply: Mapping[str, Any]) -> dict[str, Any]:
        """What a reply cost. Where prices are given and it states no tokens, it is kept, and no more are asked for."""
        section = self.section
        asked, written = usage_of(reply)
        if not asked:
            self._uncounted = bool(section.price_in + section.price_out)
            return {"unpriced": 1}
        # prices are per million tokens
        cost = (asked * section.price_in + written * section.price_out) / 1e6
        return {"prompt_tokens": asked, "completion_tokens": written, "cost": cost}

    def _check_model(self, reply: Mapping[str, Any]) -> None:
        """Refuse a reply of another model than before.

        The name may differ from the one asked for (servers answer with a dated one), but it must not change.
        """
        name = reply.get("model")
        if not isinstance(name, str):
            return
        known = self._model = self._model or name
        if name != known:
            earlier = self._safe_to_show(known)
            now = self._safe_to_show(name)
            raise ScoringError(
                f"{self.section.url} answered as {earlier!r} before and as {now!r} now, so scores would be mixed; name "
                "the exact model in model.name"
            )

    def _pause(self, again: _TryAgain, attempt: int) -> None:
        if again.pause is None:
            # so that threads that failed together do not come back together
            drawn = self._jitter.uniform(0.5, 1.0)
            self.pace.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * drawn)
        elif again.pause > LONGEST_WAIT:
            raise ScoringError(
                f"{self.section.url} asks to wait {again.pause:.0f} s ({again}); all answers so far are "
                "stored: type the same command later"
            )
        else:
            self.pace.hold(again.pause)

    def _check_may_ask(self) -> None:
        """Raise where no request may leave: another failed, the money is spent, or nobody knows what it costs."""
        section = self.section
        spent = self.account.take.cost
        if self.halt.is_set():
            raise RequestHalted(f"{section.url} was not asked any more")
        if self._uncounted:
            raise ScoringError(
                f"{section.url} does not count tokens, so what it costs cannot be known; take out model.price_in, "
                "model.price_out and model.max_cost to go on without"
            )
        if section.max_cost and spent >= section.max_cost:
            raise ScoringError(
                f"model.max_cost = {section.max_cost:g} is spent ({spent:.2f}); every reply that was paid for is kept: "
                "type the same command to spend as much again, or raise model.max_cost"
            )

    def _message_of(self, status: int, content: bytes) -> str:
        """What a server said with its status: the message in its JSON where there is one, else the text."""
        text = content[: 1 << 16].decode("utf-8", "replace")  # 64 KiB hold any message
        try:
            said = json.loads(text)
            said = said.get("error", said)
            said = said.get("message")
        except (ValueError, RecursionError, AttributeError):
            said = text
        return self._safe_to_show(f"status {status}, {' '.join(str(said).split())}")

    def _safe_to_show(self, text: str) -> str:
        """The beginning of what a server said, without the key it may repeat."""
        if self._key:
            # before the cut, which could leave the first half of a key
            text = text.replace(self._key, "***")
        return plain(text)[:MOST_SHOWN]


def usage_of(reply: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens read and written, as the server counts them; (0, 0) where it does not, or states what cannot be."""
    usage = reply.get("usage")
    if not isinstance(usage, Mapping):
        return 0, 0
    asked = usage.get("prompt_tokens")
    written = usage.get("completion_tokens") or 0
    if _is_count(asked) and _is_count(written):
        return (asked, written)
    return (0, 0)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MOST_TOKENS


def _key_from_environment(variable: str) -> str:
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise LeverError(
            f"model.key_env = {variable}: this environment variable is not set; type `export {variable}=...`"
        )
    return key


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait: a number, or a date."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.replace(".", "", 1).isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _close(client: httpx.AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
    """Close a client's connections where they live."""
    asyncio.run_coroutine_threadsafe(client.aclose(), loop)


@lru_cache(maxsize=4)
def _running_loop(_process: int) -> asyncio.AbstractEventLoop:
    """An event loop that runs in a thread of this process; a forked process gets its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(
        target=loop.run_forever, name="leverplus-http", daemon=True
    ).start()
    return loop
