"""What an embedder is: items in, unit vectors out, one row an item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from leverplus.tasks.base import Task
from leverplus.types import Item

Array = NDArray[np.float32]


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


class Embedder(Protocol):
    """`fingerprint` holds every parameter that changes a vector; it goes into the key of the cached vectors."""

    def fingerprint(self) -> Mapping[str, str]: ...

    def embed(self, items: Sequence[Item], task: Task) -> Vectors: ...
