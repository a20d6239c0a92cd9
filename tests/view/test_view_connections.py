"""Slow and many connections: each request has a deadline, and others are answered meanwhile."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from leverplus.view.app import create_view
from leverplus.view.connections import PatientProtocol, listen


class HastyProtocol(PatientProtocol):
    seconds = 1.0
    most = 12


@pytest.fixture
def port(runs: Path) -> Iterator[int]:
    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(create_view(runs), http=HastyProtocol, log_level="warning", ws="none", lifespan="off")
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
def test_a_request_that_does_not_come_is_ended_while_others_are_answered(port, said) -> None:
    slow = [connect(port, HEADS[said]) for _ in range(6)]
    assert status(port) == 200
    start = time.monotonic()
    for one in slow:
        while one.recv(4096):  # an answer may say that the request was not whole; then the end
            pass
        one.close()
    assert time.monotonic() - start < 4


def test_a_byte_now_and_then_does_not_move_the_deadline(port) -> None:
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


def test_more_connections_than_the_page_holds_are_ended_at_once_and_the_page_comes_back(port) -> None:
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


def test_a_slow_answer_is_waited_for(port) -> None:
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
        server = await asyncio.get_running_loop().create_server(Answering, sock=listening)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        assert await reader.read() == b""
        writer.close()
        server.close()

    asyncio.run(connected())
    assert told == [1]
