"""A demonstration as a caller gets it: a worked example with its answer, and its picture in whatever form is needed."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.errors import DataError, NotMeasured
from leverplus.tasks.pictures import PICTURE_ERRORS, as_rgb, picture_reason
from leverplus.types import ItemId

if TYPE_CHECKING:
    from PIL import Image

MIME = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif", "BMP": "image/bmp"}
"""What a data URL says of the formats that every reader of such URLs takes; any other is sent as PNG."""

BY_PIXELS = "sha256:"
"""How the names of pictures begin that bundles keep: the digest of their pixels follows."""


class Scratch:
    """A folder for pictures that somebody wants as files; made when the first one is asked for, gone at the end."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def path(self, content: bytes) -> str:
        """A file with this content; the same content is the same file."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="lever-pictures-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        name = hashlib.sha256(content).hexdigest()[:32] + "." + _format(content).lower()
        path = self._folder / name
        if not path.is_file():
            part = path.with_suffix(".part")
            part.write_bytes(content)
            part.replace(path)
        return str(path)


@dataclass(frozen=True)
class StoredPicture:
    """A picture of a demonstration: `name` is what stays the same wherever the bundle lies."""

    name: str
    read: Callable[[], bytes] = field(compare=False, repr=False)
    scratch: Scratch = field(compare=False, repr=False)
    path: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Demo:
    """A worked example: a question, its answer, and a picture or none."""

    id: ItemId
    question: str
    answers: tuple[str, ...]
    meta: Mapping[str, str] = field(default_factory=dict)
    picture: StoredPicture | None = field(default=None, repr=False)

    @property
    def answer(self) -> str:
        """The answer that is shown: the most common one, ties broken by first mention."""
        if not self.answers:
            raise NotMeasured(f"demonstration {self.id} has no answer")
        return Counter(self.answers).most_common(1)[0][0]

    @property
    def image_path(self) -> str | None:
        """A file that holds the picture: the original, or a temporary copy that lasts as long as the selector."""
        if self.picture is None:
            return None
        return self.picture.path or self.picture.scratch.path(self.picture.read())

    def image_bytes(self) -> bytes | None:
        """The picture as the file it came in, PNG where it came in none."""
        return None if self.picture is None else self.picture.read()

    def data_url(self) -> str | None:
        """The picture inside a URL, as chat servers take it."""
        content = self.image_bytes()
        return None if content is None else data_url_of(content)

    def pil(self) -> Image.Image | None:
        """The picture, decoded to RGB."""
        content = self.image_bytes()
        return None if content is None else decoded(content, f"the picture of demonstration {self.id}")

    def as_json(self) -> dict[str, Any]:
        """What `lever select --json` prints: nothing in it depends on where the bundle lies."""
        image = None if self.picture is None else self.picture.name
        return {"id": self.id, "question": self.question, "answer": self.answer, "image": image}


class Picks(list[Demo]):
    """The chosen demonstrations in prompt order, nearest to the query last; `explanation` where it was asked for."""

    explanation: dict[str, Any] | None = None


def decoded(content: bytes, what: str) -> Image.Image:
    """The picture of a file's bytes, in RGB; a sentence about `what` where it is none."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as opened:
            return as_rgb(opened)
    except (*PICTURE_ERRORS, Image.DecompressionBombWarning) as error:
        raise DataError(f"{what} cannot be read as a picture ({picture_reason(error)})") from error


def data_url_of(content: bytes) -> str:
    """A picture file inside a URL; formats that not every server reads become PNG."""
    kind = _format(content)
    if kind not in MIME:
        content, kind = png_of(decoded(content, "the picture")), "PNG"
    return f"data:{MIME[kind]};base64," + base64.b64encode(content).decode("ascii")


def png_of(picture: Image.Image) -> bytes:
    """A picture as a PNG file, without loss; small would be slow."""
    out = io.BytesIO()
    picture.save(out, "PNG", compress_level=1)
    return out.getvalue()


def _format(content: bytes) -> str:
    """The format of a picture file by its head."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as opened:
            return opened.format or "PNG"
    except (*PICTURE_ERRORS, Image.DecompressionBombWarning) as error:
        raise DataError(f"a stored picture cannot be read ({picture_reason(error)})") from error
