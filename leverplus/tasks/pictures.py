"""Reads picture files: converts every mode to RGB of 8 bits, and turns Pillow's errors into reasons to print."""

from __future__ import annotations

import numpy as np
from PIL import Image, UnidentifiedImageError

MOST_PIXELS = 89_478_485
"""The most pixels of one picture: Pillow warns of a decompression bomb above it (a quarter of a gigabyte in RGB)."""

PICTURE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, MemoryError, Image.DecompressionBombError)
"""What Pillow raises for files that are no pictures: SyntaxError for broken PNG chunks, ValueError for odd headers."""


def as_rgb(picture: Image.Image) -> Image.Image:
    """A picture in RGB; of 16 bits per pixel the upper 8 are kept, where Pillow's own conversion clips at 255."""
    width, height = picture.size
    pixels = width * height
    if pixels > MOST_PIXELS:
        raise ValueError(f"it has {pixels:,} pixels; at most {MOST_PIXELS:,} are taken: scale it down")
    if pixels == 0:
        raise ValueError("it has no pixels")
    if picture.mode.startswith("I;16") or picture.mode == "I":
        values = np.asarray(picture).astype(np.int64)  # (height, width), 0 to 65535
        upper = (values >> 8).clip(0, 255).astype(np.uint8)
        return Image.fromarray(upper).convert("RGB")
    return picture.convert("RGB")


def picture_reason(error: BaseException) -> str:
    """Why Pillow cannot read a picture, without the path, which the caller prints before it."""
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"it has too many pixels; at most {MOST_PIXELS:,} are taken: scale it down"
    if isinstance(error, UnidentifiedImageError):
        return "it is in no format of pictures that is known"
    reason = str(error.strerror or error) if isinstance(error, OSError) else str(error)
    return reason or type(error).__name__
