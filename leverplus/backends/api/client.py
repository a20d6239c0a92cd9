"""Asking a server: paced, retried, counted as replies come, and with the key kept out of every message.

Answers that may be better next time (busy, failing, unreachable, not understood) are asked for again after a pause that
doubles and is drawn at random, or as long as the server says; all threads keep a pause that the server asks for.
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

from leverplus.backends.api.account import Account, Part, part_key
from leverplus.backends.api.wire import NoReply, Raw, Unread, Wire
from leverplus.errors import LeverError, ScoringError, plain
from leverplus.recipe.model import ModelSection

Answer = TypeVar("Answer")
Reader = Callable[[dict[str, Any]], Any]
"""Makes of a reply what is needed of it, something that JSON can hold; ScoringError when it cannot be used."""

RETRY_STATUSES = frozenset({408, 409, 425, 429, *range(500, 600)})
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
LONGEST_WAIT = 600.0
"""A server that asks for more is busy for long, or has no money left: the user should know."""

MOST_TOKENS = 1 << 40
"""No request takes as many; a server that says so does not count."""

SHOWN = 300
"""Characters of a server's words that are shown."""


class Refused(ScoringError):
    """The server will not do this, however often it is asked; `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Halted(ScoringError):
    """Nothing more is asked because something else failed, which says why."""


class _Again(Exception):
    """Worth another attempt; `pause` is what the server asked for, in seconds."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


@dataclass
class Pace:
    """When the next request may leave: evenly spaced, and not before a pause the server asked for is over."""

    per_minute: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _next: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self) -> None:
        with self._lock:
            start = max(self.clock(), self._next)
            self._next = start + (60.0 / self.per_minute if self.per_minute else 0.0)
        delay = start - self.clock()
        if delay > 0:
            self.sleep(delay)

    def hold(self, seconds: float) -> None:
        """Nobody asks for so many seconds from now."""
        with self._lock:
            self._next = max(self._next, self.clock() + seconds)


class Client:
    """Posts JSON to a server and reads what comes back; every attempt is in the account. `halt` ends its waiting."""

    def __init__(self, section: ModelSection, pace: Pace | None = None, account: Account | None = None) -> None:
        self.section = section
        self.account = Account() if account is None else account
        self.halt = threading.Event()
        self.pace = pace or Pace(section.rate, sleep=self._sleep)
        self._lock = threading.Lock()
        self._jitter = random.Random()  # moves pauses only, never a result
        self._key = _key(section.key_env)
        self._wire = Wire(section.url, self._key, section.timeout)
        self._model: str | None = None
        self._uncounted = False

    def post(self, path: str, body: Mapping[str, Any], read: Reader = lambda reply: reply) -> Part:
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
            if error.status in (401, 403):
                raise
            return []
        return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []

    def _send_with_retries(self, ask: Callable[[bool], Answer], path: str) -> Answer:
        section = self.section
        for attempt in range(section.retries + 1):
            self.pace.wait()
            self._afford()  # after the wait: others may have spent the rest, or failed, meanwhile
            try:
                return ask(attempt > 0)
            except _Again as again:
                if attempt == section.retries:
                    raise ScoringError(
                        f"{section.url}{path} did not answer in {attempt + 1} attempts: {again}; what was committed "
                        "stays: run it again when the server is well, or raise model.retries or model.timeout"
                    ) from None
                self._pause(again, attempt)
        raise AssertionError("a request has at least one attempt")

    def _list_models(self, again: bool) -> dict[str, Any]:
        """Nothing is charged for the list, so that it is counted as a request only."""
        self.account.sent(again=again)
        try:
            raw = self._wire.ask("GET", "/models")
        except NoReply as error:
            raise _Again(self._shown(str(error))) from None
        finally:
            self.account.settled()
        self._check_status(raw, "/models")
        return self._parsed(raw)

    def _ask(self, path: str, content: bytes, key: str, read: Reader, again: bool) -> Part:
        """One attempt, settled in the account whatever comes of it."""
        self.account.sent(again=again)
        bill: dict[str, Any] = {"unpriced": 1}  # what holds if this attempt ends in an unforeseen way
        try:
            raw = self._wire.ask("POST", path, content)
            bill = {}
            self._check_status(raw, path)
            bill = {"unpriced": 1}
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
            return Part(value, tokens)
        except NoReply as error:
            bill = {"unpriced": 1} if error.sent else {}
            raise _Again(self._shown(str(error))) from None
        except Unread as error:
            bill = {"unpriced": 1} if error.sent else {}
            raise
        finally:
            self.account.settled(**bill)

    def _check_status(self, raw: Raw, path: str) -> None:
        if 200 <= raw.status < 300:
            return
        words = self._words(raw)
        if raw.status in RETRY_STATUSES:
            raise _Again(words, _retry_after(raw.headers))
        raise Refused(self._refusal(raw.status, words, path), raw.status)

    def _parsed(self, raw: Raw) -> dict[str, Any]:
        try:
            reply = json.loads(raw.body)
        except (
            ValueError,
            RecursionError,
        ) as error:  # cut short, no JSON, no Unicode, a number of 5,000 digits, nested
            raise _Again(self._shown(f"its answer is not understood ({error})")) from None
        if not isinstance(reply, dict):
            raise _Again("its answer is not a JSON object")
        return reply

    def _bill(self, reply: Mapping[str, Any]) -> dict[str, Any]:
        """What a reply cost. Where prices are given and it states no tokens, it is kept and is the last one."""
        section, (asked, written) = self.section, usage_of(reply)
        if not asked:
            self._uncounted = bool(section.price_in + section.price_out)
            return {"unpriced": 1}
        cost = (asked * section.price_in + written * section.price_out) / 1e6
        return {"prompt_tokens": asked, "completion_tokens": written, "cost": cost}

    def _check_model(self, reply: Mapping[str, Any]) -> None:
        """One model answers throughout: its name may differ from the one asked for (a dated one), but not change."""
        name = reply.get("model")
        if not isinstance(name, str):
            return
        with self._lock:
            known = self._model = self._model or name
        if name != known:
            raise ScoringError(
                f"{self.section.url} answered as {self._shown(known)!r} before and as {self._shown(name)!r} now, so "
                "scores would be mixed; name the exact model in model.name"
            )

    def _pause(self, again: _Again, attempt: int) -> None:
        with self._lock:
            drawn = self._jitter.uniform(0.5, 1.0)
        if again.pause is not None and again.pause > LONGEST_WAIT:
            raise ScoringError(
                f"{self.section.url} asks to wait {again.pause:.0f} s ({again}); what was committed stays: run it later"
            )
        if again.pause is not None:
            self.pace.hold(again.pause)
        else:
            self.pace.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * drawn)

    def _sleep(self, seconds: float) -> None:
        self.halt.wait(seconds)

    def _afford(self) -> None:
        """Nothing leaves when others failed, when the limit is reached, or when nobody knows what it costs."""
        section, spent = self.section, self.account.take.cost
        if self.halt.is_set():
            raise Halted(f"{section.url} was not asked any more")
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
                return f"{section.url} wants a key ({words}); name its environment variable in model.key_env"
            return f"{section.url} refuses the key in the environment variable {section.key_env} ({words})"
        return f"{section.url}{path} refuses: {words}"

    def _words(self, raw: Raw) -> str:
        """What a server said with a status; its JSON message where there is one."""
        text = raw.body[: 1 << 16].decode("utf-8", "replace")
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            body = None
        inner = body.get("error", body) if isinstance(body, Mapping) else None
        said = inner.get("message") if isinstance(inner, Mapping) else inner
        return self._shown(f"status {raw.status}, {' '.join(str(said or text).split())}")

    def _shown(self, text: str) -> str:
        """The beginning of what a server said, without the key it may repeat; no part of a key is left by the cut."""
        return plain(text.replace(self._key, "***") if self._key else text)[:SHOWN]


def usage_of(reply: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens read and written, as the server counts them; 0 where it does not, or states what cannot be."""
    usage = reply.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    asked, written = counts.get("prompt_tokens"), counts.get("completion_tokens") or 0
    return (asked, written) if _is_count(asked) and _is_count(written) else (0, 0)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS


def _key(variable: str) -> str:
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise LeverError(
            f"model.key_env = {variable}: this environment variable is not set; type `export {variable}=...`"
        )
    return key


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date."""
    from email.utils import parsedate_to_datetime

    value = headers.get("retry-after-ms", "").strip()
    if _is_number(value):
        return float(value) / 1000.0
    value = headers.get("retry-after", "").strip()
    if _is_number(value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time()) if value else None
    except (ValueError, OverflowError):
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdigit()
