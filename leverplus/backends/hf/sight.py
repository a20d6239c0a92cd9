"""What connects a processor of transformers with prompts: the marker of a picture, and pictures made into inputs."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from PIL import Image

from leverplus.backends.hf.language import Language
from leverplus.backends.hf.pictures import Pictures, Unfolded, counts_in_three, vision_encoder
from leverplus.backends.hf.prompts import MARK, Prompts
from leverplus.errors import DataError
from leverplus.recipe.model import ModelSection
from leverplus.tasks.base import Task
from leverplus.types import Item

TEXT_INPUTS = {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids"}


class Sight:
    """The pictures of a task as a model sees them."""

    def __init__(self, task: Task, processor: Any, model: Any, section: ModelSection) -> None:
        self.task, self.processor, self.section = task, processor, section
        self.token: str = str(processor.image_token)
        self.token_id = int(processor.tokenizer.convert_tokens_to_ids(self.token))
        self.language = Language(model)
        self.pictures = Pictures(
            self.token_id,
            vision_encoder(model),
            capacity=section.image_cache,
            device=self.language.device,
            turning=counts_in_three(self.language.config),
        )
        self.language.insert = self.pictures.insert

    def slot(self, item: Item) -> int:
        """The slot of an item's picture."""
        return self.pictures.slot(self.task.image_digest(item), lambda: self._show(item))

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
            merge = int(getattr(self.processor.image_processor, "merge_size", 1))
            _, height, width = (int(value) for value in inputs["image_grid_thw"][0])
            grid = (height // merge, width // merge)
        return Unfolded(tuple(int(token) for token in found["input_ids"][0]), grid, inputs)

    def probe(self, text: str) -> tuple[dict[str, Any], list[int]]:
        """What the model itself is given for a text with two different pictures, and the pictures' slots."""
        first = Image.linear_gradient("L").resize((96, 64)).convert("RGB")
        pictures = [first, first.transpose(Image.Transpose.ROTATE_90)]
        slots = [
            self.pictures.slot(f"probe {number}", partial(self.unfold, picture))
            for number, picture in enumerate(pictures)
        ]
        small = [shrink(picture, self.section.image_pixels) for picture in pictures]
        inputs = self.processor(text=[text], images=[small], return_tensors="pt")
        dtype = next(self.language.model.parameters()).dtype
        moved = {
            key: value.to(self.language.device, dtype if value.is_floating_point() else None)
            for key, value in inputs.items()
            if isinstance(value, torch.Tensor)
        }
        return moved, slots


def shrink(picture: Image.Image, pixels: int) -> Image.Image:
    """A picture of at most so many pixels, sides in proportion; 0: as it is."""
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
    bare, shown = (
        str(processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False))
        for content in ([words], [{"type": "image"}, words])
    )
    start = next((at for at, (a, b) in enumerate(zip(bare, shown, strict=False)) if a != b), len(bare))
    marker = shown[start : start + len(shown) - len(bare)]
    return marker if token in marker else token


def prompts_for(tokenizer: Any, processor: Any | None, section: ModelSection) -> Prompts:
    """How prompts are written for a model with this tokenizer, and this processor if it sees pictures."""
    marker = picture_marker(processor, str(processor.image_token)) if processor is not None else ""
    return Prompts(tokenizer, section, renderer=processor, picture=marker)
