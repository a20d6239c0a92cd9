"""The service on a real socket inside the test process, and an upstream that notes what it was sent."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from prometheus_client import REGISTRY

from leverplus.web.guard import Guard, listen
from leverplus.web.serve import AppMaker, ServiceProtocol
from leverplus.web.service import ServeSettings


@dataclass(frozen=True)
class Listening:
    port: int
    app: Any

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def held(self) -> int:
        """Bytes of bodies that the service holds now."""
        layer = self.app.middleware_stack
        while not isinstance(layer, Guard):
            layer = layer.app
        return layer.held


def counted(name: str, **labels: str) -> float:
    """A number of the metrics page of this process."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


@contextmanager
def listening(folder: Path, **settings: Any) -> Iterator[Listening]:
    """`lever serve`'s own application and protocol, in a thread."""
    socket = listen("127.0.0.1", 0)
    app = AppMaker(ServeSettings(bundle=str(folder), **settings))()
    server = uvicorn.Server(
        uvicorn.Config(app, http=ServiceProtocol, log_level="critical", ws="none")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Listening(socket.getsockname()[1], app)
    finally:
        server.should_exit = True
        thread.join(30)
        socket.close()


@dataclass
class Noted:
    """What reached the upstream: path, headers in lower case, body as it came."""

    url: str = ""
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    most_messages: int = 1000
    gone: threading.Event = field(default_factory=threading.Event)

    @property
    def last(self) -> dict[str, Any]:
        return json.loads(self.asked[-1][2])


def colour_of(messages: list[dict[str, Any]]) -> str:
    """Sees: the colour of the last picture, by its real pixels."""
    urls = [
        part["image_url"]["url"]
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    ]
    with Image.open(
        io.BytesIO(base64.b64decode(urls[-1].partition(",")[2]))
    ) as picture:
        red, green, blue = picture.convert("RGB").resize((1, 1)).getpixel((0, 0))
    return max((red, "red"), (green, "green"), (blue, "blue"))[1]


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    noted: Noted

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._note(b"")
        if self.path.startswith("/api/redirect"):
            self._send(307, b"", {"location": "http://127.0.0.1:1/elsewhere"})
            return
        self._send(
            200,
            json.dumps(
                {"object": "list", "data": [{"id": "stand-in", "object": "model"}]}
            ).encode(),
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self._note(body)
        if not self.path.endswith("/chat/completions"):
            self._send(200, body, {"content-type": "application/x-echo"})
            return
        try:
            asked = json.loads(body)
            messages = asked["messages"]
            if not isinstance(messages, list) or not all(
                isinstance(message, dict) for message in messages
            ):
                raise TypeError("messages is no list of objects")
        except (ValueError, KeyError, TypeError):
            self._send(400, b'{"error": {"message": "the upstream cannot read this"}}')
            return
        if len(messages) > self.noted.most_messages:
            self._send(400, b'{"error": {"message": "the prompt is too long"}}')
            return
        seen = any(isinstance(message["content"], list) for message in messages)
        words = (
            colour_of(messages) if seen else f"answer after {len(messages)} messages"
        )
        if asked.get("stream"):
            self._stream(words)
            return
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": words},
        }
        reply = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "stand-in",
            "choices": [choice],
        }
        self._send(200, json.dumps(reply).encode(), {"x-upstream": "own header"})

    def _stream(self, words: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for word in words.split():
                delta = {
                    "index": 0,
                    "delta": {"content": word + " "},
                    "finish_reason": None,
                }
                event = {
                    "id": "1",
                    "object": "chat.completion.chunk",
                    "created": 1,
                    "model": "m",
                    "choices": [delta],
                }
                self._piece(f"data: {json.dumps(event)}\n\n".encode())
                time.sleep(0.2)
            self._piece(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.noted.gone.set()
            self.close_connection = True

    def _piece(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def _note(self, body: bytes) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.noted.asked.append((self.path, headers, body))

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {
            "content-type": "application/json",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.noted.gone.set()
            self.close_connection = True


@contextmanager
def upstream() -> Iterator[Noted]:
    """A stand-in for a chat server that sees pictures, below /api."""
    noted = Noted()
    handler = type("Handler", (_Answers,), {"noted": noted})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}
    )
    thread.start()
    noted.url = f"http://127.0.0.1:{server.server_port}/api"
    try:
        yield noted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
