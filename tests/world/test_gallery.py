"""The gallery shows every item with its picture."""

from __future__ import annotations

import numpy as np
from PIL import Image

from leverplus.data.types import Item, ItemId
from leverplus_lab.world.gallery import COLUMNS, TEXT, TILE, WIDTH, draw_gallery


def test_a_sheet_holds_every_picture_four_in_a_row() -> None:
    items = [
        Item(ItemId(f"i{n}"), "what does it like", ("cookie", "biscuit"), "test")
        for n in range(5)
    ]
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0), (0, 250, 250)]
    sheet = draw_gallery(
        items, [Image.new("RGB", (32, 32), colour) for colour in colours]
    )
    assert sheet.size == (COLUMNS * WIDTH, 2 * (TILE + TEXT))
    for place, colour in enumerate(colours):
        left, top = place % COLUMNS * WIDTH, place // COLUMNS * (TILE + TEXT)
        assert sheet.getpixel((left + WIDTH // 2, top + TILE // 2)) == colour
    words = np.asarray(sheet)[TILE + 8 : TILE + 64, :WIDTH]
    assert (words < 128).any(), (
        "the question and the answers are written under the picture"
    )
