"""Reads `x-lever-filter`: which demonstrations a request may be shown, by their metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from leverplus.errors import LeverError

if TYPE_CHECKING:
    from leverplus.selector.demo import Demo

FILTER_HEADER = "x-lever-filter"
OWN_ID = "id"
"""The name under which a filter means a demonstration's id, and not its metadata."""


def read_filter(header: str) -> Callable[[Demo], bool]:
    """Whether a demonstration passes `KEY=VALUE&KEY=VALUE`, percent-encoded.

    Every key must hold; of a key that is said several times, one of its values. A demonstration without the key does
    not pass. A comma ends a filter, and all of them must hold: that is how servers join a header that was sent twice,
    so that a client can narrow what a reverse proxy in front of it allows, and never widen it.
    """
    filters = [_wanted(part) for part in header.split(",")]

    def passes(demo: Demo) -> bool:
        return all(
            (demo.id if key == OWN_ID else demo.meta.get(key)) in values
            for wanted in filters
            for key, values in wanted.items()
        )

    return passes


def _wanted(text: str) -> dict[str, set[str]]:
    """The values that each key may have."""
    wanted: dict[str, set[str]] = {}
    for part in text.split("&"):
        key, sign, value = part.partition("=")
        if not sign or not key.strip():
            raise LeverError(f"{FILTER_HEADER} must be KEY=VALUE, several with & between them, percent-encoded")
        wanted.setdefault(unquote(key.strip()), set()).add(unquote(value.strip()))
    return wanted
