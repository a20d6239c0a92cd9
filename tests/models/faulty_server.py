"""The speaking server, failing in every way that a server can fail, and keeping books on what it charges.

A fault is played on the third and fourth request that it fits. `charged` says whether the server charges for a request
on which it plays the fault, `told` whether its price can be read from what it sends.
"""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from speaking_server import MODEL, Handler, Served, serving

SLOW = 3.0
"""Longer than a test waits for one attempt in which the server hangs."""


@dataclass(frozen=True)
class Fault:
    play: Callable[[FaultyHandler, dict[str, Any]], None]
    charged: bool = True
    told: bool = False
    used: bool = False
    closes: bool = False
    """Ends the connection without a word: the next request on it may get lost before the server reads it."""
    fits: str = "any"
    """"weigh": requests for log-probabilities, "write": for an answer."""


@dataclass
class Books(Served):
    fault: Fault | None = None
    times_left: int = 2
    posts: int = 0
    tokens: list[tuple[int, int]] = field(default_factory=list)
    untold: int = 0
    used_untold: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def cost(self, price_in: float, price_out: float) -> float:
        return (
            sum(
                asked * price_in + written * price_out for asked, written in self.tokens
            )
            / 1e6
        )


class FaultyHandler(Handler):
    served: Books
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        served = self.served
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        kind = "weigh" if body.get("echo") else "write"
        with served.lock:
            served.asked.append((self.path, body))
            served.posts += 1
            fault = served.fault
            plays = (
                fault is not None
                and fault.fits in ("any", kind)
                and served.posts > 3
                and served.times_left > 0
            )
            served.times_left -= plays
        time.sleep(served.delay)
        self.ready: dict[str, Any] = {}
        self._complete(body)
        usage = (
            self.ready["usage"]["prompt_tokens"],
            self.ready["usage"]["completion_tokens"],
        )
        if plays and fault is not None:
            with served.lock:
                if fault.charged and fault.told:
                    served.tokens.append(usage)
                elif fault.charged:
                    served.untold += 1
                    served.used_untold += fault.used
            try:
                fault.play(self, self.ready)
            except OSError:
                self.close_connection = True
            return
        with served.lock:
            served.tokens.append(usage)
        self.whole(json.dumps(self.ready).encode())

    def _send(
        self, status: int, value: Any, headers: Mapping[str, str] | None = None
    ) -> None:
        if self.command == "POST" and status == 200:
            self.ready = {**value, "model": MODEL}
        else:
            super()._send(status, value, headers)

    def whole(self, content: bytes, status: int = 200, **headers: str) -> None:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        kind = named.pop("content-type", "application/json")
        self._send_bytes(status, content, named, kind)

    def raw(self, content: bytes) -> None:
        self.wfile.write(content)
        self.wfile.flush()
        self.close_connection = True

    def reset(self) -> None:
        """Break the connection with RST instead of ending it."""
        self.connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.connection.shutdown(socket.SHUT_RD)
        self.rfile.close()
        self.wfile.close()
        self.connection.close()
        self.close_connection = True

    def drip(self, content: bytes) -> None:
        for byte in content:
            self.raw(bytes([byte]))
            if self.served.over.wait(0.1):
                return

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True  # whoever asked went away

    def hang(self) -> None:
        self.served.over.wait(SLOW)
        self.close_connection = True


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


def sized(content: bytes, more: int = 0) -> bytes:
    return HEAD + f"content-length: {len(content) + more}\r\n\r\n".encode() + content


def chunked(content: bytes) -> bytes:
    return (
        HEAD
        + b"transfer-encoding: chunked\r\n\r\n"
        + f"{len(content):x}\r\n".encode()
        + content
        + b"\r\n"
    )


def status(
    code: int, body: bytes = b'{"error": {"message": "fault"}}', **headers: str
) -> Fault:
    return Fault(lambda self, _: self.whole(body, code, **headers), charged=False)


def text(
    content: bytes | Callable[[bytes], bytes],
    *,
    told: bool = False,
    used: bool = False,
    **headers: str,
) -> Fault:
    """A status of 200 with another body; a function makes it of the right one."""

    def play(self: FaultyHandler, reply: dict[str, Any]) -> None:
        right = json.dumps(reply).encode()
        self.whole(content(right) if callable(content) else content, **headers)

    return Fault(play, told=told, used=used)


def connection(
    act: Callable[[FaultyHandler, bytes], object], *, told: bool = False
) -> Fault:
    return Fault(
        lambda self, reply: act(self, json.dumps(reply).encode()) and None,
        told=told,
        closes=True,
    )


def shape(
    change: Callable[[dict[str, Any]], Any],
    fits: str = "any",
    *,
    told: bool = True,
    used: bool = False,
) -> Fault:
    """The right reply with something changed in it."""

    def play(self: FaultyHandler, reply: dict[str, Any]) -> None:
        change(reply)
        self.whole(json.dumps(reply).encode())

    return Fault(play, told=told, used=used, fits=fits)


def choice(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda reply: reply["choices"][0].update(values)


def last_logprob(value: Any) -> Fault:
    return shape(
        lambda reply: reply["choices"][0]["logprobs"]["token_logprobs"].__setitem__(
            -1, value
        ),
        "weigh",
    )


def logprobs(**values: Any) -> Fault:
    return shape(lambda reply: reply["choices"][0]["logprobs"].update(values), "weigh")


def usage(value: Any) -> Fault:
    """A price that cannot be read: the reply is used all the same, and nothing further is asked."""
    return shape(lambda reply: reply.update(usage=value), told=False, used=True)


FAULTS: dict[str, Fault] = {
    **{f"status {code}": status(code) for code in (408, 429, 500, 503, 599)},
    **{f"refusal {code}": status(code) for code in (400, 401, 404, 422)},
    "429, wait 0 s": status(429, retry_after="0"),
    "429, wait nonsense": status(429, retry_after="\xb2 soon \xff"),
    "429, wait until a strange date": status(
        429, retry_after="Mon, 99 Foo 99999 99:99:99 GMT"
    ),
    "502 with HTML": status(502, b"<html>bad gateway</html>", content_type="text/html"),
    "500 with escapes": status(
        500, b'{"error": {"message": "\\u001b[2J\\u001b]0;owned\\u0007"}}'
    ),
    "500 with nested JSON": status(500, b"[" * 50_000),
    **{
        f"redirect {code}": status(code, b"", location="http://127.0.0.1:9/v1")
        for code in (301, 307)
    },
    "closes before the head": connection(lambda self, _: self.raw(b"")),
    "resets in the body": connection(
        lambda self, right: (self.raw(sized(right)[: -len(right) // 2]), self.reset())
    ),
    "closes in the body": connection(
        lambda self, right: self.raw(sized(right)[: -len(right) // 2])
    ),
    "hangs before the head": connection(lambda self, _: self.hang()),
    "hangs in the head": connection(lambda self, _: (self.raw(HEAD[:30]), self.hang())),
    "hangs in the body": connection(
        lambda self, right: (self.raw(sized(right)[:-20]), self.hang())
    ),
    "drips its head": connection(lambda self, right: self.drip(sized(right))),
    "drips its body": connection(
        lambda self, right: (self.raw(sized(right)[:-60]), self.drip(right[-60:]))
    ),
    "speaks no HTTP": connection(lambda self, _: self.raw(b"SSH-2.0-OpenSSH_9.6\r\n")),
    "says more than it announced": connection(
        lambda self, right: self.raw(sized(right) + b"{}{}"), told=True
    ),
    "announces more than it says": connection(
        lambda self, right: self.raw(sized(right, more=9))
    ),
    "sends chunks": connection(
        lambda self, right: self.raw(chunked(right) + b"0\r\n\r\n"), told=True
    ),
    "cuts its chunks": connection(lambda self, right: self.raw(chunked(right)[:-9])),
    "sends chunks of no size": connection(
        lambda self, right: self.raw(
            chunked(right).replace(b"\r\n\r\n", b"\r\n\r\nzz", 1)
        )
    ),
    "sends a head of 1 MB": connection(
        lambda self, _: self.raw(HEAD + b"x-long: " + b"x" * 1_000_000)
    ),
    "an empty body": text(b""),
    "a word": text(b'"hello"'),
    "HTML": text(b"<html>maintenance</html>", content_type="text/html"),
    "half of the JSON": text(lambda right: right[: len(right) // 2]),
    "a mark of byte order": text(lambda right: b"\xef\xbb\xbf" + right, told=True),
    "no Unicode": text(lambda right: right.replace(b"model", b"mod\xff\xfe", 1)),
    "gzip": text(gzip.compress, told=True, content_encoding="gzip"),
    "gzip that is none": text(b"\x1f\x8b" + b"x" * 50, content_encoding="gzip"),
    "cut gzip": text(lambda right: gzip.compress(right)[:-20], content_encoding="gzip"),
    "a bomb of gzip": text(gzip.compress(b" " * (2 << 20)), content_encoding="gzip"),
    "an unknown packing": text(b"xxxx", content_encoding="br"),
    "a giant body": text(b" " * (2 << 20)),
    "nested 100,000 deep": text(b'{"a":' * 100_000),
    "a number of 5,000 digits": text(
        lambda right: right[:-1] + b', "n": ' + b"9" * 5000 + b"}"
    ),
    "another model": shape(lambda reply: reply.update(model="speaker-2")),
    "a model that is no text": shape(lambda reply: reply.update(model=7), used=True),
    **{
        f"choices {value!r}": shape(lambda reply, v=value: reply.update(choices=v))
        for value in (None, {}, [None])
    },
    "a choice too many": shape(
        lambda reply: reply["choices"].append(reply["choices"][0])
    ),
    "a choice too few": shape(lambda reply: reply["choices"].pop()),
    **{
        f"text {value!r}": shape(choice(text=value), "write") for value in (7, {"a": 1})
    },
    "no text": shape(choice(text=None), "write", used=True),
    "escapes": shape(choice(text="\x1b[2J\x1b]0;owned\x07"), "write", used=True),
    **{
        f"logprobs {value!r}": shape(choice(logprobs=value), "weigh")
        for value in (None, 7, {})
    },
    **{f"tokens {value!r}": logprobs(tokens=value) for value in (7, [None])},
    **{
        f"token_logprobs {value!r}": logprobs(token_logprobs=value)
        for value in (None, [-1.0])
    },
    "too many log-probabilities": logprobs(token_logprobs=[-0.1] * 400),
    **{
        f"log-probability {value!r:.12}": last_logprob(value)
        for value in (None, "x", True, 0.5, 2e-5, 10**400)
    },
    "log-probability NaN": last_logprob(float("nan")),
    "log-probability -inf": last_logprob(float("-inf")),
    "log-probability 1e400": shape(
        lambda reply: reply["choices"][0]["logprobs"]["token_logprobs"].__setitem__(
            -1, 10.0**308 * 10
        ),
        "weigh",
    ),
    "numbers of choices twice": shape(
        lambda reply: [own.update(index=0) for own in reply["choices"]], "weigh"
    ),
    "numbers of choices are huge": shape(
        lambda reply: [own.update(index=10**30) for own in reply["choices"]], "weigh"
    ),
    "no numbers of choices": shape(
        lambda reply: [own.pop("index") for own in reply["choices"]], "weigh"
    ),
    **{
        f"usage {value!r:.20}": usage(value)
        for value in (None, 7, {"prompt_tokens": "12"}, {"prompt_tokens": -5})
    },
    "usage in parts of tokens": usage({"prompt_tokens": 1.5, "completion_tokens": 1}),
    "usage beyond all measure": usage(
        {"prompt_tokens": 10**30, "completion_tokens": 1}
    ),
    "negative tokens written": usage({"prompt_tokens": 5, "completion_tokens": -5}),
}


@contextmanager
def faulty(fault: Fault | None = None, **options: Any) -> Iterator[Books]:
    """A server that plays this fault; who still hangs when the test is over is let go."""
    served = Books(fault=fault, **options)
    with serving(FaultyHandler, served):
        try:
            yield served
        finally:
            served.over.set()
