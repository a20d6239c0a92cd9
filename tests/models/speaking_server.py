"""A small server that speaks the protocol of OpenAI-compatible servers, log-probabilities of prompts included.

Its model knows capitals and colours: it reads the last question, looks at the real pixels of the last picture, and
weighs every token by a fixed rule. Some capitals come to its mind only after a demonstration whose answer has an even
number of letters, some colours only after a demonstration of the same one. A question that was shown with an answer is
answered so. It can be told to fail in the ways that servers fail.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

from PIL import Image

CAPITALS = {
    "france": "paris",
    "italy": "rome",
    "peru": "lima",
    "cuba": "havana",
    "kenya": "nairobi",
    "japan": "tokyo",
}
CAPITALS |= {"spain": "madrid", "norway": "oslo"}
HALF_KNOWN = {"iran": "tehran", "ghana": "accra", "chad": "ndjamena", "mali": "bamako"}
CAPITALS |= HALF_KNOWN
COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 200, 40),
    "blue": (30, 40, 220),
    "white": (240, 240, 240),
}
PLAIN_COLOURS = ("red", "green")
MODEL = "speaker-1"
_TOKEN = re.compile(r"<\|[a-z_]+\|>| ?[A-Za-z]+| ?[^\sA-Za-z]|\s")


def tokens_of(text: str) -> list[str]:
    return _TOKEN.findall(text)


def colour_of(url: str) -> str:
    """The name of the colour that is nearest to the mean of a picture."""
    data = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(data)) as picture:
        one = picture.convert("RGB").resize((1, 1), Image.Resampling.BOX)
    mean = one.getpixel((0, 0))

    def distance(name: str) -> int:
        return sum((a - b) ** 2 for a, b in zip(mean, COLOURS[name], strict=True))

    return min(COLOURS, key=distance)


def weight(token: str, truth: str, before: str = "") -> float:
    """The log-probability of a token: high for the truth and for what ends an answer, else by its letters.

    `before` is the token before: nothing ends in the middle of the truth.
    """
    words = truth.split()
    ends = token in ("\n", "<|end|>")
    if ends and before.strip() in words[:-1]:
        return -6.0
    if ends or token.strip() in words:
        return -0.125
    return -2.0 - hashlib.sha256(token.encode()).digest()[0] / 64


def weights(tokens: Sequence[str], truth: str) -> list[float]:
    """The log-probabilities of all tokens but the first."""
    return [weight(token, truth, before) for before, token in pairwise(tokens)]


@dataclass
class Served:
    """What the server did and what it shall do. `faults` are played first, one a request."""

    url: str = ""
    key: str | None = None
    weighs: bool = True
    silent: bool = False
    nothing_there: bool = False
    delay: float = 0.0
    faults: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    under_way: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def chat_text(messages: Sequence[Mapping[str, Any]], generate: bool) -> tuple[str, str]:
    """The text of a chat as its template writes it, and the truth of the last question."""
    text, truth, shown, asked = "", "", {}, ("", None)
    for message in messages:
        content, picture = message["content"], None
        if isinstance(content, list):
            shown_picture, words = content
            picture, content = shown_picture["image_url"]["url"], words["text"]
        if message["role"] == "user":
            asked = (content, picture)
            truth = shown.get(asked) or truth_of(content, list(shown.values()), picture)
        elif message["role"] == "assistant":
            shown[asked] = content
        text += f"<|{message['role']}|>{content}<|end|>\n"
    return text + ("<|assistant|>" if generate else ""), truth


def truth_of(
    question: str, shown: Sequence[str] = (), picture: str | None = None
) -> str:
    if picture is not None:
        colour = colour_of(picture)
        return colour if colour in PLAIN_COLOURS or colour in shown else "dunno"
    country = re.findall(r"capital of ([a-z]+)", question)
    if not country:
        return "2"
    reminded = any(len(answer) % 2 == 0 for answer in shown)
    known = reminded or country[-1] not in HALF_KNOWN
    return CAPITALS[country[-1]] if known else "dunno"


class Handler(BaseHTTPRequestHandler):
    served: Served

    def log_message(self, *_: object) -> None:
        """Nothing is written to the terminal."""

    def do_GET(self) -> None:
        if not self._refused():
            row = {"id": MODEL, "owned_by": "tests", "created": time.time()}
            self._send(200, {"object": "list", "data": [row]})

    def do_POST(self) -> None:
        served = self.served
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with served.lock:
            served.asked.append((self.path, body))
            headers = {name.lower(): text for name, text in self.headers.items()}
            served.headers.append(headers)
            served.times.append(time.monotonic())
            served.under_way += 1
            served.most_at_once = max(served.most_at_once, served.under_way)
            fault = served.faults.pop(0) if served.faults else None
        time.sleep(served.delay)
        with served.lock:
            served.under_way -= (
                1  # before the reply: whoever has it may ask again at once
            )
        if fault is not None:
            self._fail(*fault)
        elif not self._refused():
            self._answer(body)

    def _refused(self) -> bool:
        sent = self.headers.get("authorization", "").removeprefix("Bearer ")
        if self.served.nothing_there:
            self._send(404, {})
        elif self.served.key is not None and sent != self.served.key:
            said = f"Incorrect API key provided: {sent}. You can find yours at ..."
            self._send(401, {"error": {"message": said}})
        else:
            return False
        return True

    def _fail(self, kind: str, headers: Mapping[str, str]) -> None:
        if kind == "garbage":
            self._send_bytes(
                200, b"<html>upstream connect error</html>", headers, "text/html"
            )
        elif kind == "cut":
            self._send_bytes(200, b'{"choices": [{"mess', headers)
        elif kind == "list":
            self._send_bytes(200, b"[1, 2]", headers)
        elif kind == "slow":
            time.sleep(1.0)
            self._send(200, {})
        elif kind == "hang up":
            self.close_connection = True
            self.connection.close()
        else:
            self._send(int(kind), {"error": {"message": f"fault {kind}"}}, headers)

    def _answer(self, body: Mapping[str, Any]) -> None:
        weighing = "prompt_logprobs" in body or body.get("echo")
        if weighing and not self.served.weighs and not self.served.silent:
            self._send(
                400, {"error": {"message": "logprobs of a prompt are not supported"}}
            )
        elif self.path.endswith("/chat/completions"):
            self._chat(body)
        elif self.path.endswith("/completions"):
            self._complete(body)
        else:
            self._send(404, {"error": {"message": "not found"}})

    def _chat(self, body: Mapping[str, Any]) -> None:
        text, truth = chat_text(
            body["messages"], body.get("add_generation_prompt", True)
        )
        tokens = ["<|start|>", *tokens_of(text)]
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 1}
        message = {"role": "assistant", "content": truth}
        reply: dict[str, Any] = {
            "usage": usage,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        if "prompt_logprobs" in body and self.served.weighs:
            rows: list[Any] = [None]
            likelier = {"logprob": -0.01, "rank": 1, "decoded_token": "likelier"}
            pairs = zip(tokens[1:], weights(tokens, truth), strict=True)
            for place, (token, value) in enumerate(pairs):
                row = {"logprob": value, "rank": 9, "decoded_token": token}
                rows.append({str(place): row, str(10_000 + place): likelier})
            reply["prompt_logprobs"] = rows
        self._send(200, reply)

    def _complete(self, body: Mapping[str, Any]) -> None:
        prompts = (
            body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        )
        choices, asked, written = [], 0, 0
        for index, prompt in enumerate(prompts):
            shown = dict(
                re.findall(r"Question: (.*)\nAnswer: (.*)\n(?=Question)", prompt)
            )
            asked_last = prompt.rpartition("Question: ")[2].partition("\n")[0]
            truth = shown.get(asked_last) or truth_of(prompt, list(shown.values()))
            tokens = ["<|start|>", *tokens_of(prompt)]
            asked += len(tokens)
            choice: dict[str, Any] = {
                "index": index,
                "text": prompt if body.get("echo") else f" {truth}",
            }
            written += 0 if body.get("echo") else 1
            if body.get("echo") and self.served.weighs:
                values = [None, *weights(tokens, truth)]
                choice["logprobs"] = {
                    "tokens": tokens,
                    "token_logprobs": values,
                    "text_offset": [0] * len(tokens),
                }
            choices.append(choice)
        usage = {"prompt_tokens": asked, "completion_tokens": written}
        self._send(200, {"choices": choices[::-1], "usage": usage})

    def _send(
        self, status: int, value: Any, headers: Mapping[str, str] | None = None
    ) -> None:
        self._send_bytes(status, json.dumps(value).encode(), headers or {})

    def _send_bytes(
        self,
        status: int,
        content: bytes,
        headers: Mapping[str, str],
        kind: str = "application/json",
    ) -> None:
        try:
            self.send_response(status)
            for name, text in {
                **headers,
                "content-type": kind,
                "content-length": str(len(content)),
            }.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self.close_connection = True  # whoever asked did not wait


@contextmanager
def serving(handler: type[Handler], served: Served) -> Iterator[None]:
    """A server on a free port of this machine, for the time of a test; `served.url` says where."""
    own = type("HandlerOfOneServer", (handler,), {"served": served})
    server = ThreadingHTTPServer(("127.0.0.1", 0), own)
    server.daemon_threads = True
    server.block_on_close = False  # a handler that hangs on purpose is not waited for
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def speaking(**options: Any) -> Iterator[Served]:
    """A server that answers, and fails where it is told to."""
    served = Served(**options)
    with serving(Handler, served):
        yield served
