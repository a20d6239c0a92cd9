"""The page at `/`: fixed files that hold nothing of the bundle; what they show comes from the JSON API."""

from __future__ import annotations

from functools import cache
from importlib import resources

from leverplus.view.pages import asset as view_asset

OWN = {"serve.css": "text/css", "serve.js": "text/javascript"}
SHARED = ("report.css", "view.css")


@cache
def read_asset(name: str) -> tuple[bytes, str] | None:
    """A file of the page and its type; None if it is not one."""
    if name in SHARED:
        return view_asset(name)
    return (_read(name), OWN[name]) if name in OWN else None


@cache
def front_page() -> bytes:
    return _read("serve.html")


def _read(name: str) -> bytes:
    return (resources.files("leverplus.serve") / "assets" / name).read_bytes()
