"""Pictures: those of records as files, in RGB of 8 bits, with Pillow's errors as reasons to print."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from leverplus.errors import DataError

MOST_PIXELS = 89_478_485
"""The most pixels of one picture: Pillow warns of a decompression bomb above it (a quarter of a gigabyte in RGB)."""

TOO_LARGE = f"it has too many pixels; at most {MOST_PIXELS:,} are taken: scale it down"

PICTURE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    MemoryError,
    Image.DecompressionBombError,
)
"""What Pillow raises for files that are no pictures: SyntaxError for broken PNG chunks, ValueError for odd headers."""

# The last bytes of a whole file (JPEG: end of image, PNG: the last chunk); a download that broke off lacks them.
_ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}
_TAIL_BYTES = 4096  # cameras and editors append some bytes after the end, so the ending is searched for in these


class KeptPictures:
    """Names the pictures of records, and writes those that stand inside them to a folder, once each.

    >>> KeptPictures(None, "mine.jsonl").name_of("cats/1.png")
    'cats/1.png'
    """

    def __init__(self, folder: Path | None, source: str) -> None:
        self.folder = folder
        self.source = source
        self.written = False

    def name_of(self, value: Any) -> str | None:
        """The path of a record's picture; None where it has none, DataError with a sentence where it is none."""
        if isinstance(value, (list, tuple)):
            if len(value) > 1:
                raise DataError(
                    f"there are {len(value)} pictures; an example has one: leave the others out"
                )
            value = value[0] if value else None
        if isinstance(value, Mapping):  # as `datasets` keeps pictures
            inner = value.get("bytes")
            value = value.get("path") if inner is None else inner
        if value is None or value == "" or value != value:  # noqa: PLR0124 NaN
            return None
        if isinstance(value, str):
            if value[:5].lower() == "data:":
                return self._write(decode_data_url(value))
            if "\0" not in value:
                return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._write(bytes(value))
        if isinstance(value, Image.Image):
            out = io.BytesIO()
            value.save(out, "PNG", compress_level=1)
            return self._write(out.getvalue())
        raise DataError("image must be a path or null")

    def _write(self, content: bytes) -> str:
        if self.folder is None:
            raise DataError(
                f"its picture stands inside {self.source}; set task.images = FOLDER, where it can be written"
            )
        path = self.folder / f"{hashlib.sha256(content).hexdigest()[:32]}.img"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not path.is_file():
                path.write_bytes(content)
        except OSError as error:
            raise DataError(
                f"its picture cannot be written to {self.folder} ({error.strerror})"
            ) from error
        self.written = True
        return str(path.resolve())


def decode_data_url(text: str) -> bytes:
    """The bytes of a picture file in a data URL; DataError with a sentence where there are none."""
    head, _, body = text.partition(",")
    if not head.lower().endswith(";base64"):
        raise DataError(
            "a data URL of a picture begins with data:image/png;base64, or the like"
        )
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except ValueError as error:
        raise DataError(
            f"the data URL of the picture is not base64 ({error})"
        ) from error


def as_rgb(picture: Image.Image) -> Image.Image:
    """A picture in RGB; of 16 bits per pixel the upper 8 are kept, where Pillow's own conversion clips at 255."""
    width, height = picture.size
    if width * height > MOST_PIXELS:
        raise ValueError(TOO_LARGE)
    if width * height == 0:
        raise ValueError("it has no pixels")
    if picture.mode.startswith("I;16") or picture.mode == "I":
        values = np.asarray(picture).astype(np.int64)  # (height, width), 0 to 65535
        upper = (values >> 8).clip(0, 255).astype(np.uint8)
        return Image.fromarray(upper).convert("RGB")
    return picture.convert("RGB")


def picture_reason(error: BaseException) -> str:
    """Why Pillow cannot read a picture, without the path, which the caller prints before it."""
    if isinstance(
        error, (Image.DecompressionBombError, Image.DecompressionBombWarning)
    ):
        return TOO_LARGE
    if isinstance(error, UnidentifiedImageError):
        return "it is in no format of pictures that is known"
    reason = getattr(error, "strerror", None) or error
    return str(reason) or type(error).__name__


def picture_fault(path: Path, *, decode: bool) -> str | None:
    """What is wrong with a picture file, or None. Without `decode` only its head and its end are looked at."""
    try:
        if not path.is_file():
            return "is not there"
        with Image.open(path) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(TOO_LARGE)
            ending = _ENDINGS.get(picture.format or "")
            if decode or ending is None or ending not in _tail(path):
                picture.load()  # decodes; raises where the file is cut short
    except PICTURE_ERRORS as error:
        return f"cannot be read as a picture ({picture_reason(error)})"
    return None


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read()
