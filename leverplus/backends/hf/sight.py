"""Connects a processor of transformers with prompts: finds the marker of a picture, makes pictures into inputs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from PIL import Image

from leverplus.backends.hf.language import Language
from leverplus.backends.hf.pictures import PictureTable, Unfolded, counts_in_three, vision_encoder
from leverplus.backends.hf.prompts import MARK, ModelPrompts
from leverplus.errors import DataError
from leverplus.recipe.model import ModelSection
from leverplus.tasks.base import Task
from leverplus.types import Item

# What a processor returns for the text; everything else is for the vision side.
TEXT_INPUTS = {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids"}

DECODERS = min(8, os.cpu_count() or 1)
"""Threads that decode pictures; Pillow lets others run while it does."""


class Sight:
    """Gives a model the pictures of a task: each item's picture gets a slot in the model's table of pictures."""

    def __init__(self, task: Task, processor: Any, model: Any, section: ModelSection) -> None:
        self.task, self.processor, self.section = task, processor, section
        self.token: str = str(processor.image_token)
        self.token_id = int(processor.tokenizer.convert_tokens_to_ids(self.token))
        self.language = Language(model)
        self.pictures = PictureTable(
            self.token_id,
            vision_encoder(model),
            capacity=section.image_cache,
            device=self.language.device,
            turning=counts_in_three(self.language.config),
        )
        self.language.insert = self.pictures.insert

    def prepare(self, items: Iterable[Item]) -> None:
        """Give new pictures their slots: files are decoded by several threads, and full stacks encoded meanwhile.

        Only where the features of all of them can be kept; else a picture would be seen, dropped and seen again.
        """
        shown_here = {self.task.image_digest(item): item for item in items}
        new = {digest: item for digest, item in shown_here.items() if digest not in self.pictures}
        if len(new) < 2:  # nothing to gain; `slot` will do it
            return
        ahead = len(shown_here) <= self.pictures.capacity
        for digest in shown_here:
            self.pictures.expect(digest)
        with ThreadPoolExecutor(DECODERS) as pool:
            shown = pool.map(self._show, new.values())
            for number, ((digest, item), unfolded) in enumerate(zip(new.items(), shown, strict=True), start=1):
                self.pictures.add(digest, unfolded, partial(self._show, item))
                if ahead and number % self.pictures.per_pass == 0:
                    self.pictures.encode_full_stacks()

    def slot(self, item: Item) -> int:
        """The slot of an item's picture."""
        return self.pictures.slot(self.task.image_digest(item), partial(self._show, item))

    def _show(self, item: Item) -> Unfolded:
        picture = self.task.image(item)
        if picture is None:
            raise DataError(f"item {item.id} names a picture that its task does not show")
        return self.unfold(picture)

    def unfold(self, picture: Image.Image) -> Unfolded:
        """The tokens and inputs the processor makes of one picture."""
        small = shrink(picture.convert("RGB"), self.section.image_pixels)
        found = self.processor(text=[self.token], images=[small], return_tensors="pt", add_special_tokens=False)
        inputs = {key: value for key, value in found.items() if key not in TEXT_INPUTS}
        grid = None
        if "image_grid_thw" in inputs:
            merge = int(getattr(self.processor.image_processor, "merge_size", 1))  # patches per token, on each side
            _, height, width = inputs["image_grid_thw"][0].tolist()  # in patches
            grid = (height // merge, width // merge)
        ids = tuple(int(token) for token in found["input_ids"][0])
        return Unfolded(ids, grid, inputs)

    def probe(self, text: str) -> tuple[dict[str, Any], list[int]]:
        """What the model itself is given for a text with two different pictures, and the pictures' slots."""
        first = Image.linear_gradient("L").resize((96, 64)).convert("RGB")
        pictures = [first, first.transpose(Image.Transpose.ROTATE_90)]
        slots = []
        for number, picture in enumerate(pictures):
            slots.append(self.pictures.slot(f"probe {number}", partial(self.unfold, picture)))
        small = [shrink(picture, self.section.image_pixels) for picture in pictures]
        inputs = self.processor(text=[text], images=[small], return_tensors="pt")
        dtype = next(self.language.model.parameters()).dtype
        moved = {}
        for key, value in inputs.items():
            if isinstance(value, torch.Tensor):
                # Pixels take the model's number format; token ids and grids stay whole numbers.
                moved[key] = value.to(self.language.device, dtype if value.is_floating_point() else None)
        return moved, slots


def shrink(picture: Image.Image, pixels: int) -> Image.Image:
    """A picture scaled down to at most so many pixels, sides in proportion; 0 leaves it as it is."""
    if not pixels or picture.width * picture.height <= pixels:
        return picture
    factor = math.sqrt(pixels / (picture.width * picture.height))
    size = max(1, int(picture.width * factor)), max(1, int(picture.height * factor))
    return picture.resize(size, Image.Resampling.BICUBIC)


def picture_marker(processor: Any, token: str) -> str:
    """What the chat template writes for a picture: more than the token itself where a model frames its pictures."""
    if not getattr(processor, "chat_template", None):
        return token
    words = {"type": "text", "text": MARK}

    def render(content: list[dict[str, str]]) -> str:
        return str(processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False))

    # The marker is what a picture adds to a turn: it begins where the two texts first differ.
    bare, shown = render([words]), render([{"type": "image"}, words])
    start = 0
    while start < min(len(bare), len(shown)) and bare[start] == shown[start]:
        start += 1
    marker = shown[start : start + len(shown) - len(bare)]
    return marker if token in marker else token


def prompts_for(tokenizer: Any, processor: Any | None, section: ModelSection) -> ModelPrompts:
    """The writer of prompts for a model with this tokenizer, and with this processor if it sees pictures."""
    marker = picture_marker(processor, str(processor.image_token)) if processor is not None else ""
    return ModelPrompts(tokenizer, section, renderer=processor, picture=marker)
