"""Makes the splits that a data set does not have: whole pictures, drawn by a hash, so that their order does not matter.

Two rules. `each` decides for every picture by itself, so that a file which grows keeps its items where they are; it is
for files that users write. `count` takes an exact number of items in the order of the hashes; it is for data sets
whose files never change, and for runs of version 0.1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from leverplus.recipe.sections import TaskSection
from leverplus.types import Item, ItemId

LARGEST_SHARE = 5
"""A split that has to be made takes at most a fifth of the training items."""

GROWING = ("jsonl", "labels")
"""Tasks whose files users write and add to; they follow the rule `each`."""


def group_of(item: Item) -> str:
    """The name of the group that must stay in one split: the questions on one picture, or the copies of one text."""
    return item.image_id if item.image_id is not None else f"item:{item.id}"


def assign_splits(task: str, items: Sequence[Item], section: TaskSection) -> list[Item]:
    """Items with their split; dev or test items that the data set does not have are taken out of train by picture."""
    out = [replace(item, split="train") if item.split == "" else item for item in items]
    each = task in GROWING and section.rules != "0.1"
    size = sum(item.split == "train" for item in out)  # counted once: test and dev take their shares of the same whole
    for split, wanted in (("test", section.test_items), ("dev", section.dev_items)):
        if any(item.split == split for item in out):
            continue
        train = [item for item in out if item.split == "train"]
        if each:
            dev_is_made = split == "test" and not any(item.split == "dev" for item in out)
            leave = 2 if dev_is_made else 1  # a group for dev, and one for train
            chosen = draw_each(train, split, share_of(wanted, size), section, leave)
        else:
            chosen = draw(train, min(wanted, size // LARGEST_SHARE), f"{section.split_seed}:{split}")
        out = [replace(item, split=split) if item.id in chosen else item for item in out]
    return out


def share_of(wanted: int, size: int) -> float:
    """The part of `size` items that a split takes: a fifth, halved until about `wanted` are expected.

    Because it only halves, and only when the data set has doubled, a growing file hardly ever moves an item; and when
    it does, from dev or test to train, so that what was trained on is never tested on.
    """
    share = 1 / LARGEST_SHARE
    # Halving at sqrt(2) times the wanted number leaves between wanted / sqrt(2) and wanted * sqrt(2) items.
    while share * size > math.sqrt(2) * wanted:
        share /= 2
    return share


def draw_each(items: Sequence[Item], split: str, share: float, section: TaskSection, leave: int) -> set[ItemId]:
    """Ids of the items whose group's own number in [0, 1) lies below the share (test) or above one minus it (dev).

    In a file of a few lines none may lie there, or nearly all: at least the nearest group is taken, and `leave` groups
    are left where there are so many, so that three groups fill three splits.
    """
    place: dict[str, float] = {}
    for item in items:
        number = _unit(f"{section.split_seed}:{_portable_name(item, section)}")
        # Test is drawn from the lower end, dev from the upper end: the two never meet.
        place[group_of(item)] = 1.0 - number if split == "dev" else number
    nearest = sorted(place, key=lambda group: (place[group], group))
    count = sum(own < share for own in place.values())
    chosen = set(nearest[: max(1, min(count, len(nearest) - leave))])
    return {item.id for item in items if group_of(item) in chosen}


def _portable_name(item: Item, section: TaskSection) -> str:
    """The name of a group on every machine: a picture's path below the folder of the pictures, not the whole path."""
    if item.image is None or item.image_id != item.image:
        return group_of(item)
    root = picture_root(section)
    path = Path(item.image)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _unit(text: str) -> float:
    """A number in [0, 1) that follows from a text alone."""
    first = hashlib.sha256(text.encode()).digest()[:7]  # 56 bits
    return int.from_bytes(first, "big") / 2**56


def picture_root(section: TaskSection) -> Path:
    """The folder that the picture paths of task.file are relative to."""
    return Path(section.images).expanduser() if section.images else Path(section.file).expanduser().parent


def limit_items(items: Iterable[Item], split: str, section: TaskSection) -> list[Item]:
    """The items of a split that task.limit keeps."""
    own = [item for item in items if item.split == split]
    kept = draw(own, section.limit, f"{section.split_seed}:limit")
    return [item for item in own if item.id in kept]


def draw(items: Sequence[Item], count: int, salt: str) -> set[ItemId]:
    """Ids of whole groups in the order of their hashes, at most `count` items in all."""
    groups: dict[str, list[ItemId]] = {}
    for item in items:
        groups.setdefault(group_of(item), []).append(item.id)
    chosen: set[ItemId] = set()

    def by_hash(group: str) -> bytes:
        return hashlib.sha256(f"{salt}:{group}".encode()).digest()

    for name in sorted(groups, key=by_hash):
        if len(chosen) + len(groups[name]) <= count:  # a group that is too large is passed over
            chosen.update(groups[name])
        if len(chosen) == count:
            break
    return chosen
