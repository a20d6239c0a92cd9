"""Counters: Prometheus can read them, several processes add up, and a worker that died leaves its counts."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from leverplus.serve.limits import Overloaded, TooSlow, WorkQueue
from leverplus.serve.metrics import PLACES, Metrics, make_counters, route_of

LINE = re.compile(r'([a-z_]+)(\{([a-z]+="[^"]*",?)+\})? (-?[0-9.e+-]+)')


def test_every_line_is_in_prometheus_text_format() -> None:
    metrics = Metrics()
    metrics.add("lever_requests_total", "/select", "200")
    metrics.observe("lever_select_seconds", "api", 0.003)
    metrics.observe("lever_select_seconds", "api", 999.0)
    lines = metrics.text({"lever_demonstrations": ("How many.", 7.0)}).splitlines()
    assert all(line.startswith("#") or LINE.fullmatch(line) for line in lines)
    assert 'lever_requests_total{route="/select",status="200"} 1' in lines
    assert "lever_demonstrations 7" in lines
    assert 'lever_select_seconds_bucket{kind="api",le="0.0025"} 0' in lines
    assert 'lever_select_seconds_bucket{kind="api",le="0.005"} 1' in lines
    assert 'lever_select_seconds_bucket{kind="api",le="120.0"} 1' in lines
    assert 'lever_select_seconds_bucket{kind="api",le="+Inf"} 2' in lines
    assert 'lever_select_seconds_count{kind="api"} 2' in lines
    assert 'lever_select_seconds_sum{kind="api"} 999.003000' in lines


WORKER = """
import sys
from pathlib import Path
from leverplus.serve.metrics import Metrics
metrics = Metrics(Path(sys.argv[1]), 2)
for _ in range(1000):
    metrics.add("lever_upstream_failures_total")
metrics.add("lever_requests_in_flight")
print(metrics._row, flush=True)
sys.stdin.read()
"""


def test_workers_add_up_and_a_dead_ones_row_is_taken_over_with_its_counts(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    make_counters(path, 2)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    rows = [worker.stdout.readline().strip() for worker in workers if worker.stdout]
    assert sorted(rows) == ["0", "1"]
    workers[0].kill()
    workers[0].communicate()
    own = Metrics(path, 2)
    assert own.value("lever_upstream_failures_total") == 2000
    assert own.value("lever_requests_in_flight") == 1, "that of the worker that lives"
    own.add("lever_upstream_failures_total")
    assert own.value("lever_upstream_failures_total") == 2001
    own.close()
    workers[1].communicate("")


def test_threads_lose_no_count() -> None:
    metrics = Metrics()
    threads = [
        threading.Thread(target=lambda: [metrics.add("lever_upstream_failures_total") for _ in range(2000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.value("lever_upstream_failures_total") == 8000


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/select", "/select"), ("/demos/secret", "/demos/{id}"), ("/v1/files/secret", "/v1"), ("/secret", "other"),
        ("/v1/chat/completions", "/v1/chat/completions"), ("other", "other"), ("/v1", "other"),
        ("/assets/x", "/assets"), ("/assets", "other"), ("/demos/{id}", "/demos/{id}"),
    ],
)  # fmt: skip
def test_a_route_holds_nothing_a_client_sent(path: str, route: str) -> None:
    assert route_of(path) == route
    assert ("lever_requests_total", (route, "200")) in PLACES


def test_a_full_queue_refuses_slow_work_keeps_its_place_and_waiting_work_is_never_begun() -> None:
    metrics, begun = Metrics(), []
    queue = WorkQueue(1, 1, metrics)
    hold = threading.Event()

    def slow(_: float) -> str:
        begun.append("slow")
        hold.wait(10)
        return "done"

    async def scene() -> None:
        first = asyncio.create_task(queue.run(slow, 0.3))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(queue.run(lambda _: begun.append("second"), 0.1))
        await asyncio.sleep(0.02)
        with pytest.raises(Overloaded) as full:
            await queue.run(lambda _: None, 1.0)
        assert full.value.headers == {"retry-after": "1"}
        with pytest.raises(TooSlow):
            await second
        with pytest.raises(TooSlow):
            await first
        assert queue.under_way == 1, "the slow one still has its thread"
        hold.set()
        deadline = time.monotonic() + 5
        while queue.under_way and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert await queue.run(lambda until: until > time.monotonic(), 1.0)

    asyncio.run(scene())
    queue.close()
    assert begun == ["slow"], "what nobody waits for is not begun"
    assert metrics.value("lever_queue_waiting") == 0
