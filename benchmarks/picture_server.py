"""A stand-in for a vision server, without a model: it checks that every picture that comes is one of its files.

python benchmarks/picture_server.py FOLDER --port 8462

What comes must be whole base64 of a picture with the size and every pixel of a file of FOLDER, however it is encoded;
anything else is refused with status 400. It answers as it was shown: for the same picture the
answer of that example, else that of the last one; without an example the name of the file. GET /pictures says how many came.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from PIL import Image


class WrongPicture(Exception):
    """A picture that is none of the files."""


def pixel_digest(content: bytes) -> str:
    """What a picture shows, whatever its format; WrongPicture where it is none."""
    try:
        with Image.open(io.BytesIO(content)) as opened:
            picture = opened.convert("RGB")
    except OSError as error:
        raise WrongPicture(f"{len(content)} bytes are no picture") from error
    whole = f"{picture.size}".encode() + picture.tobytes()
    return hashlib.sha256(whole).hexdigest()


class PictureServer(ThreadingHTTPServer):
    """What lies in the folder, by its digest, and which of it came how often."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.names: dict[str, str] = {}
        for path in sorted(folder.iterdir()):
            self.names[pixel_digest(path.read_bytes())] = path.name
        self.came: list[str] = []
        self.prompts = 0

    def name_of(self, url: str) -> str:
        """The file that a picture is; WrongPicture where it is none, to the last pixel."""
        head, _, data = url.partition(";base64,")
        content = base64.b64decode(data, validate=True)
        name = self.names.get(pixel_digest(content), "")
        if not head.startswith("data:image/") or not name:
            raise WrongPicture(f"{head}, {len(content)} bytes: no file is like this")
        self.came.append(name)
        return name

    def reply(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """What stands beside the same picture, else the last answer that is shown."""
        self.prompts += 1
        shown: list[tuple[str, str]] = []
        asked = ""
        for message in messages:
            content = message["content"]
            if message["role"] == "assistant":
                shown.append((asked, str(content)))
            elif message["role"] == "user":
                urls = []
                for part in content if isinstance(content, list) else []:
                    if part["type"] == "image_url":
                        urls.append(part["image_url"]["url"])
                asked = self.name_of(urls[0]) if urls else ""
        for name, answer in shown:
            if name == asked:
                return answer
        return shown[-1][1] if shown else json.dumps({"picture": asked})


class Handler(BaseHTTPRequestHandler):
    server: PictureServer

    def do_GET(self) -> None:
        if self.path == "/pictures":
            came = self.server.came
            counts = {"pictures": len(came), "different": len(set(came))}
            self.send(200, {"prompts": self.server.prompts, **counts})
            return
        self.send(200, {"data": [{"id": "stand-in", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.endswith("/chat/completions"):
            self.send(404, {"error": {"message": "only chats are answered here"}})
            return
        try:
            text = self.server.reply(body["messages"])
        except (WrongPicture, ValueError) as error:
            self.send(400, {"error": {"message": f"the picture is wrong: {error}"}})
            return
        message = {"role": "assistant", "content": text}
        self.send(200, {"choices": [{"index": 0, "message": message}]})

    def send(self, status: int, body: Mapping[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8462)
    args = parser.parse_args()
    server = PictureServer(args.folder, args.port)
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
