"""What every adapter begins with: its framework, its selector, and a picture in the form a framework hands it over."""

from __future__ import annotations

import base64
import binascii
import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leverplus.errors import LeverError
from leverplus.selector.demo import BY_PIXELS, Demo
from leverplus.selector.query import Picture, Query, clean_question, pixel_digest
from leverplus.selector.selector import Selector

ORDERS = ("nearest_last", "nearest_first")
"""Orders of chosen demonstrations; selectors choose for the first, LangChain and DSPy KNN give the second."""

SHORTEST_PICTURE = 64
"""Characters of base64 that could hold a picture file; shorter texts are paths. An empty PNG has 90."""


class MissingFramework(LeverError, ImportError):
    """The framework of an adapter is not installed; the sentence names what to type."""


def require_framework(module: str, extra: str) -> Any:
    """The module of a framework, or a sentence that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = getattr(error, "name", None) or module
        if missing.partition(".")[0] != module.partition(".")[0]:
            why = f"{module} is installed but cannot be imported ({error})"
        else:
            why = f"this adapter needs {module}, which is not installed"
        raise MissingFramework(f"{why}; type `pip install 'leverplus[{extra}]'`") from error


_opened: dict[str, Selector] = {}
_opening = threading.Lock()


def open_selector(source: Selector | str | Path) -> Selector:
    """A selector as it is, or the one of a folder or of `hf://ORG/NAME`; each folder is opened once per process."""
    if isinstance(source, Selector):
        return source
    if not isinstance(source, (str, Path)):
        raise LeverError(f"a selector, or the folder of a bundle or run, was expected, not {type(source).__name__}")
    remote = isinstance(source, str) and source.startswith("hf://")
    name = str(source) if remote else str(Path(source).expanduser().resolve())
    with _opening:
        if name not in _opened:
            _opened[name] = Selector.load(name)
        return _opened[name]


def folder_of(selector: Selector) -> str:
    """The folder that a selector was opened from: what a saved program writes down."""
    return str(selector.run.folder if selector.bundle is None else selector.bundle.folder)


def in_order(demos: Sequence[Demo], order: str) -> list[Demo]:
    """Chosen demonstrations in prompt order, or turned round."""
    if order not in ORDERS:
        raise LeverError(f'order = "{order}": must be one of {", ".join(ORDERS)}')
    return list(demos) if order == ORDERS[0] else list(reversed(demos))


def as_picture(value: Any) -> Picture:
    """A picture as `Selector.select` takes it, from what frameworks hand over.

    Beyond paths, bytes, data URLs, PIL images and arrays that is base64 without a head (LangChain's picture blocks),
    and the mapping `{"bytes", "path"}` of a `datasets` column that is not decoded. An empty text is no picture.
    """
    if isinstance(value, Mapping):
        if not {"bytes", "path"} & set(value):
            raise LeverError("a mapping is a picture only where it has 'bytes' or 'path'")
        return value.get("bytes") or value.get("path") or None
    if not isinstance(value, str):
        return value
    if not value:
        return None
    return _from_base64(value) or value


def _from_base64(text: str) -> bytes | None:
    """The bytes of a text that is plain base64; None where it is a path or a URL."""
    if len(text) < SHORTEST_PICTURE or ":" in text[:20] or _is_file(text):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # base64 of a picture is longer than a file name may be
        return False


def base64_of(demo: Demo) -> tuple[str, str]:
    """The picture of a demonstration as base64, and its media type; the demonstration must have one."""
    url = demo.data_url()
    if url is None:
        raise LeverError(f"demonstration {demo.id} has no picture")
    head, _, content = url.partition(",")
    return content, head.removeprefix("data:").removesuffix(";base64")


def apart_from(question: str, image: Picture) -> Callable[[Demo], bool]:
    """Says of a demonstration whether it may be shown for a query of an evaluation: not the query itself.

    A demonstration on the query's picture is never shown; where neither has a picture, one with the same words is not.
    """
    query = Query.of(question, image)
    named = None if query.picture is None else pixel_digest(query.picture)

    def fits(demo: Demo) -> bool:
        if named is not None and demo.picture is not None:
            return _picture_digest(demo) != named
        return named is not None or demo.picture is not None or clean_question(demo.question) != query.words

    return fits


def _picture_digest(demo: Demo) -> str:
    """Names a demonstration's picture by its pixels; a bundle knows the name, the picture of a run is decoded."""
    known = demo.picture.name if demo.picture is not None else ""
    if known.startswith(BY_PIXELS):
        return known.removeprefix(BY_PIXELS)
    picture = demo.pil()
    return "" if picture is None else pixel_digest(picture)
