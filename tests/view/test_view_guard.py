"""What is let in: this page's own requests, small bodies, real pictures."""

from __future__ import annotations

import io
import struct
import threading
import time
import zlib
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from viewed import client_of

from leverplus.errors import DataError
from leverplus.view import guard
from leverplus.view.guard import MAX_PIXELS, UPLOAD_BYTES, Busy, UploadTurns, read_upload


def encoded(kind: str, size: tuple[int, int] = (40, 30)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, "teal").save(out, kind)
    return out.getvalue()


def png_that_claims(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims a size."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "10.0.0.7", "[::"])
def test_another_host_is_refused(client: TestClient, host: str) -> None:
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == 403
    assert "Runs" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "LOCALHOST", "[::1]:8765"])
def test_this_machine_is_let_in(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8765"])
def test_another_origin_is_refused(client: TestClient, origin: str) -> None:
    for method in ("get", "post"):
        assert getattr(client, method)("/run/first/try", headers={"origin": origin}).status_code == 403


def test_the_pages_own_forms_are_let_in(client: TestClient) -> None:
    own = client.post("/run/first/try", data={"item": "no"}, headers={"origin": "http://127.0.0.1:8765"})
    assert own.status_code == 422
    foreign = client.post("/run/first/try", data={"item": "no"}, headers={"sec-fetch-site": "cross-site"})
    assert foreign.status_code == 403


def test_a_page_bound_elsewhere_answers_to_its_name_and_to_addresses_only(runs: Path) -> None:
    client = client_of(runs, host="lab.example")
    for host in ("lab.example:8765", "10.0.0.7:8765", "[fe80::1]:8765", "localhost"):
        assert client.get("/", headers={"host": host}).status_code == 200
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403


def test_every_answer_carries_the_policy(client: TestClient) -> None:
    answers = [client.get(place) for place in ("/", "/nothing", "/assets/view.css")]
    answers.append(client.get("/", headers={"host": "evil.example"}))
    for answer in answers:
        assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "http://" not in client.get("/").text.replace("http://127.0.0.1", "")


def test_large_and_unmeasured_bodies_are_refused_before_they_are_read(client: TestClient) -> None:
    files = {"image": ("big.png", b"\0" * (UPLOAD_BYTES + 100_000))}
    assert client.post("/run/first/try", files=files).status_code == 413
    assert client.post("/run/first/try", content=iter([b"a", b"b"])).status_code == 411


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


def test_pictures_are_looked_at_one_at_a_time_and_only_so_many_wait() -> None:
    turns = UploadTurns(most_waiting=3)
    inside, most, refused, done = [0], [0], [0], [0]
    counting = threading.Lock()

    def upload() -> None:
        try:
            with turns.turn():
                with counting:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                time.sleep(0.05)
                with counting:
                    inside[0] -= 1
                    done[0] += 1
        except Busy:
            with counting:
                refused[0] += 1

    threads = [threading.Thread(target=upload) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert done[0] + refused[0] == 12
    assert done[0] >= 4
    with turns.turn():
        assert True  # and then it is free again


def test_an_upload_that_finds_too_many_waiting_is_asked_to_come_again(runs: Path, monkeypatch) -> None:
    monkeypatch.setattr(guard, "MOST_WAITING", -1)
    files = {"image": ("a.png", encoded("PNG"))}
    answer = client_of(runs).post("/run/first/try", data={"question": "what", "shots": "2"}, files=files)
    assert answer.status_code == 503
    assert "send yours again" in answer.text
