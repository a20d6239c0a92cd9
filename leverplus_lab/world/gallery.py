"""Draws items of the world on one sheet: picture, question, the annotators' answers, number of unknown facts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from leverplus.data.types import Item

TILE, TEXT, COLUMNS = (
    128,
    78,
    4,
)  # pixels of a picture's side, pixels of the text below it, items in a row
WIDTH = 190  # pixels of an item's place


def draw_gallery(items: Sequence[Item], pictures: Sequence[Image.Image]) -> Image.Image:
    """A sheet of items and their pictures, four in a row."""
    rows = math.ceil(len(items) / COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * WIDTH, rows * (TILE + TEXT)), "white")
    pen = ImageDraw.Draw(sheet)
    bold, plain = ImageFont.load_default(13), ImageFont.load_default(12)
    for place, (item, picture) in enumerate(zip(items, pictures, strict=True)):
        left = place % COLUMNS * WIDTH
        top = place // COLUMNS * (TILE + TEXT)
        tile = picture.resize((TILE, TILE), Image.Resampling.NEAREST)
        sheet.paste(tile, (left + (WIDTH - TILE) // 2, top + 4))
        answers = ", ".join(
            f"{answer} {count}"
            for answer, count in Counter(item.answers).most_common(2)
        )
        pen.text((left + 8, top + TILE + 10), f"{item.question}?", "black", bold)
        pen.text((left + 8, top + TILE + 28), answers[:27], "#205080", plain)
        note = f"{item.meta.get('unknown', '?')} unknown of {item.meta.get('facts', '?')} facts"
        pen.text((left + 8, top + TILE + 46), note, "#777777", plain)
    return sheet
