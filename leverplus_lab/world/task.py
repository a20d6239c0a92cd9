"""The embedded world as a task: every item, picture and answer follows from `world_seed`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leverplus.data.pictures import PICTURE_ERRORS, as_rgb, picture_reason
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.tasks.splits import SPLITS
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError
from leverplus_lab.world import questions as generator
from leverplus_lab.world.questions import NONE, Questions, draw_questions
from leverplus_lab.world.scenes import SIZE, render_scenes
from leverplus_lab.world.words import (
    BACKGROUNDS,
    COLOURS,
    DEPENDS_ON,
    DIALECTS,
    PARAPHRASES,
    RELATIONS,
    SHAPES,
    VOCABULARY,
)

# A stream of random numbers per split for the noise of the pictures, so that no two splits share any.
_NOISE_STREAMS = {"train": 21, "dev": 22, "test": 23}
# Pictures rendered at a time. The noise is drawn chunk by chunk from one generator, so the size does not change it.
_CHUNK = 500


def world_task(section: TaskSection) -> WorldTask:
    """The task `world` of a recipe."""
    return WorldTask(section.world_seed)


class WorldTask:
    """8,000 training questions (also the demonstrations), 2,000 for dev, 4,000 for test, two on every picture."""

    name = "world"
    answers = AnswerRules("vqa_accuracy")

    def __init__(self, world_seed: int = 0) -> None:
        self.world_seed = world_seed

    @cached_property
    def version(self) -> str:
        """A digest of the seed and of everything that shapes the world."""
        # Every constant of the generator, plus what it draws for one split: a change of its code shows there.
        constants = {}
        for name in filter(str.isupper, dir(generator)):
            constants[name] = getattr(generator, name)
        probe = _drawn(self.world_seed, "dev")
        content = hashlib.sha256(
            repr((self.world_seed, sorted(constants.items()), VOCABULARY)).encode()
        )
        for array in (probe.answers, probe.relation, probe.scenes.radius):
            content.update(np.ascontiguousarray(array).tobytes())
        return content.hexdigest()[:16]

    def items(self, split: str) -> Sequence[Item]:
        if split not in SPLITS:
            raise DataError(
                f"the world has no split '{split}'; allowed: {', '.join(SPLITS)}"
            )
        return draw_items(self.world_seed, split)

    @cached_property
    def _by_id(self) -> Mapping[ItemId, Item]:
        found = {}
        for split in SPLITS:
            for item in self.items(split):
                found[item.id] = item
        return found

    def item(self, item_id: ItemId) -> Item:
        if item_id not in self._by_id:
            raise DataError(
                f"the world has no item '{item_id}'; ids look like {self.items('train')[0].id}"
            )
        return self._by_id[item_id]

    def image(self, item: Item) -> Image.Image:
        picture = self.pictures([item])[0]  # (3, 32, 32)
        return Image.fromarray(picture.permute(1, 2, 0).numpy())  # (32, 32, 3)

    def image_digest(self, item: Item) -> str:
        if item.image is None or item.image.startswith(
            "world:"
        ):  # drawn from the seed: its name says it all
            return f"{self.version}:{item.image}"
        content = self.pictures([item]).numpy().tobytes()
        return hashlib.sha256(content).hexdigest()[:16]

    def pictures(self, items: Sequence[Item]) -> Tensor:
        """Pictures (N, 3, 32, 32) uint8; an item that names an image file instead is read and scaled."""
        out = torch.empty(
            len(items),
            3,
            SIZE,
            SIZE,
            dtype=torch.uint8,
        )
        for place, item in enumerate(items):
            if item.image is None:
                raise DataError(
                    f"item {item.id} has no picture, and the world's model needs one; pass --image FILE"
                )
            if item.image.startswith("world:"):
                _, split, row = item.image.split(":")
                out[place] = draw_pictures(self.world_seed, split)[int(row)]
            else:
                out[place] = read_picture(Path(item.image))
        return out


@lru_cache(maxsize=6)
def _drawn(world_seed: int, split: str) -> Questions:
    """What the generator drew for a split, which items, pictures and the version are all made from."""
    return draw_questions(world_seed, split)


@lru_cache(maxsize=6)
def draw_items(world_seed: int, split: str) -> tuple[Item, ...]:
    """The items of a split, made once per process."""
    return _make_items(split, _drawn(world_seed, split))


@lru_cache(maxsize=6)
def draw_pictures(world_seed: int, split: str) -> Tensor:
    """The pictures (images, 3, 32, 32) uint8 of a split, drawn once per process."""
    scenes = _drawn(world_seed, split).scenes
    rng = np.random.default_rng([world_seed, _NOISE_STREAMS[split]])
    parts = []
    for start in range(0, len(scenes), _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, len(scenes)))
        noise = rng.standard_normal(
            (len(rows), 3, SIZE, SIZE), dtype=np.float32
        )  # (chunk, 3, 32, 32)
        parts.append(render_scenes(scenes.take(rows), torch.from_numpy(noise)))
    return torch.cat(parts)  # (images, 3, 32, 32)


def read_picture(path: Path) -> Tensor:
    """An image file as (3, 32, 32) uint8."""
    try:
        with Image.open(path) as image:
            return picture_tensor(as_rgb(image))
    except PICTURE_ERRORS as error:
        raise DataError(
            f"{path} cannot be read as an image ({picture_reason(error)})"
        ) from error


def picture_tensor(picture: Image.Image) -> Tensor:
    """A picture in RGB as (3, 32, 32) uint8."""
    pixels = np.asarray(
        picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    )  # (32, 32, 3)
    return torch.from_numpy(pixels.copy()).permute(
        2, 0, 1
    )  # a copy, because Pillow's array is read-only


def _make_items(split: str, drawn: Questions) -> tuple[Item, ...]:
    scenes = drawn.scenes
    # plain lists: one number after another is read several times faster from them than from arrays
    shapes = scenes.shape.tolist()
    colours = scenes.colour.tolist()
    backgrounds = scenes.background.tolist()
    columns = (
        drawn.image,
        drawn.relation,
        drawn.paraphrase,
        drawn.answers,
        drawn.unknown,
        drawn.dialect,
        drawn.mislabelled,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    items = []
    for row, drawn_row in enumerate(rows):
        image, relation, paraphrase, said, unknown, dialect, mislabelled = drawn_row
        # the first and the second question on a picture
        letter = "ab"[row % generator.QUESTIONS_PER_IMAGE]
        answers = []
        for pair in said:  # one word or two, with NONE in place of a second word
            names = [VOCABULARY[word] for word in pair if word != NONE]
            answers.append(" ".join(names))
        meta = {
            "relation": RELATIONS[relation],
            "facts": "2" if DEPENDS_ON[relation] == "both" else "1",
            "unknown": str(int(unknown)),
            "shape": SHAPES[shapes[image]],
            "colour": COLOURS[colours[image]],
            "background": BACKGROUNDS[backgrounds[image]],
            "dialect": DIALECTS[dialect],
            "mislabelled": str(bool(mislabelled)).lower(),
        }
        item = Item(
            id=ItemId(f"{split}-{image:04d}-{letter}"),
            question=PARAPHRASES[relation][paraphrase],
            answers=tuple(answers),
            split=split,
            image=f"world:{split}:{image}",
            image_id=f"{split}-{image:04d}",
            meta=meta,
        )
        items.append(item)
    return tuple(items)
