"""Defines what an embedder gives (unit vectors, one row per item) and the encoder of texts and pictures inside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from leverplus.errors import DataError
from leverplus.tasks.base import Task
from leverplus.types import Item

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor, nn

Array = NDArray[np.float32]
Progress = Callable[[str, int, int], None]
"""Called after every batch with (what is embedded, how many are done, how many there are)."""


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
        pictures = [block for block in (self.image, more.image) if block is not None]
        if len(pictures) == 1:
            raise DataError("some items have vectors of pictures and others have none; give all a picture, or none")
        return Vectors(
            np.concatenate(pictures) if pictures else None,  # (N + M, D)
            np.concatenate([self.text, more.text]),
            np.concatenate([self.answer, more.answer]),
        )


class Embedder(Protocol):
    """`fingerprint` holds every parameter that changes a vector; it goes into the key of the cached vectors."""

    def fingerprint(self) -> Mapping[str, str]: ...

    def embed(self, items: Sequence[Item], task: Task) -> Vectors: ...


class Encoder(Protocol):
    """A pretrained network: texts and pictures in, unit vectors (N, D) out, on its device, gradients where asked for.

    `sees` says whether it encodes pictures; one that does not is never given any.
    """

    sees: bool
    network: nn.Module

    def fingerprint(self) -> Mapping[str, str]: ...

    def texts(self, texts: Sequence[str]) -> Tensor: ...

    def pictures(self, pictures: Sequence[Image.Image]) -> Tensor: ...
