"""The pictures of the README and the docs, taken of a real run by a headless Chromium.

    python benchmarks/pictures.py runs/world                            report, differences, example, queries, choice
    python benchmarks/pictures.py runs/world --training runs/mistaken   and the training curves of a run with findings

It makes the report of the run, opens it and the local page over its folder, and writes PNG files into docs/pictures
(`--into`). It needs Chromium and playwright (`pip install -e .[dev]`).
"""

from __future__ import annotations

import argparse
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from PIL import Image

from leverplus.experiment.opening import load_run
from leverplus.report.build import build_report
from leverplus.report.data import read_run_files
from leverplus.report.examples import fates
from leverplus.report.verdict import headline
from leverplus.view.app import create_view

WIDTH, SCALE, COLOURS = 1000, 1.5, 128


@contextmanager
def opened() -> Iterator[Any]:
    """A page of a headless Chromium."""
    from playwright.sync_api import sync_playwright

    binary = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if binary is None:
        raise SystemExit("there is no Chromium on this machine; type `apt-get install chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 800}, device_scale_factor=SCALE)
        page.set_default_timeout(180_000)
        yield page
        browser.close()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The local page over a run folder."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(create_view(folder), log_level="warning", ws="none"))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def keep(path: Path) -> None:
    """Fewer colours: a chart needs no more, and a repository should stay small."""
    with Image.open(path) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")


def show_report(page: Any, run: Path, into: Path) -> None:
    page.goto(build_report(load_run(run)).resolve().as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    chart = page.locator("[data-figure=accuracy]").bounding_box()
    bottom = {"x": 0, "y": 0, "width": WIDTH, "height": chart["y"] + chart["height"] + 10}
    page.screenshot(path=into / "report.png", clip=bottom, full_page=True)
    page.locator("section", has=page.locator("#differences")).screenshot(path=into / "differences.png")
    example = page.locator("details.example", has=page.locator(".tag.helped")).first
    example.locator("> summary").click()
    example.screenshot(path=into / "example.png")
    for name in ("report", "differences", "example"):
        keep(into / f"{name}.png")


def show_page(page: Any, run: Path, into: Path) -> None:
    files = read_run_files(run)
    row = headline(files.results) if files.results else None
    assert files.predictions is not None, "the run has no predictions; `lever eval` makes them"
    fate = fates(files.predictions, row)
    item = next((item for item, kind in fate.items() if kind == "helped"), files.predictions.items[0])
    with served(run) as address:
        base = f"{address}/run/{run.resolve().name}"
        page.goto(f"{base}/queries?fate=helped")
        page.wait_for_load_state("networkidle")
        page.screenshot(path=into / "queries.png")
        page.goto(f"{base}/query?item={item}&shots=2")
        page.wait_for_selector("html[data-ready=yes]")
        page.wait_for_load_state("networkidle")
        page.locator(".steps > li").first.screenshot(path=into / "choice.png")
    for name in ("queries", "choice"):
        keep(into / f"{name}.png")


def show_training(page: Any, run: Path, into: Path) -> None:
    page.goto(build_report(load_run(run)).resolve().as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    page.locator("section", has=page.locator("#training")).screenshot(path=into / "training.png")
    keep(into / "training.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="a finished run folder")
    parser.add_argument("--training", type=Path, metavar="RUN", help="a run folder with findings")
    parser.add_argument("--into", type=Path, default=Path("docs/pictures"), metavar="DIR")
    args = parser.parse_args()
    args.into.mkdir(parents=True, exist_ok=True)
    with opened() as page:
        show_report(page, args.run, args.into)
        show_page(page, args.run, args.into)
        if args.training:
            show_training(page, args.training, args.into)


if __name__ == "__main__":
    main()
