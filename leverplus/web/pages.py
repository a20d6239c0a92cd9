"""Fills the pages' templates, which escape whatever comes from data, and serves the files that pages ask for."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape
from PIL import Image

from leverplus.data.types import Item
from leverplus.evaluate.names import arm_name, shots_name
from leverplus.web.figures import Figure, figure_values, percent

ASSETS = ("leverplus.web", "assets")
"""The package and the folder of every file that a page may ask for, and of the templates."""
SCRIPTS = ("plotly-basic.min.js", "report.js")
"""What draws the charts."""


@dataclass(frozen=True)
class Card:
    """An item as pages show it: by its id alone where the task cannot be reached or does not know it.

    `picture` is the class of the style sheet that shows it in a saved page, and any text where it has one elsewhere.
    """

    id: str
    question: str = ""
    answers: tuple[tuple[str, int], ...] = ()
    picture: str = ""
    meta: tuple[tuple[str, str], ...] = ()
    note: str = ""

    @classmethod
    def of(cls, item: Item, picture: str = "", note: str = "") -> Card:
        # of equal counts the first given stands first
        ranked = tuple(Counter(item.answers).most_common())
        meta = tuple(item.meta.items())
        return cls(item.id, item.question, ranked, picture, meta, note)

    @property
    def answer(self) -> str:
        return next((answer for answer, _ in self.answers), "")


@cache
def _text(name: str) -> str:
    package, folder = ASSETS
    return (resources.files(package) / folder / name).read_text("utf-8")


@cache
def _hashes() -> str:
    """What the policy of a saved page names: only these scripts run."""
    found = []
    for name in SCRIPTS:
        digest = hashlib.sha256(_text(name).encode()).digest()
        found.append(f"'sha256-{base64.b64encode(digest).decode()}'")
    return " ".join(found)


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        trim_blocks=True,
    )
    made.globals |= {
        "arm_name": arm_name,
        "shots_name": shots_name,
        "file": lambda name: Markup(_text(name)),
        "scripts": SCRIPTS,
    }
    made.filters |= {
        "points": lambda value: f"{100 * value:+.1f}",
        "percent": lambda value: percent(value) or "–",
        "mark": mark,
        "cut": cut,
        "with_code": with_code,
    }
    return made


def render(
    template: str, figures: Sequence[Figure] = (), *, saved: bool = False, **values: Any
) -> bytes:
    """A page; a `saved` one holds its style, its scripts and its charts, and asks for nothing.

    A text that is no valid Unicode, such as half a surrogate pair from a JSON file, is shown with question marks.
    """
    text = (
        _environment()
        .get_template(f"{template}.html.j2")
        .render(
            **values,
            saved=saved,
            drawn=bool(figures),
            figure_json=Markup(script_json(figure_values(figures))),
            hashes=Markup(_hashes()),
        )
    )
    return text.encode("utf-8", errors="replace")


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no character of it can end the element or open a comment."""
    # ASCII only, so U+2028 and its like are escaped already
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def with_code(words: Any) -> Markup:
    """A sentence for a page, with what stands between backticks as code."""
    text = str(escape(words))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", text))


def cut(words: Any, most: int = 160) -> str:
    """The text, or its beginning with its length where it is longer."""
    text = str(words)
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text):,} characters)"


def mark(score: float) -> str:
    """The class of the style sheet for an accuracy: right (1), wrong (0) or partly."""
    if score >= 1.0 - 1e-6:
        return "right"
    if score > 0.0:
        return "partly"
    return "wrong"


def webp(image: Image.Image, side: int) -> bytes:
    """A picture for a page, at most so many pixels wide and high."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    out = io.BytesIO()
    small.save(out, "WEBP", quality=80)
    return out.getvalue()
