"""Prompts as a server takes them: one text, or the turns of a chat with pictures as data URLs."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

from leverplus.backends.base import Request
from leverplus.errors import ScoringError
from leverplus.recipe.model import ANSWER, QUESTION, ModelSection
from leverplus.tasks.base import Task
from leverplus.types import Item

Turn = dict[str, Any]
KEPT = 256
"""Encoded pictures that are kept; demonstrations come back often."""


class Prompts:
    """Writes prompts. A plain answer is `lead + answer + ending`; a chat's answer is a turn."""

    def __init__(self, section: ModelSection, task: Task, urls: dict[str, str] | None = None) -> None:
        self.section, self.task = section, task
        before, _, self.ending = section.template.partition(ANSWER)
        self.before = before.rstrip(" ")
        self.lead = before[len(self.before) :]
        self.urls = {} if urls is None else urls
        """Encoded pictures by their digest."""

    def text(self, request: Request) -> str:
        """A plain prompt up to where the answer begins."""
        for item in (*request.demos, request.query):
            if item.image is not None:
                raise ScoringError(
                    f'item {item.id} has a picture, which only a chat can show; set model.prompt = "chat"'
                )
        parts = [self.section.instruction + "\n"] if self.section.instruction else []
        parts += [self._ask(demo) + self.lead + demo.answer + self.ending for demo in request.demos]
        return "".join([*parts, self._ask(request.query)])

    def _ask(self, item: Item) -> str:
        return self.before.replace(QUESTION, item.question)

    def turns(self, request: Request) -> list[Turn]:
        """A chat: each demonstration a question and its answer, then the query."""
        turns = [{"role": "system", "content": self.section.instruction}] if self.section.instruction else []
        for demo in request.demos:
            turns += [self._question(demo), {"role": "assistant", "content": demo.answer}]
        return [*turns, self._question(request.query)]

    def chat_text(self, request: Request) -> str:
        """The texts of a chat's turns, a line each; pictures are left out."""
        contents = [turn["content"] for turn in self.turns(request)]
        return "\n".join(content if isinstance(content, str) else content[-1]["text"] for content in contents)

    def _question(self, item: Item) -> Turn:
        if item.image is None:
            return {"role": "user", "content": item.question}
        parts = [{"type": "image_url", "image_url": {"url": self.url(item)}}, {"type": "text", "text": item.question}]
        return {"role": "user", "content": parts}

    def url(self, item: Item) -> str:
        """The picture of an item; several threads may ask, at worst one is encoded twice."""
        digest = self.task.image_digest(item)
        known = self.urls.get(digest)
        if known is None:
            picture = self.task.image(item)
            if picture is None:
                raise ScoringError(f"item {item.id} has no picture any more; run `lever task check`")
            known = data_url(picture, self.section.image_pixels)
            if len(self.urls) >= KEPT:
                self.urls.clear()
            self.urls[digest] = known
        return known


def data_url(picture: Image.Image, most_pixels: int) -> str:
    """A picture as a PNG inside a URL, without loss; shrunk where it has more pixels than allowed (0: never)."""
    picture = picture.convert("RGB")
    pixels = picture.width * picture.height
    if most_pixels and pixels > most_pixels:
        share = (most_pixels / pixels) ** 0.5
        size = (max(1, int(picture.width * share)), max(1, int(picture.height * share)))
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
