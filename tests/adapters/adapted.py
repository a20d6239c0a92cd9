"""Small bundles for the tests of adapters, and the pages that show each adapter in ten lines."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from plain_words import WordEmbedder, vector_of

from leverplus.arms.nearest import NearestText
from leverplus.bundle.bundle import BundlePlan, draft_demo, write_bundle

ROOT = Path(__file__).parent.parent.parent
EMBEDDER = {
    "name": "plain_words:WordEmbedder",
    "fingerprint": dict(WordEmbedder().fingerprint()),
}
COLOURS = ("red", "green", "blue", "white", "black", "gray")
ANIMALS = ("dog", "cat", "horse", "bird", "fish", "sheep")
ASKED = "what colour is the dog"
TURN_ROLES = ["user", "assistant", "user", "assistant", "user"]
"""A chat with two demonstrations."""


def png(colour: str, size: int = 8) -> bytes:
    """A picture of one colour."""
    out = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(out, "PNG")
    return out.getvalue()


def encoded(colour: str) -> str:
    """The same as base64."""
    return base64.b64encode(png(colour)).decode()


def colour_at(picture: Image.Image | bytes) -> tuple[int, int, int]:
    """The colour of a picture's first pixel, by which tests know which picture it is."""
    image = (
        picture if isinstance(picture, Image.Image) else Image.open(io.BytesIO(picture))
    )
    pixel = image.convert("RGB").getpixel((0, 0))
    assert isinstance(pixel, tuple)
    return (int(pixel[0]), int(pixel[1]), int(pixel[2]))


def rgb(colour: str) -> tuple[int, int, int]:
    return colour_at(Image.new("RGB", (1, 1), colour))


def animals(*, pictures: bool = True) -> list[dict[str, Any]]:
    """Questions about animals; the picture of each has the colour that is its answer."""
    rows: list[dict[str, Any]] = []
    for animal, colour in zip(ANIMALS, COLOURS, strict=True):
        row = {
            "id": animal,
            "question": f"what colour is the {animal}",
            "answer": colour,
        }
        rows.append(row | ({"image": png(colour)} if pictures else {}))
    return rows


def make_bundle(folder: Path, rows: Sequence[Mapping[str, Any]], **plan: Any) -> Path:
    """A bundle that shows the nearest by words."""
    drafts = [draft_demo(number, row) for number, row in enumerate(rows)]
    vectors = {"text": np.stack([vector_of(item.question) for item, _ in drafts])}
    how = {
        "shots": 2,
        "embedder": EMBEDDER,
        "model": {"prompt": "chat"},
    } | plan
    return write_bundle(folder, BundlePlan(**how), NearestText(), drafts, vectors)


def by_hand(
    question: str, count: int, rows: Sequence[Mapping[str, Any]] | None = None
) -> list[str]:
    """The ids of the nearest by brute force, nearest last."""
    own = animals() if rows is None else rows
    near = [float(vector_of(row["question"]) @ vector_of(question)) for row in own]
    best = sorted(range(len(own)), key=lambda place: (-near[place], place))[:count]
    return [own[place]["id"] for place in reversed(best)]


def answer_of(name: str) -> str:
    """What the demonstration of an animal answers."""
    return COLOURS[ANIMALS.index(name)]


def page_of(name: str, place: int = 0) -> str:
    """The first program of an adapter's page, or another one."""
    text = (ROOT / "docs" / "adapters" / f"{name}.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found, f"docs/adapters/{name}.md shows no Python"
    return found[place]


def run_page(name: str, place: int = 0, **given: Any) -> dict[str, Any]:
    """Run a program of a page in the current folder; the names it leaves."""
    names: dict[str, Any] = {"__name__": "a_page", **given}
    # the page has not this module's `from __future__`, which would make texts of its annotations
    exec(
        compile(
            page_of(name, place), f"docs/adapters/{name}.md", "exec", dont_inherit=True
        ),
        names,
    )
    return names
