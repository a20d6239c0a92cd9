"""Prompts out of chosen demonstrations, in the form that was trained with: turns of a chat, or one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    def __init__(self, query: Query, demos: Mapping[str, Demo]) -> None:
        super().__init__({} if query.picture is None else {query.item().image or "": query.picture})
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
    known = {name: urls[name] for name in pictures.demos if name in urls}
    written = ServerPrompts(replace(section, prompt="chat"), pictures, urls=dict(known))
    turns = written.turns(request)
    if len(urls) + len(pictures.demos) > PICTURES_KEPT:
        urls.clear()
    urls.update({name: url for name, url in written.urls.items() if name in pictures.demos})
    return turns


def plain_text(section: ModelSection, query: Query, demos: Sequence[Demo]) -> str:
    """One text up to where the answer begins."""
    request, pictures = _request(query, demos)
    return ServerPrompts(section, pictures).text(request)


def _request(query: Query, demos: Sequence[Demo]) -> tuple[Request, PromptPictures]:
    named = {demo.picture.name: demo for demo in demos if demo.picture is not None}
    shown = tuple(
        Item(demo.id, demo.question, demo.answers, "train", demo.picture.name if demo.picture else None)
        for demo in demos
    )
    return Request(query.item(), shown, ()), PromptPictures(query, named)
