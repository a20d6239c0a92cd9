"""Draws items of the world on one sheet: picture, question, the annotators' answers, number of unknown facts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from leverplus.data.types import Item

TILE = 128  # pixels of a picture's side
TEXT = 78  # pixels of the text below it
COLUMNS = 4  # items in a row
WIDTH = 190  # pixels of an item's place


def draw_gallery(items: Sequence[Item], pictures: Sequence[Image.Image]) -> Image.Image:
    """A sheet of items and their pictures, four in a row."""
    rows = math.ceil(len(items) / COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * WIDTH, rows * (TILE + TEXT)), "white")
    pen = ImageDraw.Draw(sheet)
    bold = ImageFont.load_default(13)
    plain = ImageFont.load_default(12)
    for place, (item, picture) in enumerate(zip(items, pictures, strict=True)):
        left = place % COLUMNS * WIDTH
        top = place // COLUMNS * (TILE + TEXT)
        tile = picture.resize((TILE, TILE), Image.Resampling.NEAREST)
        sheet.paste(tile, (left + (WIDTH - TILE) // 2, top + 4))
        answers = []
        for answer, count in Counter(item.answers).most_common(2):
            answers.append(f"{answer} {count}")
        given = ", ".join(answers)
        note = f"{item.meta.get('unknown', '?')} unknown of {item.meta.get('facts', '?')} facts"
        left += 8
        top += TILE
        pen.text((left, top + 10), f"{item.question}?", "black", bold)
        pen.text((left, top + 28), given[:27], "#205080", plain)
        pen.text((left, top + 46), note, "#777777", plain)
    return sheet
