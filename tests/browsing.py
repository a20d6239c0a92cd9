"""A real Chromium that notes whatever a page should not do: say something on its console, fail, ask the network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SCREENSHOTS = Path(__file__).parents[1] / "build" / "screenshots"
CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
LACKING = (
    "no Chromium on this machine (apt-get install chromium)"
    if CHROMIUM is None
    else "no playwright in this environment (pip install -e .[dev])"
    if find_spec("playwright") is None
    else ""
)
"""Why pages cannot be looked at here; "" where they can."""
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync")  # fmt: skip
WIDE = {"viewport": {"width": 1200, "height": 900}}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
AA = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")


class Visitor:
    """Opens pages, each in a fresh profile, and remembers what went wrong on them."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.problems: list[str] = []
        self._contexts: list[Any] = []

    def page(self, **profile: Any) -> Any:
        """An empty page; `profile` as playwright's `new_context` takes it."""
        context = self.browser.new_context(**{**WIDE, **profile})
        context.set_default_timeout(120_000)
        self._contexts.append(context)
        page = context.new_page()
        page.on(
            "console",
            lambda said: self.problems.append(f"console {said.type}: {said.text}"),
        )
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", lambda request: self._asked(request.url))
        page.on(
            "requestfailed",
            lambda request: self._failed(request.url, request.failure or ""),
        )
        return page

    def open(self, address: str, **profile: Any) -> Any:
        page = self.page(**profile)
        page.goto(address)
        return page

    def _asked(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "file:///", "data:")):
            self.problems.append(f"asked for {url}")

    def _failed(self, url: str, why: str) -> None:
        if "ERR_ABORTED" not in why:  # a visitor who goes on does not wait for pictures
            self.problems.append(f"failed: {url} {why}")

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; its event loop holds this thread until it is closed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def drawn(page: Any) -> list[str]:
    """The charts of a page, once all of them are drawn."""
    page.wait_for_selector("html[data-ready=yes]")
    page.wait_for_function(
        "[...document.querySelectorAll('.chart')].every(one => one.querySelector('.main-svg'))"
    )
    return page.eval_on_selector_all(
        ".chart", "all => all.map(one => one.dataset.figure)"
    )


def barriers(page: Any) -> list[str]:
    """What axe-core finds against WCAG 2.2 AA: contrast, labels, names, roles, regions out of the keyboard's reach."""
    from axe_playwright_python.sync_playwright import Axe

    options = {
        "runOnly": {"type": "tag", "values": list(AA)},
        "resultTypes": ["violations"],
    }
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]


def overflow(page: Any) -> list[str]:
    """Elements that stick out of the window's right edge without a box of their own that scrolls."""
    return page.evaluate(
        """() => [...document.querySelectorAll('body *')].filter(one => {
            if (one.closest('.scroll, .skip, .hidden, svg, pre') || !one.getClientRects().length) return false;
            return one.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
        }).map(one => one.outerHTML.slice(0, 160))"""
    )


def shot(page: Any, name: str, *, whole: bool = True) -> None:
    """A picture of the page for people to look at, where LEVER_SCREENSHOTS is set: a long page takes a second."""
    if os.environ.get("LEVER_SCREENSHOTS"):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=whole)
