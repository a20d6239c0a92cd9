"""Writes prompts for a server: one text, or the turns of a chat with pictures as data URLs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from PIL import Image

from leverplus.backends.base import Request
from leverplus.errors import ScoringError
from leverplus.recipe.model import ANSWER, QUESTION, ModelSection
from leverplus.tasks.base import Task
from leverplus.types import Item

Turn = dict[str, Any]
PICTURES_KEPT = 256
"""Encoded pictures that are kept in memory: a demonstration stands in many prompts."""


class ServerPrompts:
    """Writes prompts. In a text an answer is `lead + answer + ending`; in a chat it is a turn."""

    def __init__(self, section: ModelSection, task: Task, urls: dict[str, str] | None = None) -> None:
        self.section, self.task = section, task
        before, _, self.ending = section.template.partition(ANSWER)
        # The prompt ends before the blank, which most tokenizers join with the first word of the answer.
        self.before = before.rstrip(" ")
        self.lead = before[len(self.before) :]
        self.urls = {} if urls is None else urls
        """Encoded pictures by their digest."""

    def text(self, request: Request) -> str:
        """The prompt as one text, up to where the answer begins."""
        for item in (*request.demos, request.query):
            if item.image is not None:
                raise ScoringError(
                    f'item {item.id} has a picture, which only a chat can show; set model.prompt = "chat"'
                )
        parts = []
        if self.section.instruction:
            parts.append(self.section.instruction + "\n")
        for demo in request.demos:
            parts.append(self._ask(demo) + self.lead + demo.answer + self.ending)
        parts.append(self._ask(request.query))
        return "".join(parts)

    def _ask(self, item: Item) -> str:
        return self.before.replace(QUESTION, item.question)

    def turns(self, request: Request) -> list[Turn]:
        """The prompt as a chat: each demonstration is a question and its answer, then comes the query."""
        turns: list[Turn] = []
        if self.section.instruction:
            turns.append({"role": "system", "content": self.section.instruction})
        return [*turns, *self.demo_turns(request.demos), self._question(request.query)]

    def demo_turns(self, demos: Sequence[Item]) -> list[Turn]:
        """Each demonstration as a question and its answer."""
        turns: list[Turn] = []
        for demo in demos:
            turns.append(self._question(demo))
            turns.append({"role": "assistant", "content": demo.answer})
        return turns

    def chat_text(self, request: Request) -> str:
        """The texts of a chat's turns, one line per turn; pictures are left out."""
        lines = []
        for turn in self.turns(request):
            content = turn["content"]
            lines.append(content if isinstance(content, str) else content[-1]["text"])  # the picture stands first
        return "\n".join(lines)

    def _question(self, item: Item) -> Turn:
        if item.image is None:
            return {"role": "user", "content": item.question}
        parts = [{"type": "image_url", "image_url": {"url": self.url(item)}}, {"type": "text", "text": item.question}]
        return {"role": "user", "content": parts}

    def url(self, item: Item) -> str:
        """The picture of an item as a data URL; where several threads ask at once, one may be encoded twice."""
        digest = self.task.image_digest(item)
        known = self.urls.get(digest)
        if known is None:
            picture = self.task.image(item)
            if picture is None:
                raise ScoringError(f"item {item.id} has no picture any more; run `lever task check`")
            known = data_url(picture, self.section.image_pixels)
            if len(self.urls) >= PICTURES_KEPT:
                self.urls.clear()
            self.urls[digest] = known
        return known


def data_url(picture: Image.Image, most_pixels: int) -> str:
    """A picture as a PNG inside a URL, without loss; shrunk where it has more pixels than allowed (0: never)."""
    picture = picture.convert("RGB")
    pixels = picture.width * picture.height
    if most_pixels and pixels > most_pixels:
        scale = (most_pixels / pixels) ** 0.5  # of each side
        size = (max(1, int(picture.width * scale)), max(1, int(picture.height * scale)))
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
