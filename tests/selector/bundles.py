"""Small bundles for tests: demonstrations of words whose vectors can be told by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.embedders.base import Vectors
from leverplus.selector.pack import BundlePlan, write_bundle
from leverplus.selector.selector import Selector
from leverplus.selector.store import Entry
from leverplus.tasks.base import Task
from leverplus.types import Item, ItemId

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
        answer = np.stack([vector_of(item.answer) if item.answers else np.zeros(WIDTH) for item in items])
        return Vectors(None, text, answer.astype(np.float32))


def entries(count: int, answers: Sequence[str] = ("red", "blue")) -> list[Entry]:
    return [
        Entry(ItemId(f"d{row}"), f"word{row} thing{row % 7}", (answers[row % len(answers)],), {"part": str(row % 3)})
        for row in range(count)
    ]


def make_bundle(folder: Path, count: int = 40, **plan: Any) -> Path:
    """A bundle of `count` questions without pictures, by default nearest by text."""
    own = entries(count)
    vectors = {"text": np.stack([vector_of(entry.question) for entry in own])}
    more = {key: plan.pop(key) for key in ("numbers", "cells") if key in plan}
    how = BundlePlan(**{"arm": "nearest_text", "shots": 2, **plan})
    return write_bundle(folder, how, [(entry, None) for entry in own], vectors, **more)


def open_words(folder: Path) -> Selector:
    """The selector of such a bundle, its embedder the words' own."""
    from leverplus.selector.sources import BundleSource, QueryEncoder

    selector = Selector.load(folder)
    assert isinstance(selector.source, BundleSource)
    selector.source._open_encoder = lambda: QueryEncoder(WordEmbedder())
    return selector


def ids(picks: Sequence[Any]) -> list[str]:
    return [demo.id for demo in picks]
