"""Reading picture files: every mode becomes RGB of 8 bits, and what Pillow raises becomes a reason to print."""

from __future__ import annotations

import numpy as np
from PIL import Image, UnidentifiedImageError

MOST_PIXELS = 89_478_485
"""Pixels of one picture, where Pillow begins to warn of a bomb: a quarter of a gigabyte in RGB."""

PICTURE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, MemoryError, Image.DecompressionBombError)
"""What Pillow raises for files that are no pictures: SyntaxError for broken PNG chunks, ValueError for odd headers."""


def as_rgb(picture: Image.Image) -> Image.Image:
    """A picture in RGB; of 16 bits the upper 8, which Pillow's own conversion cuts off at 255."""
    width, height = picture.size
    if width * height > MOST_PIXELS:
        raise ValueError(f"it has {width * height:,} pixels; at most {MOST_PIXELS:,} are taken: scale it down")
    if width * height == 0:
        raise ValueError("it has no pixels")
    if picture.mode.startswith("I;16") or picture.mode == "I":
        upper = (np.asarray(picture).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        return Image.fromarray(upper).convert("RGB")
    return picture.convert("RGB")


def picture_reason(error: BaseException) -> str:
    """What Pillow says of a picture, without the path, which stands before it."""
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"it has too many pixels; at most {MOST_PIXELS:,} are taken: scale it down"
    if isinstance(error, UnidentifiedImageError):
        return "it is in no format of pictures that is known"
    reason = str(error.strerror or error) if isinstance(error, OSError) else str(error)
    return reason or type(error).__name__
