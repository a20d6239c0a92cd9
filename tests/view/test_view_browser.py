"""The page in a real Chromium, served by `lever view`. Screenshots for people go to build/screenshots."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from fastapi.responses import HTMLResponse

from leverplus.evaluation.predictions import read_predictions
from leverplus.view.app import create_app

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=8000",
)  # fmt: skip

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    """`lever view` on a free port, stopped afterwards."""
    command = [sys.executable, "-m", "leverplus.cli.main", "view", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            printed = server.stdout.readline()
            found = re.match(r"(http://127\.0\.0\.1:\d+)/ shows the runs", printed)
            assert found, printed
            yield found[1]
        finally:
            server.terminate()


def chromium(profile: Path, url: str, *options: str) -> str:
    """Open a page; returns what it printed. A message on the browser's console fails the test."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *options, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    # plotly's own remark on a chart with long labels is no error
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "auto-margin redraws" not in line]
    assert not said, said
    return done.stdout


def test_pages_draw_every_chart_without_a_console_error(address: str, runs: Path, tmp_path: Path) -> None:
    item = read_predictions(runs / "first" / "predictions.parquet").items[0]
    for place in ("/run/first", f"/run/first/query?item={item}&shots=2"):
        dom = chromium(tmp_path / "profile", address + place, "--dump-dom")
        assert 'data-ready="yes"' in re.search(r"<html[^>]*>", dom)[0]
        charts = dom.count("data-figure=")
        assert charts >= 2
        assert len(re.findall(r'class="[^"]*svg-container[^"]*"', dom)) == charts


@contextmanager
def served(app: Any) -> Iterator[str]:
    """An app on a free port of this process."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=20)


def test_a_page_in_the_browser_follows_a_live_run(runs: Path, tmp_path: Path) -> None:
    """Every time the page asks for news the training has done another epoch; in the end the browser shows them all."""
    log = shutil.copytree(runs / "live", tmp_path / "runs" / "live") / "log.jsonl"
    lines = (runs / "first" / "log.jsonl").read_text().splitlines(keepends=True)
    log.write_text(lines[0])
    app, asked = create_app(tmp_path / "runs"), []

    async def training(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path", "").endswith("live.json"):
            asked.append(scope["path"])
            log.write_text("".join(lines[: 1 + len(asked)]))
        await app(scope, receive, send)

    with served(training) as address:
        dom = chromium(tmp_path / "profile", f"{address}/run/live", "--dump-dom")
    assert len(asked) >= 2
    assert 'data-following="yes"' in dom
    shown = min(len(lines), 1 + len(asked))
    assert f"{shown} epochs" in re.search(r'id="latest"[^>]*>([^<]*)', dom)[1]


LOOKS = {
    "view-list": ("/", ("--window-size=1200,700",)),
    "view-run": ("/run/first", ("--window-size=1200,2600",)),
    "view-compare": ("/compare?run=first&run=second", ("--window-size=1200,900",)),
    "view-queries": ("/run/first/queries", ("--window-size=1200,1300",)),
    "view-query": ("/run/first/query?item={item}&shots=2", ("--window-size=1200,2200",)),
    "view-try": ("/run/first/try?item={item}", ("--window-size=1200,800",)),
    "view-queries-narrow-dark": (
        "/run/first/queries",
        ("--window-size=500,1300", "--blink-settings=preferredColorScheme=0"),
    ),
}


@pytest.mark.parametrize("name", LOOKS)
def test_pages_can_be_looked_at(address: str, runs: Path, tmp_path: Path, name: str) -> None:
    from PIL import Image

    place, options = LOOKS[name]
    item = read_predictions(runs / "first" / "predictions.parquet").items[0]
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    target = SCREENSHOTS / f"{name}.png"
    chromium(tmp_path / "profile", address + place.format(item=item), f"--screenshot={target}", *options)
    with Image.open(target) as image:
        corner = image.convert("L").getpixel((2, 2))
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50
    assert (corner < 60) is ("dark" in name)


SENDING = """<script>
fetch("/run/first/try?item=ITEM").then((answer) => answer.text()).then((text) => {
  document.body.innerHTML = text;
  const form = document.querySelector("form.try");
  return fetch(form.action, { method: form.method, body: new FormData(form) });
}).then((answer) => answer.text()).then((text) => { document.body.innerHTML = text; });
</script>"""


def test_the_form_is_sent_by_the_browser_and_answered(runs: Path, tmp_path: Path) -> None:
    """The page's own form, sent with the Origin the browser gives it: it must be let in and answered."""
    app, results = create_app(runs), read_predictions(runs / "first" / "predictions.parquet")
    page = HTMLResponse(f"<body>{SENDING.replace('ITEM', results.items[0])}")

    async def sending(scope: Any, receive: Any, send: Any) -> None:
        await (page if scope.get("path") == "/send" else app)(scope, receive, send)

    with served(sending) as address:
        dom = chromium(tmp_path / "profile", f"{address}/send", "--dump-dom")
    expected = results.draws["learned"][2][0][0].answer
    assert re.search(r'With the picked demonstrations: <b dir="auto">([^<]*)', dom)[1] == expected
