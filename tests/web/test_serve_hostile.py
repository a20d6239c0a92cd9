"""Hostile requests on a real socket: each is refused with a 4xx (or told to come back), and the service stays up."""

from __future__ import annotations

import io
import json
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from listening import Listening, counted, listening, upstream
from PIL import Image
from served import SLOW, data_url, make_bundle

from leverplus.web.serve import ServiceProtocol

HEAD = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\n"
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(
        tmp_path_factory.mktemp("hostile") / "b", pictures=True, arm="nearest_text"
    )


@pytest.fixture(scope="module")
def service(bundle: Path) -> Iterator[Listening]:
    with pytest.MonkeyPatch.context() as patch, upstream() as noted:
        patch.setattr("leverplus.web.serve.MEMORY", 8 * MEGABYTE)
        with listening(bundle, upstream=noted.url, body_mb=5) as running:
            patch.undo()  # others hold as much as usual
            yield running


@pytest.fixture(autouse=True)
def stays_up(service: Listening) -> Iterator[None]:
    yield
    assert post(service, {"question": "word1", "shots": 1}) == 200


def talk(service: Listening, said: bytes, seconds: float = 30.0) -> tuple[int, bytes]:
    """Send bytes, and read the answer: its status (0 where none came) and everything that was said."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=seconds) as line:
        line.sendall(said)
        return read(line)


def read(line: socket.socket) -> tuple[int, bytes]:
    heard = b""
    try:
        while b"\r\n\r\n" not in heard:
            piece = line.recv(65536)
            if not piece:
                break
            heard += piece
        length = [
            row
            for row in heard.lower().split(b"\r\n")
            if row.startswith(b"content-length:")
        ]
        wanted = int(length[0].split(b":")[1]) if length else 0
        while len(heard.partition(b"\r\n\r\n")[2]) < wanted:
            heard += line.recv(65536)
    except OSError:
        pass
    return (int(heard.split()[1]) if heard.startswith(b"HTTP/1.1 ") else 0), heard


def post(
    service: Listening, body: object, path: str = "/select", head: bytes = HEAD
) -> int:
    content = json.dumps(body).encode()
    length = f"Content-Length: {len(content)}\r\n".encode()
    return talk(
        service,
        f"POST {path} HTTP/1.1\r\n".encode() + head + length + b"\r\n" + content,
    )[0]


@pytest.mark.parametrize(
    "head",
    [
        b"Host: evil.example\r\n",
        b"Host: 127.0.0.1.evil.example\r\n",
        b"Host: 127.0.0.1@evil.example\r\n",
        b"Host: [::1\r\n",
        b"Host: \r\n",
        b"Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n",
        b"Host: 127.0.0.1\r\nOrigin: null\r\n",
        b"Host: 127.0.0.1\r\nOrigin: http://127.0.0.1:1\r\n",
        b"Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n",
    ],
)
@pytest.mark.parametrize("path", ["/select", "/demos", "/v1/chat/completions"])
def test_a_foreign_host_or_origin_is_refused(
    service: Listening, head: bytes, path: str
) -> None:
    assert post(service, {"question": "a", "answer": "b"}, path, head) == 403


PATHS = (
    b"/../../etc/passwd", b"/assets/../serve.html", b"/assets/%2e%2e%2fserve.html", b"/assets/..%5cserve.html",
    b"//etc/passwd", b"/%00", b"/v1/../metrics", b"/v1/%2e%2e/admin", b"/v1/%252e%252e/admin", b"/v1//admin",
    b"/v1/a%5c..%5cadmin", b"/v1/a%0d%0aX:y", b"/v1/.", b"/v1/", b"http://evil.example/", b"/select%2f..", b"/%ff%fe",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_path_tricks_lead_nowhere(service: Listening, path: bytes) -> None:
    status, heard = talk(service, b"GET " + path + b" HTTP/1.1\r\n" + HEAD + b"\r\n")
    assert 400 <= status < 500
    assert b"root:" not in heard


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HEAD + HEAD + b"\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"POST /select HTTP/1.1\r\n" + HEAD + b"Content-Length: -1\r\n\r\n",
        b"POST /select HTTP/1.1\r\n"
        + HEAD
        + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n\r\n",
        b"POST /select HTTP/1.1\r\n"
        + HEAD
        + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused(service: Listening, said: bytes) -> None:
    assert 400 <= talk(service, said)[0] < 500


def test_a_second_request_hidden_in_a_body_is_not_answered(service: Listening) -> None:
    """With two lengths, servers in front and ours may disagree on where a request ends."""
    two = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    hidden = b"GET /info HTTP/1.1\r\n" + HEAD + b"\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as line:
        line.sendall(b"POST /select HTTP/1.1\r\n" + HEAD + two + hidden)
        heard = b""
        while piece := line.recv(65536):  # until it hangs up
            heard += piece
    assert heard.startswith(b"HTTP/1.1 400")
    assert heard.count(b"HTTP/1.1") == 1
    assert b"fingerprint" not in heard


@pytest.mark.parametrize("number", ["NaN", "1e999", "0"])
def test_vectors_that_are_no_direction_are_refused(
    service: Listening, number: str
) -> None:
    body = (
        '{"question": "a", "vectors": {"text": [' + ", ".join([number] * 16) + "]}}"
    ).encode()
    said = (
        b"POST /select HTTP/1.1\r\n"
        + HEAD
        + b"Content-Length: %d\r\n\r\n" % len(body)
        + body
    )
    status, heard = talk(service, said)
    assert 400 <= status < 500
    assert b"16 numbers, finite and not all zero" in heard or b"JSON" in heard


def memory() -> int:
    return int(psutil.Process().memory_info().rss)


def test_a_body_of_100_mb_that_says_so_is_refused_before_it_is_sent(
    service: Listening,
) -> None:
    head = b"POST /select HTTP/1.1\r\n" + HEAD + b"Content-Length: 100000000\r\n\r\n"
    started = time.monotonic()
    assert talk(service, head)[0] == 413
    assert time.monotonic() - started < 10
    assert talk(service, head.replace(b"100000000", b"9" * 400))[0] in (400, 413)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [b"/select", b"/demos", b"/v1/chat/completions", b"/v1/files"]
)
def test_a_body_of_100_mb_in_pieces_is_refused_at_the_limit_and_never_held(
    service: Listening, path: bytes
) -> None:
    before, sent = memory(), 0
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as line:
        line.sendall(
            b"POST "
            + path
            + b" HTTP/1.1\r\n"
            + HEAD
            + b"Transfer-Encoding: chunked\r\n\r\n"
        )
        try:
            while sent < 100 * MEGABYTE:
                line.sendall(piece)
                sent += 65536
            line.sendall(b"0\r\n\r\n")
        except OSError:
            pass  # hung up on, which is an answer too
        status, _ = read(line)
    assert status in (413, 0)
    assert memory() - before < 40 * MEGABYTE
    assert service.held == 0


def test_many_bodies_at_once_are_bounded_together(service: Listening) -> None:
    lines = []
    for _ in range(4):
        line = socket.create_connection(("127.0.0.1", service.port), timeout=30)
        line.sendall(
            b"POST /select HTTP/1.1\r\n"
            + HEAD
            + b"Content-Length: 4000000\r\n\r\n"
            + b" " * 3_900_000
        )
        lines.append(line)
    deadline = time.monotonic() + 20
    while (
        counted("lever_requests_total", route="/select", status="503") < 1
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert counted("lever_requests_total", route="/select", status="503") >= 1
    assert service.held <= 8 * MEGABYTE
    for line in lines:
        line.close()
    while service.held and time.monotonic() < deadline + 20:
        time.sleep(0.05)
    assert service.held == 0


def png_of_size(width: int, height: int) -> bytes:
    """A PNG that says it is so large, with next to nothing in it."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b"\0" * 999))
        + chunk(b"IEND", b"")
    )


def real_bomb() -> bytes:
    out = io.BytesIO()
    Image.new("1", (6000, 6000)).save(out, "PNG")  # 36 million pixels in some kilobytes
    return out.getvalue()


BOMBS = {
    "a head that lies": lambda: png_of_size(50_000, 50_000),
    "the largest head": lambda: png_of_size(2**31 - 1, 2**31 - 1),
    "black": real_bomb,
    "cut short": lambda: real_bomb()[:200],
    "SVG": lambda: (
        b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    ),
    "EPS": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_picture_bomb_is_refused_before_it_is_decoded(
    service: Listening, what: str
) -> None:
    before = memory()
    image = data_url(BOMBS[what]())
    assert post(service, {"question": "a", "image": image}) == 422
    assert (
        post(service, {"question": "a", "answer": "b", "image": image}, "/demos") == 422
    )
    assert (
        post(
            service, {"question": "a", "image": image, "vectors": {"text": [0.1] * 16}}
        )
        == 422
    )
    assert memory() - before < 60 * MEGABYTE


SLOW_HEADS = {
    "nothing": b"",
    "half a head": b"POST /select HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    "half a body": b"POST /select HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SLOW_HEADS)
def test_a_slow_client_is_hung_up_on_while_others_are_answered(
    service: Listening, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServiceProtocol, "request_seconds", 1.0)
    lines = [
        socket.create_connection(("127.0.0.1", service.port), timeout=20)
        for _ in range(8)
    ]
    for line in lines:
        line.sendall(SLOW_HEADS[what])
    assert post(service, {"question": "word1"}) == 200
    for line in lines:
        while line.recv(4096):
            pass
        line.close()
    patience = (
        time.monotonic() + 20
    )  # the line is closed a moment before the body is let go
    while service.held and time.monotonic() < patience:
        time.sleep(0.01)
    assert service.held == 0


@pytest.mark.slow
def test_a_client_that_does_not_read_its_answer_is_hung_up_on(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServiceProtocol, "stalled_seconds", 1.0)
    passed = {"route": "/v1/{path:path}", "status": "200"}
    before = counted("lever_requests_total", **passed)
    with upstream() as noted, listening(bundle, upstream=noted.url) as running:
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.settimeout(60)
        line.connect(("127.0.0.1", running.port))
        echoed = b"x" * (16 * MEGABYTE)
        head = f"Content-Length: {len(echoed)}\r\n\r\n".encode()
        line.sendall(b"POST /v1/embeddings HTTP/1.1\r\n" + HEAD + head + echoed)
        deadline = time.monotonic() + 60
        while counted("lever_requests_total", **passed) < before + 1:
            assert time.monotonic() < deadline, "the answer is still kept for it"
            time.sleep(0.1)
        heard = read_all(line)
        line.close()
    assert 0 < len(heard) < len(echoed), (
        "some lay in the system's buffers; the rest was not kept for it"
    )


def read_all(line: socket.socket) -> bytes:
    heard = b""
    try:
        while piece := line.recv(1 << 20):
            heard += piece
    except ConnectionResetError:
        pass
    return heard


@pytest.mark.slow
def test_more_requests_than_can_wait_are_told_to_come_back(bundle: Path) -> None:
    with listening(bundle, threads=1, queue=1, seconds=10) as running:
        lines = []
        body = json.dumps({"question": SLOW}).encode()
        for _ in range(3):
            line = socket.create_connection(("127.0.0.1", running.port), timeout=30)
            line.sendall(
                b"POST /select HTTP/1.1\r\n"
                + HEAD
                + f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            lines.append(line)
            time.sleep(0.2)
        answers = [read(line) for line in reversed(lines)]
        for line in lines:
            line.close()
    assert [status for status, _ in answers] == [503, 200, 200]
    assert b"retry-after: 1" in answers[0][1]


TOKEN = "correct-horse-battery-staple"
ROUTES = ("/info", "/metrics", "/openapi.json", "/v1/models")


@pytest.mark.slow
def test_a_wrong_token_opens_nothing(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVER_TOKEN", TOKEN)
    with upstream() as noted, listening(bundle, upstream=noted.url) as running:
        wrong = (
            "",
            "Bearer",
            "Bearer wrong",
            f"Basic {TOKEN}",
            f"Bearer {TOKEN[:-1]}",
            f"Bearer {TOKEN}x",
        )
        for value in wrong:
            head = HEAD + f"Authorization: {value}\r\n".encode()
            for path in ROUTES:
                assert (
                    talk(running, f"GET {path} HTTP/1.1\r\n".encode() + head + b"\r\n")[
                        0
                    ]
                    == 401
                ), (path, value)
            for path in ("/select", "/select_many", "/demos", "/v1/chat/completions"):
                assert (
                    post(running, {"question": "a", "answer": "b"}, path, head) == 401
                ), (path, value)
            assert (
                talk(running, b"DELETE /demos/d1 HTTP/1.1\r\n" + head + b"\r\n")[0]
                == 401
            )
        assert noted.asked == []
        right = HEAD + f"Authorization: Bearer {TOKEN}\r\n".encode()
        assert talk(running, b"GET /info HTTP/1.1\r\n" + right + b"\r\n")[0] == 200
        own = HEAD + f"X-Lever-Token: {TOKEN}\r\n".encode()
        assert post(running, {"question": "word1"}, "/select", own) == 200
        for path in (b"/healthz", b"/readyz", b"/", b"/assets/serve.js"):
            assert (
                talk(running, b"GET " + path + b" HTTP/1.1\r\n" + HEAD + b"\r\n")[0]
                == 200
            )
