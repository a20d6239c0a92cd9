"""Asking a server: paced, retried, counted, and with the key kept out of every message.

Answers that may be better next time (busy, failing, unreachable, not understood) are asked for again after a pause that
doubles and is drawn at random, or as long as the server says; all threads keep a pause that the server asks for.
"""

from __future__ import annotations

import importlib
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leverplus.errors import LeverError, ScoringError
from leverplus.recipe.model import ModelSection

AGAIN = frozenset({408, 409, 425, 429, *range(500, 600)})
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
LONGEST_WAIT = 600.0
"""A server that asks for more is busy for long, or has no money left: the user should know."""

SHOWN = 300
"""Characters of a server's words that are shown."""


class Refused(ScoringError):
    """The server will not do this, however often it is asked; `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Again(Exception):
    """Worth another attempt; `pause` is what the server asked for, in seconds."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


@dataclass
class Spent:
    """What was asked of a server: requests (repeated ones too), tokens, and money where prices are given."""

    requests: int = 0
    repeated: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


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
    """Posts JSON to a server and gives back JSON; `spent` counts."""

    def __init__(self, section: ModelSection, pace: Pace | None = None) -> None:
        self.section = section
        self.pace = pace or Pace(section.rate)
        self.spent = Spent()
        self._lock = threading.Lock()
        self._jitter = random.Random()  # moves pauses only, never a result
        self._key = _key(section.key_env)
        try:
            self._openai: Any = importlib.import_module("openai")
        except ImportError as error:
            raise LeverError("the openai backend needs its package; type `pip install 'leverplus[api]'`") from error
        self._client = self._openai.OpenAI(
            api_key=self._key or "none", base_url=section.url, timeout=section.timeout, max_retries=0
        )

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The server's answer to a request; ScoringError when it stays away, Refused when it says no."""
        reply = self._persist(lambda: self._client.post(path, cast_to=object, body=dict(body)), path)
        self._count(reply)
        return reply

    def models(self) -> list[dict[str, Any]]:
        """What the server says it serves; empty where it does not say."""
        try:
            listed = self._persist(lambda: self._client.get("/models", cast_to=object), "/models").get("data")
        except Refused as error:
            if error.status in (401, 403):
                raise
            return []
        return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []

    def _persist(self, ask: Callable[[], object], path: str) -> dict[str, Any]:
        section = self.section
        for attempt in range(section.retries + 1):
            self._afford()
            self.pace.wait()
            try:
                return self._once(ask, path)
            except _Again as again:
                if attempt == section.retries:
                    raise ScoringError(
                        f"{section.url}{path} did not answer in {attempt + 1} attempts: {again}; what was committed "
                        "stays: run it again when the server is well, or raise model.retries or model.timeout"
                    ) from None
                self._pause(again, attempt)
        raise AssertionError("a request has at least one attempt")

    def _once(self, ask: Callable[[], object], path: str) -> dict[str, Any]:
        openai = self._openai
        with self._lock:
            self.spent.requests += 1
        try:
            reply = ask()
        except openai.APITimeoutError:
            raise _Again(f"no answer within model.timeout = {self.section.timeout:g} s") from None
        except openai.APIConnectionError as error:
            raise _Again(self._shown(f"cannot be reached ({error.__cause__ or error})")) from None
        except openai.APIStatusError as error:
            words = self._words(error)
            if error.status_code in AGAIN:
                raise _Again(words, _retry_after(error.response.headers)) from None
            raise Refused(self._refusal(error.status_code, words, path), error.status_code) from None
        except (openai.APIError, ValueError) as error:  # a body that is cut short, or no JSON
            raise _Again(self._shown(f"its answer is not understood ({error})")) from None
        if not isinstance(reply, dict):
            raise _Again("its answer is not a JSON object")
        return reply

    def _pause(self, again: _Again, attempt: int) -> None:
        with self._lock:
            self.spent.repeated += 1
            drawn = self._jitter.uniform(0.5, 1.0)
        if again.pause is not None and again.pause > LONGEST_WAIT:
            raise ScoringError(
                f"{self.section.url} asks to wait {again.pause:.0f} s ({again}); what was committed stays: run it later"
            )
        if again.pause is not None:
            self.pace.hold(again.pause)
        else:
            self.pace.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * drawn)

    def _count(self, reply: Mapping[str, Any]) -> None:
        asked, written = usage_of(reply)
        if not asked and self.section.price_in + self.section.price_out:
            raise ScoringError(
                f"{self.section.url} does not count tokens, so what it costs cannot be known; take out model.price_in, "
                "model.price_out and model.max_cost to go on without"
            )
        with self._lock:
            self.spent.prompt_tokens += asked
            self.spent.completion_tokens += written
            self.spent.cost += (asked * self.section.price_in + written * self.section.price_out) / 1e6

    def _afford(self) -> None:
        limit = self.section.max_cost
        if limit and self.spent.cost >= limit:
            raise ScoringError(
                f"model.max_cost = {limit:g} is spent ({self.spent.cost:.2f}); what was committed stays, "
                "raise model.max_cost to go on"
            )

    def _refusal(self, status: int, words: str, path: str) -> str:
        section = self.section
        if status in (401, 403):
            if not section.key_env:
                return f"{section.url} wants a key ({words}); name its environment variable in model.key_env"
            return f"{section.url} refuses the key in the environment variable {section.key_env} ({words})"
        return f"{section.url}{path} refuses: {words}"

    def _words(self, error: Any) -> str:
        body = error.body
        inner = body.get("error", body) if isinstance(body, Mapping) else None
        said = inner.get("message") if isinstance(inner, Mapping) else inner
        text = " ".join(str(said or body or error.message).split())
        return self._shown(f"status {error.status_code}, {text}")

    def _shown(self, text: str) -> str:
        """The beginning of what a server said, without the key it may repeat; no part of a key is left by the cut."""
        return (text.replace(self._key, "***") if self._key else text)[:SHOWN]


def usage_of(reply: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens read and written, as the server counts them; 0 where it does not."""
    usage = reply.get("usage")
    counts = usage if isinstance(usage, Mapping) else {}
    asked, written = counts.get("prompt_tokens"), counts.get("completion_tokens")
    return (asked if isinstance(asked, int) else 0), (written if isinstance(written, int) else 0)


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

    value = headers.get("retry-after-ms")
    if value and value.replace(".", "", 1).isdigit():
        return float(value) / 1000.0
    value = headers.get("retry-after", "").strip()
    if value.replace(".", "", 1).isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time()) if value else None
    except ValueError:
        return None
