"""Connects a processor of transformers with prompts: makes the pictures of a task into inputs, each once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from PIL import Image

from leverplus.data.tasks.base import Task
from leverplus.data.types import Item
from leverplus.models.hf.language import Language
from leverplus.models.hf.pictures import (
    PictureTable,
    Unfolded,
    counts_in_three,
    vision_encoder,
)
from leverplus.models.prompts import shown_picture, shrink
from leverplus.models.settings import ModelSection

# What a processor returns for the text; everything else is for the vision side.
TEXT_INPUTS = {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids"}

DECODERS = min(8, os.cpu_count() or 1)
"""Threads that decode pictures; Pillow lets others run while it does."""


class Sight:
    """Gives a model the pictures of a task: each item's picture gets a slot in the model's table of pictures."""

    def __init__(
        self, task: Task, processor: Any, model: Any, section: ModelSection
    ) -> None:
        self.task = task
        self.processor = processor
        self.section = section
        self.token: str = str(processor.image_token)
        self.language = Language(model)
        self.pictures = PictureTable(
            int(processor.tokenizer.convert_tokens_to_ids(self.token)),
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
        shown = {self.task.image_digest(item): item for item in items}
        new = {}
        for digest, item in shown.items():
            if digest not in self.pictures:
                new[digest] = item
        if len(new) < 2:  # nothing to gain; `slot` will do it
            return
        ahead = len(shown) <= self.pictures.capacity
        for digest in shown:
            self.pictures.expect(digest)
        with ThreadPoolExecutor(DECODERS) as pool:
            unfolded = pool.map(self._show, new.values())
            for number, (digest, item) in enumerate(new.items(), start=1):
                self.pictures.add(digest, next(unfolded), partial(self._show, item))
                if ahead and number % self.pictures.per_pass == 0:
                    self.pictures.encode_full_stacks()

    def slot(self, item: Item) -> int:
        """The slot of an item's picture."""
        digest = self.task.image_digest(item)
        return self.pictures.slot(digest, partial(self._show, item))

    def _show(self, item: Item) -> Unfolded:
        pixels = self.section.image_pixels
        return self.unfold(shown_picture(self.task, item, pixels))

    def unfold(self, picture: Image.Image) -> Unfolded:
        """The tokens and inputs the processor makes of one picture."""
        found = self.processor(
            text=[self.token],
            images=[picture],
            return_tensors="pt",
            add_special_tokens=False,
        )
        inputs = {}
        for key, value in found.items():
            if key not in TEXT_INPUTS:
                inputs[key] = value
        grid = None
        if "image_grid_thw" in inputs:
            # patches per token, on each side
            merge = int(getattr(self.processor.image_processor, "merge_size", 1))
            _, height, width = inputs["image_grid_thw"][0].tolist()  # in patches
            grid = (height // merge, width // merge)
        ids = found["input_ids"][0].tolist()
        return Unfolded(tuple(ids), grid, inputs)

    def probe(self, text: str, count: int) -> tuple[dict[str, Any], list[int]]:
        """What the model itself is given for a text with one or two different pictures, and the pictures' slots."""
        first = Image.linear_gradient("L").resize((96, 64)).convert("RGB")
        pictures = [first, first.transpose(Image.Transpose.ROTATE_90)][:count]
        small = [shrink(picture, self.section.image_pixels) for picture in pictures]
        slots = []
        for number, picture in enumerate(small):
            unfold = partial(self.unfold, picture)
            slots.append(self.pictures.slot(f"probe {number}", unfold))
        inputs = self.processor(text=[text], images=[small], return_tensors="pt")
        dtype = next(self.language.model.parameters()).dtype
        moved = {}
        for key, value in inputs.items():
            # Pixels take the model's number format; token ids and grids stay whole numbers.
            kind = dtype if value.is_floating_point() else None
            moved[key] = value.to(self.language.device, kind)
        return moved, slots
