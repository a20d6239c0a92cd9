"""What is let in: own requests, small bodies, real pictures, tokens; and how slowly a request may come."""

from __future__ import annotations

import asyncio
import hmac
import io
import socket
import struct
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image
from viewed import client_of

from leverplus.errors import DataError, LeverError
from leverplus.web.guard import (
    MAX_PIXELS,
    UPLOAD_BYTES,
    AccessToken,
    PatientProtocol,
    listen,
    read_token,
    read_upload,
)
from leverplus.web.view import create_view


def encoded(kind: str, size: tuple[int, int] = (40, 30)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, "teal").save(out, kind)
    return out.getvalue()


def png_that_claims(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims a size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in (
        (b"IHDR", header),
        (b"IDAT", zlib.compress(b"\0")),
        (b"IEND", b""),
    ):
        content += struct.pack(">I", len(data)) + name + data
        content += struct.pack(">I", zlib.crc32(name + data))
    return content


@pytest.mark.parametrize(
    "host",
    ["evil.example:8765", "127.0.0.1.evil.example", "", "10.0.0.7", "[::"],
)
def test_another_host_is_refused(client: TestClient, host: str) -> None:
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == 403
    assert "Runs" not in answer.text


def test_this_machine_is_let_in(client: TestClient) -> None:
    for host in ("127.0.0.1:8765", "localhost:8765", "LOCALHOST", "[::1]:8765"):
        assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8765"],
)
def test_another_origin_is_refused(client: TestClient, origin: str) -> None:
    place, headers = "/run/first/try", {"origin": origin}
    assert client.get(place, headers=headers).status_code == 403
    assert client.post(place, headers=headers).status_code == 403


def test_the_pages_own_forms_are_let_in(client: TestClient) -> None:
    place, form = "/run/first/try", {"item": "no"}
    own = {"origin": "http://127.0.0.1:8765"}
    assert client.post(place, data=form, headers=own).status_code == 422
    foreign = {"sec-fetch-site": "cross-site"}
    assert client.post(place, data=form, headers=foreign).status_code == 403


def test_a_page_bound_elsewhere_answers_to_its_name_and_to_addresses_only(
    runs: Path,
) -> None:
    client = client_of(runs, host="lab.example")
    for host in ("lab.example:8765", "10.0.0.7:8765", "[fe80::1]:8765", "localhost"):
        assert client.get("/", headers={"host": host}).status_code == 200
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403


def test_every_answer_carries_the_policy(client: TestClient) -> None:
    answers = [client.get(place) for place in ("/", "/nothing", "/assets/page.css")]
    answers.append(client.get("/", headers={"host": "evil.example"}))
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "http://" not in client.get("/").text.replace("http://127.0.0.1", "")


def test_large_bodies_are_refused_before_they_are_read_and_at_the_limit(
    client: TestClient,
) -> None:
    place = "/run/first/try"
    files = {"image": ("big.png", b"\0" * (UPLOAD_BYTES + 100_000))}
    assert client.post(place, files=files).status_code == 413
    pieces = iter([b"a" * 1_000_000] * 3)
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert client.post(place, content=pieces, headers=kind).status_code == 413


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_pictures_are_taken(kind: str) -> None:
    assert read_upload(encoded(kind)).size == (40, 30)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture"),
        (b"GIF89a but no more", "not a picture"),
        (encoded("PNG")[:60], "not a picture"),
        (encoded("TIFF"), "not a picture"),
        (png_that_claims(60_000, 60_000), "not a picture|at most"),
        (png_that_claims(5_000, 5_000), f"5000 x 5000 pixels; at most {MAX_PIXELS:,}"),
        (b"\0" * (UPLOAD_BYTES + 1), "at most 2 MB"),
    ],
)
def test_everything_else_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_upload(content)


TOKEN = "correct-horse-battery-staple"


def test_tokens_are_compared_by_digests_of_one_length_in_constant_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def noting(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", noting)
    token = AccessToken(TOKEN)
    fits = [token.fits(guess) for guess in (TOKEN, "", TOKEN[:-1], "x" * 999)]
    assert fits == [True, False, False, False]
    assert compared == [(32, 32)] * 4
    assert TOKEN not in repr(vars(token))


def test_another_host_needs_a_token_that_is_not_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LEVER_TOKEN", raising=False)
    assert read_token("127.0.0.1") is None
    with pytest.raises(LeverError, match="needs a token; type `export LEVER_TOKEN="):
        read_token("0.0.0.0")
    monkeypatch.setenv("LEVER_TOKEN", "short")
    with pytest.raises(LeverError, match="could be guessed"):
        read_token("127.0.0.1")


class HastyProtocol(PatientProtocol):
    request_seconds = 1.0
    most = 12


@pytest.fixture
def port(runs: Path) -> Iterator[int]:
    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        create_view(runs),
        http=HastyProtocol,
        log_level="warning",
        ws="none",
        lifespan="off",
    )
    server = uvicorn.Server(config)
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    serving.start()
    while not server.started:
        time.sleep(0.01)
    yield listening.getsockname()[1]
    server.should_exit = True
    serving.join(10)
    listening.close()


def connect(port: int, said: bytes) -> socket.socket:
    slow = socket.create_connection(("127.0.0.1", port), timeout=5)
    slow.sendall(said)
    return slow


def status(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
        return int(answer.status)


HEADS = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    "half a body": b"POST /run/first/try HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\nitem=",
}


@pytest.mark.slow
@pytest.mark.parametrize("said", HEADS)
def test_a_request_that_does_not_come_is_ended_while_others_are_answered(
    port: int, said: str
) -> None:
    slow = [connect(port, HEADS[said]) for _ in range(6)]
    assert status(port) == 200
    start = time.monotonic()
    for one in slow:
        # an answer may say that the request was not whole; then the end
        while one.recv(4096):
            pass
        one.close()
    assert time.monotonic() - start < 4


@pytest.mark.slow
def test_a_byte_now_and_then_does_not_move_the_deadline(port: int) -> None:
    slow = connect(port, b"GET / HTTP/1.1\r\n")
    start = time.monotonic()
    try:
        while time.monotonic() - start < 5:
            slow.sendall(b"X")
            time.sleep(0.1)
    except OSError:
        pass  # the page has hung up
    assert time.monotonic() - start < 4
    slow.close()


@pytest.mark.slow
def test_more_connections_than_the_page_holds_are_ended_at_once_and_the_page_comes_back(
    port: int,
) -> None:
    slow = [connect(port, b"") for _ in range(30)]
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if status(port) == 200:
                break
        except OSError:
            time.sleep(0.1)
    assert status(port) == 200
    for one in slow:
        one.close()


@pytest.mark.slow
def test_a_slow_answer_is_waited_for(port: int) -> None:
    """The deadline is for the request: what the page needs to answer does not count."""
    kept = connect(port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    time.sleep(1.5)
    assert kept.recv(12) == b"HTTP/1.1 200"
    kept.close()


def test_what_is_written_is_sent_at_once() -> None:
    """Head and body are two writes: with Nagle's algorithm the second waits until the first is acknowledged, 40 ms."""
    told: list[int] = []

    class Answering(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted = transport.get_extra_info("socket")
            told.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    async def connected() -> None:
        listening = listen("127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Answering, sock=listening)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        assert await reader.read() == b""
        writer.close()
        server.close()

    asyncio.run(connected())
    assert told == [1]
