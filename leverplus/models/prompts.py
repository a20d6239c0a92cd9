"""Writes prompts for every kind of model: one text, or the turns of a chat; the same for all but for how pictures go in."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

from PIL import Image

from leverplus.data.tasks.base import Task
from leverplus.data.types import Item
from leverplus.errors import DataError, LeverError, ScoringError
from leverplus.models.base import Request
from leverplus.models.settings import ANSWER, QUESTION, ModelSection

Turn = dict[str, Any]

PICTURES_KEPT = 256
"""Encoded pictures that are kept in memory: a demonstration stands in many prompts."""


class PromptWriter:
    """Writes prompts by a `[model]` section; backends say what stands for a picture.

    In a text an answer is `lead + answer + ending`. The prompt ends before the blank that leads an answer, which most
    tokenizers join with its first word. In a chat an answer is a turn.
    """

    def __init__(self, section: ModelSection) -> None:
        self.section = section
        self.chat = section.prompt == "chat"
        self.system_turn = True
        before, _, self.ending = section.template.partition(ANSWER)
        self.before = before.rstrip(" ")
        self.lead = before[len(self.before) :]

    @property
    def stop(self) -> str:
        """What ends an answer in the model's words: the ending, whose own line end it may not reach."""
        return self.ending.rstrip() or self.ending

    def text(self, request: Request) -> str:
        """The prompt as one text, up to where the answer begins."""
        parts = []
        if self.section.instruction:
            parts.append(self.section.instruction + "\n")
        for demo in request.demos:
            parts.append(self._ask(demo) + self.lead + demo.answer + self.ending)
        parts.append(self._ask(request.query))
        return "".join(parts)

    def _ask(self, item: Item) -> str:
        return self.marker(item) + self.before.replace(QUESTION, item.question)

    def turns(self, request: Request) -> list[Turn]:
        """The prompt as a chat: each demonstration is a question and its answer, then comes the query.

        Where a model takes no system turn, the instruction stands before the first question.
        """
        turns = [*self.demo_turns(request.demos), self.turn("user", request.query)]
        instruction = self.section.instruction
        if instruction and self.system_turn:
            return [self.text_turn("system", instruction), *turns]
        if instruction:
            first = (*request.demos, request.query)[0]
            turns[0] = self.turn("user", first, f"{instruction}\n{first.question}")
        return turns

    def demo_turns(self, demos: Sequence[Item]) -> list[Turn]:
        """Each demonstration as a question and its answer."""
        turns: list[Turn] = []
        for demo in demos:
            turns.append(self.turn("user", demo))
            turns.append(self.text_turn("assistant", demo.answer))
        return turns

    def marker(self, item: Item) -> str:
        """What stands for the picture of an item in a text; "" where it has none."""
        raise NotImplementedError

    def turn(self, role: str, item: Item, question: str | None = None) -> Turn:
        """A turn that shows an item's picture and its question, or another text in its place."""
        raise NotImplementedError

    def text_turn(self, role: str, text: str) -> Turn:
        """A turn of words."""
        return {"role": role, "content": text}


class ServerPrompts(PromptWriter):
    """Writes prompts for a server, with pictures as data URLs; `urls` are encoded pictures by their digest."""

    def __init__(
        self, section: ModelSection, task: Task, urls: dict[str, str] | None = None
    ) -> None:
        super().__init__(section)
        self.task = task
        self.urls = {} if urls is None else urls

    @property
    def shape(self) -> list[Any]:
        """What changes a prompt besides its items, for a fingerprint."""
        section = self.section
        template = "" if self.chat else section.template
        return [section.prompt, section.instruction, template, section.image_pixels]

    def marker(self, item: Item) -> str:
        if item.image is not None:
            raise ScoringError(
                f'item {item.id} has a picture, which only a chat can show; set model.prompt = "chat"'
            )
        return ""

    def turn(self, role: str, item: Item, question: str | None = None) -> Turn:
        words = item.question if question is None else question
        if item.image is None:
            return self.text_turn(role, words)
        shown = {"type": "image_url", "image_url": {"url": self.url(item)}}
        return {"role": role, "content": [shown, {"type": "text", "text": words}]}

    def url(self, item: Item) -> str:
        """The picture of an item as a data URL; where several threads ask at once, one may be encoded twice."""
        digest = self.task.image_digest(item)
        if digest not in self.urls:
            picture = shown_picture(self.task, item, self.section.image_pixels)
            if len(self.urls) >= PICTURES_KEPT:
                self.urls.clear()
            self.urls[digest] = data_url(picture)
        return self.urls[digest]


def shown_picture(task: Task, item: Item, most_pixels: int) -> Image.Image:
    """An item's picture as a model is shown it: in colours, shrunk where it has more pixels than allowed (0: never)."""
    picture = task.image(item)
    if picture is None:
        raise DataError(
            f"item {item.id} has no picture any more; run `lever task check`"
        )
    return shrink(picture.convert("RGB"), most_pixels)


def data_url(picture: Image.Image) -> str:
    """A picture as a PNG inside a URL, without loss."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def shrink(picture: Image.Image, pixels: int) -> Image.Image:
    """A picture scaled down to at most so many pixels, sides in proportion; 0 leaves it as it is."""
    if not pixels or picture.width * picture.height <= pixels:
        return picture
    factor = math.sqrt(pixels / (picture.width * picture.height))
    width = max(1, int(picture.width * factor))
    size = (width, max(1, int(picture.height * factor)))
    return picture.resize(size, Image.Resampling.BICUBIC)


def render_prompt(
    backend: str,
    model: ModelSection,
    task: Task,
    query: Item,
    demos: Sequence[Item] = (),
) -> str | list[Turn]:
    """The prompt that `backend` (`score.backend`) gives a model, up to where the answer begins.

    A text, in which the model's own marker stands for a picture (`hf`, `vllm`); or, for `openai` and `callable` with
    `model.prompt = "chat"`, the turns of a chat with pictures as data URLs. No weights are loaded and no server is asked.
    """
    request = Request(query, tuple(demos), ())
    if backend in ("openai", "callable"):
        written = ServerPrompts(model, task)
        if written.chat:
            return written.turns(request)
        return written.text(request)
    if backend in ("hf", "vllm"):
        from leverplus.models.hf.load import model_prompts

        return model_prompts(model).text(request)
    raise LeverError(
        f'the prompts of score.backend = "{backend}" cannot be written as text; those of "hf" and "openai" are'
    )
