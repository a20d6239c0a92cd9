"""Prompts out of chosen demonstrations, in the form that was trained with: turns of a chat, or one text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leverplus.backends.api.prompts import PICTURES_KEPT, ServerPrompts
from leverplus.backends.base import Request
from leverplus.recipe.model import ModelSection
from leverplus.selector.demo import Demo
from leverplus.selector.query import HeldPictures, Query
from leverplus.types import Item

if TYPE_CHECKING:
    from PIL import Image


class PromptPictures(HeldPictures):
    """The pictures of one prompt: the query's, and those of its demonstrations, decoded when they are asked for."""

    def __init__(self, query: Query | None, demos: Mapping[str, Demo]) -> None:
        own = {} if query is None or query.picture is None else {query.item().image or "": query.picture}
        super().__init__(own)
        self.demos = demos

    def image(self, item: Item) -> Image.Image | None:
        demo = self.demos.get(item.image or "")
        if demo is not None:
            return demo.pil()
        return super().image(item)

    def image_digest(self, item: Item) -> str:
        """By the names that pictures have already."""
        return item.image or ""


def chat_turns(
    section: ModelSection, query: Query, demos: Sequence[Demo], urls: dict[str, str]
) -> list[dict[str, Any]]:
    """The turns of a chat. `urls` keeps encoded pictures of demonstrations from one prompt to the next."""
    request, pictures = _request(query, demos)
    with _written(section, pictures, urls) as prompts:
        return prompts.turns(request)


def demo_turns(section: ModelSection, demos: Sequence[Demo], urls: dict[str, str]) -> list[dict[str, Any]]:
    """The demonstrations alone, each a user turn and its answer, as they stand in `chat_turns`."""
    pictures = PromptPictures(None, _pictures_of(demos))
    with _written(section, pictures, urls) as prompts:
        return prompts.demo_turns([_item(demo) for demo in demos])


@contextmanager
def _written(section: ModelSection, pictures: PromptPictures, urls: dict[str, str]) -> Iterator[ServerPrompts]:
    """Writes chats, and keeps the pictures of demonstrations it has encoded in `urls`."""
    known = {name: url for name in pictures.demos if (url := urls.get(name)) is not None}  # others may clear it now
    written = ServerPrompts(replace(section, prompt="chat"), pictures, urls=known)
    yield written
    if len(urls) + len(pictures.demos) > PICTURES_KEPT:
        urls.clear()
    urls.update({name: url for name, url in written.urls.items() if name in pictures.demos})


def plain_text(section: ModelSection, query: Query, demos: Sequence[Demo]) -> str:
    """One text up to where the answer begins."""
    request, pictures = _request(query, demos)
    return ServerPrompts(section, pictures).text(request)


def _request(query: Query, demos: Sequence[Demo]) -> tuple[Request, PromptPictures]:
    pictures = PromptPictures(query, _pictures_of(demos))
    return Request(query.item(), tuple(_item(demo) for demo in demos), ()), pictures


def _pictures_of(demos: Sequence[Demo]) -> dict[str, Demo]:
    return {demo.picture.name: demo for demo in demos if demo.picture is not None}


def _item(demo: Demo) -> Item:
    return Item(demo.id, demo.question, demo.answers, "train", demo.picture.name if demo.picture else None)
