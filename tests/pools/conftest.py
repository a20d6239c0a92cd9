"""A small labelled set whose questions repeat and whose pictures carry several questions, as in a real task."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from leverplus.embedders.base import Vectors
from leverplus.types import Item, ItemId


def unit(count: int, width: int, seed: int) -> NDArray[np.float32]:
    drawn = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def make_set(count: int, *, split: str = "train", seed: int = 0, per_image: int = 3) -> tuple[list[Item], Vectors]:
    """`count` items, `per_image` questions on a picture, questions drawn from a handful so that they tie exactly."""
    rng = np.random.default_rng(seed)
    asked = rng.integers(0, max(2, count // 4), count)
    items = [
        Item(
            ItemId(f"{split}-{row}"), f"question {asked[row]}", ("yes",), split, image_id=f"{split}-{row // per_image}"
        )
        for row in range(count)
    ]
    text = unit(count, 12, seed + 1)[asked]
    image = unit(count, 8, seed + 2)[np.arange(count) // per_image]
    return items, Vectors(image=image, text=text, answer=np.zeros_like(text))


@pytest.fixture(name="make_set", scope="session")
def _make_set() -> Callable[..., tuple[list[Item], Vectors]]:
    return make_set
