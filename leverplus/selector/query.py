"""What a caller brings as a query: a question and a picture in any usual form, made one form for all.

The same words and the same pixels are the same query, whatever file, format, path or white space they came in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from leverplus.errors import DataError, LeverError, MissingFile
from leverplus.tasks.pictures import PICTURE_ERRORS, as_rgb, picture_reason
from leverplus.types import Item, ItemId

if TYPE_CHECKING:
    from numpy.typing import NDArray

Picture = Image.Image | str | Path | bytes | bytearray | memoryview | Any
"""A path, a PIL image, the bytes of a picture file, a data URL, a numpy array of uint8 (H, W), (H, W, 3 or 4); None."""

LONGEST_QUESTION = 100_000
"""Characters of a question."""

TAKEN = "give a path, the bytes of a picture file, a data URL, a PIL image or a numpy array of uint8"


def clean_question(question: Any) -> str:
    """The question with its white space collapsed; a sentence where it is none."""
    if not isinstance(question, str):
        raise LeverError(f"the question must be a text, not {type(question).__name__}")
    words = " ".join(question.split())
    if not words:
        raise LeverError("the question is empty; give a text")
    if len(words) > LONGEST_QUESTION:
        raise LeverError(f"the question has {len(words):,} characters; at most {LONGEST_QUESTION:,} are taken")
    try:
        words.encode()
    except UnicodeEncodeError as error:
        raise LeverError(
            f"character {error.start + 1} of the question is half of a character (a lone surrogate); take it out"
        ) from error
    return words


def clean_picture(image: Picture) -> Image.Image | None:
    """The picture in RGB, decoded to its end; None stays None. No address on a network is ever asked."""
    if image is None:
        return None
    try:
        return _opened(image)
    except LeverError:
        raise
    except (*PICTURE_ERRORS, Image.DecompressionBombWarning) as error:
        raise DataError(f"{_named(image)} cannot be read as a picture ({picture_reason(error)})") from error


def _opened(image: Picture) -> Image.Image:
    if isinstance(image, Image.Image):
        return as_rgb(image)
    if isinstance(image, np.ndarray):
        return _from_array(image)
    content: io.BytesIO | Path
    if isinstance(image, (bytes, bytearray, memoryview)):
        content = io.BytesIO(bytes(image))
    elif isinstance(image, str) and image[:5].lower() == "data:":
        content = io.BytesIO(_from_data_url(image))
    elif isinstance(image, (str, Path)):
        content = _file(image)
    else:
        raise LeverError(f"a picture cannot be a {type(image).__name__}; {TAKEN}")
    with Image.open(content) as opened:
        return as_rgb(opened)


def _file(image: str | Path) -> Path:
    if isinstance(image, str) and "://" in image[:20]:
        raise LeverError(f"{image[:80]} is an address, and pictures are not fetched; download it and give the file")
    path = Path(image).expanduser()
    if "\0" in str(path):
        raise LeverError("the path of the picture holds a NUL character")
    if path.is_dir():
        raise MissingFile(f"{path} is a folder; give the file of a picture")
    if not path.is_file():
        raise MissingFile(f"there is no image file {path}")
    return path


def _from_data_url(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise LeverError("a data URL of a picture begins with data:image/png;base64, or the like")
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"the data URL of the picture is not base64 ({error})") from error


def _from_array(array: NDArray[Any]) -> Image.Image:
    flat = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype != np.uint8 or not flat or 0 in array.shape:
        raise LeverError(
            f"an array of {array.dtype} and shape {array.shape} is not a picture; give uint8 of shape (height, width), "
            "(height, width, 3) or (height, width, 4)"
        )
    return as_rgb(Image.fromarray(array))


def _named(image: Picture) -> str:
    if isinstance(image, Path) or (isinstance(image, str) and image[:5].lower() != "data:"):
        return str(image)[:200]
    return "the picture"


@dataclass(frozen=True)
class Query:
    """A query in the one form that every choice starts from; `digest` follows from its words and pixels alone."""

    words: str
    picture: Image.Image | None
    digest: str

    @classmethod
    def of(cls, question: Any, image: Picture = None) -> Query:
        words, picture = clean_question(question), clean_picture(image)
        content = hashlib.sha256(words.encode())
        if picture is not None:
            content.update(repr(picture.size).encode() + picture.tobytes())
        return cls(words, picture, content.hexdigest())

    def item(self) -> Item:
        """An unlabelled item whose picture `HeldPictures` knows by the item's own name."""
        name = ItemId(f"query-{self.digest[:12]}")
        return Item(name, self.words, (), "query", str(name) if self.picture is not None else None, name)


class HeldPictures:
    """A task of pictures in memory, by `Item.image`: what embedders and prompts need of queries and new items."""

    name, version, metric, postprocess = "held", "", "exact_match", "plain"

    def __init__(self, pictures: Mapping[str, Image.Image]) -> None:
        self.pictures = pictures

    def items(self, split: str) -> Sequence[Item]:  # noqa: ARG002 one signature with other tasks
        return ()

    def item(self, item_id: ItemId) -> Item:
        raise DataError(f"there is no item '{item_id}' here")

    def image(self, item: Item) -> Image.Image | None:
        return None if item.image is None else self.pictures[item.image]

    def image_digest(self, item: Item) -> str:
        """By pixels: the same picture in another format is the same picture."""
        picture = self.image(item)
        return "" if picture is None else pixel_digest(picture)


def pixel_digest(picture: Image.Image) -> str:
    """Names a decoded picture by its pixels."""
    return hashlib.sha256(repr(picture.size).encode() + picture.tobytes()).hexdigest()[:32]


def query_item(question: Any, image: Picture, folder: Path) -> Item:
    """An unlabelled item; its name follows from the words and the pixels, its picture is written to the folder."""
    query = Query.of(question, image)
    if query.picture is None:
        return query.item()
    path = folder / "query.png"
    query.picture.save(path, compress_level=1)  # lossless; small would be slow
    return replace(query.item(), image=str(path))
