"""Small bundles for tests: demonstrations of words whose vectors can be told by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.arms.base import Arm
from leverplus.arms.spec import open_arm
from leverplus.bundle.bundle import BundlePlan, write_bundle
from leverplus.bundle.selector import Selector
from leverplus.data.tasks.base import Task
from leverplus.data.types import Item, ItemId
from leverplus.encode.base import Vectors

WIDTH = 16


def vector_of(text: str, width: int = WIDTH) -> NDArray[np.float32]:
    """A unit vector that follows from a text: the sum of one random direction a word."""
    total = np.zeros(width)
    for word in text.split():
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
        total += np.random.default_rng(seed).standard_normal(width)
    return (total / np.linalg.norm(total)).astype(np.float32)


class WordEmbedder:
    """Embeds texts by their words."""

    def fingerprint(self) -> Mapping[str, str]:
        return {"embedder": "words"}

    def embed(self, items: Sequence[Item], task: Task) -> Vectors:
        text = np.stack([vector_of(item.question) for item in items])
        answer = np.stack(
            [
                vector_of(item.answer) if item.answers else np.zeros(WIDTH)
                for item in items
            ]
        )
        return Vectors(None, text, answer.astype(np.float32))


def entries(count: int, answers: Sequence[str] = ("red", "blue")) -> list[Item]:
    items = []
    for row in range(count):
        name, words = ItemId(f"d{row}"), f"word{row} thing{row % 7}"
        answer, meta = (answers[row % len(answers)],), {"part": str(row % 3)}
        items.append(Item(name, words, answer, "train", meta=meta))
    return items


def make_bundle(
    folder: Path, count: int = 40, *, arm: str | Arm = "nearest_text", **plan: Any
) -> Path:
    """A bundle of `count` questions without pictures, by default nearest by text; an arm by name is not fitted."""
    own = entries(count)
    vectors = {"text": np.stack([vector_of(entry.question) for entry in own])}
    way = arm if isinstance(arm, Arm) else open_arm(arm)
    kept = [(entry, None) for entry in own]
    how = BundlePlan(**{"shots": 2, **plan})
    return write_bundle(folder, how, way, kept, vectors)


def open_words(folder: Path) -> Selector:
    """The selector of such a bundle, its embedder the words' own."""
    selector = Selector.load(folder)
    selector.source.embedder = WordEmbedder()
    return selector


def ids(picks: Sequence[Any]) -> list[str]:
    return [demo.id for demo in picks]
