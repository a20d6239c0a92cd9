"""An embedder of words that bundles name `plain_words:WordEmbedder`: no weights, vectors that can be told by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.data.types import Item
from leverplus.encode.base import Vectors

WIDTH = 16


def vector_of(text: str) -> NDArray[np.float32]:
    """A unit vector that follows from a text: the sum of one random direction per word."""
    total = np.zeros(WIDTH)
    for word in text.lower().split():
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
        total += np.random.default_rng(seed).standard_normal(WIDTH)
    return (total / np.linalg.norm(total)).astype(np.float32)


class WordEmbedder:
    """Sees texts only; pictures are shown with a demonstration, and do not count in its choice."""

    def __init__(self, section: Any = None) -> None:
        self.section = section

    def fingerprint(self) -> Mapping[str, str]:
        return {"embedder": "plain words"}

    def embed(self, items: Sequence[Item], task: Any) -> Vectors:
        text = np.stack([vector_of(item.question) for item in items])  # (N, WIDTH)
        answer = np.stack(
            [
                vector_of(item.answer) if item.answers else np.zeros(WIDTH)
                for item in items
            ]
        )
        return Vectors(None, text, answer.astype(np.float32))
