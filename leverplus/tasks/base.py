"""Defines what a task gives: labelled items in three splits, their images, and how a model's raw text is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from PIL import Image

from leverplus.types import Item, ItemId

SPLITS = ("train", "dev", "test")


@runtime_checkable
class HasLabels(Protocol):
    """A classification task: `labels` are all answers there are; empty where any text may be the answer."""

    labels: tuple[str, ...]


class Task(Protocol):
    """Demonstrations and training queries come from `train`, every choice is made on `dev`, `test` is looked at once.

    No image is shared between splits. `version` changes whenever an item, an image or the metric could differ.
    `metric` names a function of `leverplus.metrics` (answer, references) -> [0, 1]; `postprocess` names how the answer
    is cut out of the model's raw text.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def metric(self) -> str: ...

    @property
    def postprocess(self) -> str: ...

    def items(self, split: str) -> Sequence[Item]: ...

    def item(self, item_id: ItemId) -> Item:
        """The item with this id, from any split; LeverError with a sentence when there is none."""
        ...

    def image(self, item: Item) -> Image.Image | None:
        """The item's picture, decoded; None for text-only items."""
        ...

    def image_digest(self, item: Item) -> str:
        """A content digest of the item's picture ("" for text-only items)."""
        ...
