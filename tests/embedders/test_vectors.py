"""Vectors of items, one block a part."""

from __future__ import annotations

import numpy as np
import pytest

from leverplus.embedders.base import Vectors
from leverplus.errors import DataError


def vectors(*values: float, pictures: bool = True) -> Vectors:
    column = np.array(values, np.float32)[:, None]
    return Vectors(column if pictures else None, 10 * column, 100 * column)


def test_joined_vectors_hold_the_items_of_both_in_order() -> None:
    both = vectors(1.0, 2.0).joined(vectors(3.0))
    assert both.image is not None
    assert [block.ravel().tolist() for block in (both.image, both.text, both.answer)] == [
        [1.0, 2.0, 3.0],
        [10.0, 20.0, 30.0],
        [100.0, 200.0, 300.0],
    ]
    assert vectors(1.0, pictures=False).joined(vectors(2.0, pictures=False)).image is None


def test_items_with_pictures_are_not_joined_to_items_without() -> None:
    with pytest.raises(DataError, match="some items have vectors of pictures and others have none"):
        vectors(1.0).joined(vectors(2.0, pictures=False))
