"""Sends requests to a server: paced, retried, counted in the account, and with the key kept out of every message.

A request that may succeed next time (server busy, failing, unreachable, not understood) is sent again after a pause
that doubles and is drawn at random, or as long as the server says; all threads keep a pause that the server asks for.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar

from leverplus.backends.api.account import Account, ReplyPart, part_key
from leverplus.backends.api.room import is_too_long
from leverplus.backends.api.wire import NoReply, RawReply, UnreadableReply, Wire
from leverplus.errors import LeverError, ScoringError, plain
from leverplus.recipe.model import ModelSection

Answer = TypeVar("Answer")
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


class Refused(ScoringError):
    """The server refuses, and would refuse again; `status` is its HTTP status, `words` what it said."""

    def __init__(self, message: str, status: int, words: str = "") -> None:
        super().__init__(message)
        self.status, self.words = status, words


class RequestHalted(ScoringError):
    """This request was not sent because another failed, whose error says why."""


class _TryAgain(Exception):
    """An attempt failed and another may succeed; `pause` is what the server asked for, in seconds.

    `unreached`: no server was there to ask.
    """

    def __init__(self, reason: str, pause: float | None = None, *, unreached: bool = False) -> None:
        super().__init__(reason)
        self.pause, self.unreached = pause, unreached


@dataclass
class RequestPace:
    """When the next request may leave: evenly spaced, and not before a pause the server asked for is over."""

    per_minute: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _next: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self) -> None:
        with self._lock:
            start = max(self.clock(), self._next)
            spacing = 60.0 / self.per_minute if self.per_minute else 0.0
            self._next = start + spacing
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

    def __init__(self, section: ModelSection, pace: RequestPace | None = None, account: Account | None = None) -> None:
        self.section = section
        self.account = Account() if account is None else account
        self.halt = threading.Event()
        self.pace = pace or RequestPace(section.rate, sleep=self._sleep)
        self._lock = threading.Lock()
        self._jitter = random.Random()  # moves pauses only, never a result
        self._key = _key_from_environment(section.key_env)
        self._wire = Wire(section.url, self._key, section.timeout)
        self._model: str | None = None
        self._uncounted = False

    def post(self, path: str, body: Mapping[str, Any], read: Reader = lambda reply: reply) -> ReplyPart:
        """What `read` makes of the server's answer, and its tokens.

        An answer that an earlier take paid for is used first. ScoringError when the server stays away or `read` does
        not accept its answer, Refused when it says no.
        """
        key = part_key(path, body)
        earlier = self.account.earlier_part(key)
        if earlier is not None:
            return earlier
        content = json.dumps(body).encode()
        return self._send_with_retries(lambda again: self._ask(path, content, key, read, again), path)

    def models(self) -> list[dict[str, Any]]:
        """What the server says it serves; empty where it does not say."""
        try:
            listed = self._send_with_retries(self._list_models, "/models").get("data")
        except Refused as error:
            if error.status in (401, 403):  # a wrong key would be refused for every prompt too
                raise
            return []
        if not isinstance(listed, list):
            return []
        return [row for row in listed if isinstance(row, dict)]

    def beside(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """What the server says beside its /v1, where some have what OpenAI's API lacks; None where it does not.

        Nothing there is charged for, so the account counts it as a request only.
        """
        if not self._wire.url.endswith("/v1"):
            return None
        self.pace.wait()
        self.account.sent(again=False)
        try:
            content = b"" if body is None else json.dumps(body).encode()
            raw = self._wire.ask("GET" if body is None else "POST", path, content, above=True)
            self._check_status(raw, path)
            return self._parsed(raw)
        except (NoReply, UnreadableReply, Refused, _TryAgain):
            return None
        finally:
            self.account.settled()

    def _send_with_retries(self, ask: Callable[[bool], Answer], path: str) -> Answer:
        section = self.section
        for attempt in range(section.retries + 1):
            self.pace.wait()
            self._check_may_ask()  # after the wait, in which other threads may have spent the rest, or failed
            try:
                return ask(attempt > 0)
            except _TryAgain as again:
                if attempt == section.retries:
                    raise ScoringError(
                        f"{section.url}{path} did not answer in {attempt + 1} attempts: {again}; what was committed "
                        f"stays: {_what_to_do(again, section.url)}"
                    ) from None
                self._pause(again, attempt)
        raise AssertionError("a request has at least one attempt")

    def _list_models(self, again: bool) -> dict[str, Any]:
        """One attempt to read the list of models; it is free, so the account counts it as a request only."""
        self.account.sent(again=again)
        try:
            raw = self._wire.ask("GET", "/models")
        except NoReply as error:
            raise _TryAgain(self._safe_to_show(str(error)), unreached=not error.sent) from None
        finally:
            self.account.settled()
        self._check_status(raw, "/models")
        return self._parsed(raw)

    def _ask(self, path: str, content: bytes, key: str, read: Reader, again: bool) -> ReplyPart:
        """One attempt, settled in the account whatever comes of it."""
        self.account.sent(again=again)
        # At each step `bill` is what holds if the attempt ends there; `finally` writes it into the account.
        bill: dict[str, Any] = {"unpriced": 1}
        try:
            raw = self._wire.ask("POST", path, content)
            bill = {}  # a refusal is not charged for
            self._check_status(raw, path)
            bill = {"unpriced": 1}  # an answer that cannot be parsed is charged for, and nobody knows how much
            reply = self._parsed(raw)
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
        except NoReply as error:
            bill = {"unpriced": 1} if error.sent else {}
            raise _TryAgain(self._safe_to_show(str(error)), unreached=not error.sent) from None
        except UnreadableReply as error:
            bill = {"unpriced": 1} if error.sent else {}
            raise
        finally:
            self.account.settled(**bill)

    def _check_status(self, raw: RawReply, path: str) -> None:
        if 200 <= raw.status < 300:
            return
        words = self._message_of(raw)
        if raw.status in RETRY_STATUSES and not is_too_long(words):  # older servers say 500 to what will never fit
            raise _TryAgain(words, _retry_after(raw.headers))
        raise Refused(self._refusal(raw.status, words, path), raw.status, words)

    def _parsed(self, raw: RawReply) -> dict[str, Any]:
        try:
            reply = json.loads(raw.body)
        # ValueError: cut short, no JSON, no Unicode, a number of 5,000 digits; RecursionError: nested too deeply
        except (ValueError, RecursionError) as error:
            raise _TryAgain(self._safe_to_show(f"its answer is not understood ({error})")) from None
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
        cost = (asked * section.price_in + written * section.price_out) / 1e6  # prices are per million tokens
        return {"prompt_tokens": asked, "completion_tokens": written, "cost": cost}

    def _check_model(self, reply: Mapping[str, Any]) -> None:
        """Refuse a reply of another model than before.

        The name may differ from the one asked for (servers answer with a dated one), but it must not change.
        """
        name = reply.get("model")
        if not isinstance(name, str):
            return
        with self._lock:
            if not self._model:
                self._model = name
            known = self._model
        if name != known:
            earlier, now = self._safe_to_show(known), self._safe_to_show(name)
            raise ScoringError(
                f"{self.section.url} answered as {earlier!r} before and as {now!r} now, so "
                "scores would be mixed; name the exact model in model.name"
            )

    def _pause(self, again: _TryAgain, attempt: int) -> None:
        with self._lock:
            drawn = self._jitter.uniform(0.5, 1.0)  # so that threads that failed together do not come back together
        if again.pause is not None and again.pause > LONGEST_WAIT:
            raise ScoringError(
                f"{self.section.url} asks to wait {again.pause:.0f} s ({again}); all answers so far are "
                "stored: type the same command later"
            )
        if again.pause is not None:
            self.pace.hold(again.pause)
        else:
            self.pace.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * drawn)

    def _sleep(self, seconds: float) -> None:
        self.halt.wait(seconds)  # ends early when another thread fails

    def _check_may_ask(self) -> None:
        """Raise where no request may leave: another failed, the money is spent, or nobody knows what it costs."""
        section, spent = self.section, self.account.take.cost
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

    def _refusal(self, status: int, words: str, path: str) -> str:
        section = self.section
        if status in (401, 403):
            if not section.key_env:
                named = "name its environment variable in model.key_env (`lever fit --key-env NAME`)"
                return f"{section.url} wants a key ({words}); {named}"
            return f"{section.url} refuses the key in the environment variable {section.key_env} ({words})"
        return f"{section.url}{path} refuses: {words}"

    def _message_of(self, raw: RawReply) -> str:
        """What a server said with its status: the message in its JSON where there is one, else the text."""
        text = raw.body[: 1 << 16].decode("utf-8", "replace")  # 64 KiB hold any message
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            body = None
        inner = body.get("error", body) if isinstance(body, Mapping) else None
        said = inner.get("message") if isinstance(inner, Mapping) else inner
        return self._safe_to_show(f"status {raw.status}, {' '.join(str(said or text).split())}")

    def _safe_to_show(self, text: str) -> str:
        """The beginning of what a server said, without the key it may repeat."""
        if self._key:
            text = text.replace(self._key, "***")  # before the cut, which could leave the first half of a key
        return plain(text)[:MOST_SHOWN]


def usage_of(reply: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens read and written, as the server counts them; (0, 0) where it does not, or states what cannot be."""
    usage = reply.get("usage")
    if not isinstance(usage, Mapping):
        return 0, 0
    asked, written = usage.get("prompt_tokens"), usage.get("completion_tokens") or 0
    if _is_count(asked) and _is_count(written):
        return asked, written
    return 0, 0


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS


def _what_to_do(again: _TryAgain, url: str) -> str:
    """What mends a server that stayed away."""
    if again.unreached:
        return (
            f"check that the server runs and that its address is right (--model of lever fit, model.url in a recipe; "
            f"`curl {url}/models` must answer), then type the same command; a server that is still starting needs a "
            "larger model.retries"
        )
    return "run it again when the server is well, or raise model.retries or model.timeout in the recipe's [model]"


def _key_from_environment(variable: str) -> str:
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise LeverError(
            f"model.key_env = {variable}: this environment variable is not set; type `export {variable}=...`"
        )
    return key


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait: retry-after-ms (OpenAI's), or Retry-After, a number or a date."""
    from email.utils import parsedate_to_datetime

    value = headers.get("retry-after-ms", "").strip()
    if _is_number(value):
        return float(value) / 1000.0
    value = headers.get("retry-after", "").strip()
    if _is_number(value):
        return float(value)
    if not value:
        return None
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdigit()
