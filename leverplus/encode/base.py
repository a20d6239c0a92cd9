"""Defines what an embedder gives (unit vectors, one row per item) and the encoder of texts and pictures inside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from leverplus.data.tasks.base import Task
from leverplus.data.types import Item
from leverplus.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[np.float32]
Progress = Callable[[str, int, int], None]
"""Called after every batch with (what is embedded, how many are done, how many there are)."""

KEY_SIZE = 16  # bytes; part of the format of kept vectors


@dataclass(frozen=True)
class Vectors:
    """Unit vectors of N items: picture, question and shown answer, each (N, D) float32; image is None for text tasks.

    `answer` is the text embedding of the answer an item shows as a demonstration; zero rows where there are no answers.
    """

    image: Array | None
    text: Array
    answer: Array

    def __len__(self) -> int:
        return len(self.text)

    def joined(self, more: Vectors) -> Vectors:
        """These items and then others, of the same embedder: all with pictures or none."""
        image = None
        if self.image is not None and more.image is not None:
            image = np.concatenate([self.image, more.image])  # (N + M, D)
        elif self.image is not None or more.image is not None:
            raise DataError(
                "some items have vectors of pictures and others have none; give all a picture, or none"
            )
        return Vectors(
            image,
            np.concatenate([self.text, more.text]),
            np.concatenate([self.answer, more.answer]),
        )


class Embedder(Protocol):
    """`fingerprint` holds every parameter that changes a vector; it goes into the key of the cached vectors."""

    def fingerprint(self) -> Mapping[str, str]: ...

    def embed(self, items: Sequence[Item], task: Task) -> Vectors: ...


class Encoder(Protocol):
    """Texts in, unit vectors (N, D) out: an array, or a tensor with gradients where torch computes it.

    One whose `sees` is True takes pictures too, by a method `pictures`; the others are never given any.
    """

    sees: bool

    def fingerprint(self) -> Mapping[str, str]: ...

    def texts(self, texts: Sequence[str]) -> Tensor | Array: ...


class TextEmbedder:
    """An embedder that reads texts alone, and quickly; whoever inherits says what vectors they have."""

    def of_texts(self, texts: Sequence[str]) -> Array:
        """Unit vectors of texts (N, D)."""
        raise NotImplementedError

    def embed(self, items: Sequence[Item], task: Task) -> Vectors:  # noqa: ARG002 one signature with other embedders
        text = self.of_texts([item.question for item in items])
        return Vectors(None, text, shown_answers(items, text, self.of_texts))


def shown_answers(
    items: Sequence[Item], text: Array, embed: Callable[[list[str]], Array]
) -> Array:
    """Unit vectors (N, D) of the answers that items show; a zero row for an item without one.

    Few answers are shared by many items, so each is embedded once and its row is copied.
    """
    answers = np.zeros_like(text)
    shown = sorted({item.answer for item in items if item.answers})
    if shown:  # else queries: nothing is encoded only to learn how wide a row is
        vectors = dict(zip(shown, embed(shown), strict=True))
        for row, item in enumerate(items):
            if item.answers:
                answers[row] = vectors[item.answer]
    return answers


def unit_rows(vectors: NDArray[np.floating]) -> Array:
    """Rows (N, D) divided by their lengths; a row of zeros stays."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)  # (N, 1)
    unit: Array = (vectors / length.clip(min=1e-12)).astype(np.float32)
    return unit


def content_key(kind: str, content: str) -> bytes:
    """The key of a text, or of a picture by its digest."""
    key = blake2b(content.encode(), digest_size=KEY_SIZE, person=kind.encode())
    return key.digest()
