"""What a caller brings and what he gets: a query, and demonstrations, with pictures in any usual form.

The same words and the same pixels are the same query, whatever file, format, path or white space they came in.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from leverplus.arms.corpus import words_digest
from leverplus.data.fields import QUESTION, clean_fields, render_fields
from leverplus.data.pictures import PICTURE_ERRORS, as_rgb, picture_reason
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError, LeverError, MissingFile

Picture = Image.Image | str | Path | bytes | bytearray | memoryview | Any
"""A path, a PIL image, the bytes of a picture file, a data URL, base64 of a file, {"bytes", "path"} as `datasets` has it,
a numpy array of uint8 (H, W), (H, W, 3 or 4); None."""

LONGEST_QUESTION = 100_000
"""Characters of a question."""

SMALLEST_PICTURE = 32
"""Bytes of a picture file; a text that holds fewer as base64 is a path. An empty PNG has 67."""

TAKEN = "give a path, the bytes of a picture file, a data URL, a PIL image or a numpy array of uint8"

SENT = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp")
"""Formats that every reader of data URLs takes; any other is sent as PNG."""


def clean_question(question: Any) -> str:
    """The question with its white space collapsed; a sentence where it is none."""
    if not isinstance(question, str):
        raise LeverError(f"the question must be a text, not {type(question).__name__}")
    words = " ".join(question.split())
    if not words:
        raise LeverError("the question is empty; give a text")
    if len(words) > LONGEST_QUESTION:
        raise LeverError(
            f"the question has {len(words):,} characters; at most {LONGEST_QUESTION:,} are taken"
        )
    try:
        words.encode()
    except UnicodeEncodeError as error:
        raise LeverError(f"the question holds half of a character ({error})") from error
    return words


def picture_content(image: Picture) -> bytes | Image.Image | None:
    """The bytes of the file that a picture came in, or the picture itself where it came in none.

    No address on a network is ever asked.
    """
    if isinstance(image, Mapping):
        image = image.get("bytes") or image.get("path")
    if image is None or isinstance(image, Image.Image):
        return image
    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
        return Image.fromarray(image)
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image)
    if not isinstance(image, (str, Path)):
        raise LeverError(f"a picture cannot be a {type(image).__name__}; {TAKEN}")
    text = os.path.expanduser(image)
    if not text:
        return None
    if os.path.isfile(text):
        return Path(text).read_bytes()
    body = text
    if text[:5].lower() == "data:":
        body = text.partition(",")[2]
    try:
        content = base64.b64decode("".join(body.split()), validate=True)
    except ValueError:
        content = b""
    if len(content) < SMALLEST_PICTURE:
        raise MissingFile(
            f"there is no image file {text[:200]}, and addresses are not fetched"
        )
    return content


@contextmanager
def picture_sentence(what: str) -> Iterator[None]:
    """Turn what Pillow raises inside into one sentence about `what`."""
    try:
        yield
    except (*PICTURE_ERRORS, TypeError, Image.DecompressionBombWarning) as error:
        raise DataError(
            f"{what} cannot be read as a picture ({picture_reason(error)})"
        ) from error


def clean_picture(image: Picture) -> Image.Image | None:
    """The picture in RGB, decoded to its end; None stays None."""
    name = "the picture"
    if isinstance(image, (str, Path)):
        name = str(image)[:200]
    with picture_sentence(name):
        content = picture_content(image)
        if content is None:
            return None
        if isinstance(content, bytes):
            with Image.open(io.BytesIO(content)) as opened:
                return as_rgb(opened)
        return as_rgb(content)


def pixel_digest(picture: Image.Image) -> str:
    """Names a decoded picture by its pixels."""
    content = repr(picture.size).encode() + picture.tobytes()
    return f"sha256:{hashlib.sha256(content).hexdigest()[:32]}"


def png_of(picture: Image.Image) -> bytes:
    """A picture as a PNG file, without loss; small would be slow."""
    out = io.BytesIO()
    picture.save(out, "PNG", compress_level=1)
    return out.getvalue()


class HeldPictures:
    """A task of pictures in memory, by `Item.image`: what embedders and prompts need of queries and examples."""

    name = "held"
    version = ""
    answers = AnswerRules("exact_match")

    def __init__(
        self, pictures: Mapping[str, Callable[[], Image.Image | None]]
    ) -> None:
        self.pictures = pictures

    def items(self, split: str) -> Sequence[Item]:  # noqa: ARG002 one signature with other tasks
        return ()

    def item(self, item_id: ItemId) -> Item:
        raise DataError(f"there is no item '{item_id}' here")

    def image(self, item: Item) -> Image.Image | None:
        if item.image is None:
            return None
        return self.pictures[item.image]()

    def image_digest(self, item: Item) -> str:
        return item.image or ""


@dataclass(frozen=True)
class Query:
    """A query in the one form that every choice starts from; `digest` follows from its words and pixels alone.

    `item` has no answers; its picture stands in `pictures`.
    """

    item: Item
    picture: Image.Image | None
    digest: str

    @classmethod
    def of(
        cls,
        question: Any,
        image: Picture = None,
        fields: Mapping[str, Any] | None = None,
    ) -> Query:
        """A query by its question, or by several named inputs, whose rendering the question then is.

        >>> Query.of("What  is it?\n").item.question
        'What is it?'
        """
        inputs: dict[str, str] = {}
        if fields is not None:
            inputs = clean_fields(fields)
            if isinstance(question, str) and question.strip():
                inputs.setdefault(QUESTION, question)
            question = render_fields(inputs)
        words = clean_question(question)
        picture = clean_picture(image)
        digest = words_digest(words, picture)
        name = ItemId(f"query-{digest[:12]}")
        if inputs:
            words = question  # lines of inputs stay lines
        own = None
        if picture is not None:
            own = str(name)
        item = Item(name, words, (), "query", own, name, fields=inputs)
        return cls(item, picture, digest)

    @property
    def pictures(self) -> dict[str, Callable[[], Image.Image | None]]:
        return {str(self.item.image): lambda: self.picture}


@dataclass(frozen=True)
class Demo(Item):
    """A worked example: `.id .question .answer .answers .meta .fields`, and a picture or none.

    >>> Demo("d1", "the sky?", ("blue",), "train").answer
    'blue'
    """

    read: Callable[[], bytes] | None = field(default=None, compare=False, repr=False)
    """Gives the picture as a file."""

    @classmethod
    def of(cls, item: Item, read: Callable[[], bytes]) -> Demo:
        """An example whose picture, where it has one, is read when it is asked for."""
        values = {own.name: getattr(item, own.name) for own in fields(Item)}
        if item.image is not None:
            values["read"] = read
        return cls(**values)

    def image_bytes(self) -> bytes | None:
        """The picture as the file it came in, PNG where it came in none."""
        if self.read is None:
            return None
        return self.read()

    def pil(self) -> Image.Image | None:
        """The picture, decoded to RGB."""
        return clean_picture(self.image_bytes())

    def data_url(self) -> str | None:
        """The picture inside a URL, as chat servers take it."""
        content = self.image_bytes()
        if content is None:
            return None
        kind = _media_type(content)
        if kind not in SENT and (picture := self.pil()):
            content = png_of(picture)
            kind = SENT[0]
        return f"data:{kind};base64,{base64.b64encode(content).decode()}"

    @property
    def image_path(self) -> str | None:
        """A temporary file that holds the picture; it lasts as long as this process."""
        content = self.image_bytes()
        if content is None:
            return None
        name = hashlib.sha256(content).hexdigest()[:32]
        ending = _media_type(content).rpartition("/")[2]
        path = _temporary_folder() / f"{name}.{ending}"
        if not path.is_file():
            part = path.with_suffix(".part")
            part.write_bytes(content)
            part.replace(path)
        return str(path)

    def as_json(self) -> dict[str, Any]:
        """What `lever select --json` prints: nothing in it depends on where the bundle lies."""
        shown: dict[str, Any] = {"id": self.id, "question": self.question}
        shown |= {"answer": self.answer, "image": self.image}
        if self.fields:
            shown["fields"] = dict(self.fields)
        return shown


class Picks(list[Demo]):
    """The chosen demonstrations in prompt order, nearest to the query last; `explanation` where it was asked for.

    `lists` are all lists of a way that asks the model several times, `answer` is that of a way that asks none.
    """

    def __init__(self, demos: Iterable[Demo] = ()) -> None:
        super().__init__(demos)
        self.explanation: dict[str, Any] | None = None
        self.answer: str | None = None
        self.lists: list[Picks] = []


def _media_type(content: bytes) -> str:
    """What kind of picture file this is, such as image/png."""
    with picture_sentence("a picture"), Image.open(io.BytesIO(content)) as opened:
        return opened.get_format_mimetype() or ""


@cache
def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lever-pictures-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
