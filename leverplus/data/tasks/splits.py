"""Makes the splits that a data set does not have: whole pictures, drawn by a hash, so that their order does not matter.

Files that users write and add to (`jsonl`, `labels`): every picture decides by itself, so that a file which grows keeps
its items where they are. Data sets whose files never change take an exact number of items in the order of the hashes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from leverplus.data.tasks.settings import TaskSection
from leverplus.data.types import Item, ItemId

SPLITS = ("train", "dev", "test")

LARGEST_SHARE = 5
"""A split that has to be made takes at most a fifth of the training items."""

GROWING = ("jsonl", "labels")
"""Tasks whose files users write and add to."""


def group_of(item: Item) -> str:
    """The name of the group that must stay in one split: the questions on one picture, or the copies of one text."""
    if item.image_id is None:
        return f"item:{item.id}"
    return item.image_id


def assign_splits(task: str, items: Sequence[Item], section: TaskSection) -> list[Item]:
    """Items with their split; dev or test items that the data set does not have are taken out of train by picture."""
    out = []
    given: set[str] = set()
    for item in items:
        if not item.split:
            item = replace(item, split="train")  # noqa: PLW2901
        out.append(item)
        given.add(item.split)
    size = len(_of_split(out, "train"))
    for split, wanted in (("test", section.test_items), ("dev", section.dev_items)):
        if split in given:
            continue
        train = _of_split(out, "train")
        if task in GROWING:
            # groups that stay: one for train, and one for dev where that is made too
            leave = 1
            if split == "test" and "dev" not in given:
                leave = 2
            share = share_of(wanted, size)
            chosen = _draw_each(train, split, share, section, leave)
        else:
            most = min(wanted, size // LARGEST_SHARE)
            chosen = _draw(train, most, f"{section.split_seed}:{split}")
        for place, item in enumerate(out):
            if item.id in chosen:
                out[place] = replace(item, split=split)
    return out


def _of_split(items: Sequence[Item], split: str) -> list[Item]:
    return [item for item in items if item.split == split]


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


def _draw_each(
    items: Sequence[Item], split: str, share: float, section: TaskSection, leave: int
) -> set[ItemId]:
    """Ids of the items whose group's own number in [0, 1) lies below the share (test) or above one minus it (dev).

    In a file of a few lines none may lie there, or nearly all: at least the nearest group is taken, and `leave` groups
    are left where there are so many, so that three groups fill three splits.
    """
    numbers: dict[str, float] = {}
    for item in items:
        name = f"{section.split_seed}:{_portable_name(item, section)}"
        # 56 bits of a hash
        first = hashlib.sha256(name.encode()).digest()[:7]
        number = int.from_bytes(first, "big") / 2**56
        # Test is drawn from the lower end, dev from the upper end: the two never meet.
        if split == "dev":
            number = 1.0 - number
        numbers[group_of(item)] = number
    nearest = sorted(numbers, key=lambda group: (numbers[group], group))
    count = sum(number < share for number in numbers.values())
    chosen = set(nearest[: max(1, min(count, len(nearest) - leave))])
    return {item.id for item in items if group_of(item) in chosen}


def _portable_name(item: Item, section: TaskSection) -> str:
    """The name of a group on every machine: a picture's path below the folder of the pictures, not the whole path."""
    if item.image is None or item.image_id != item.image:
        return group_of(item)
    path = Path(item.image)
    root = picture_root(section)
    if path.is_relative_to(root):
        path = path.relative_to(root)
    return path.as_posix()


def picture_root(section: TaskSection) -> Path:
    """The folder that the picture paths of task.file are relative to."""
    folder = Path(section.file).parent
    if section.images:
        folder = Path(section.images)
    return folder.expanduser()


def limit_items(items: Sequence[Item], section: TaskSection) -> list[Item]:
    """The items that task.limit keeps of each split."""
    kept: set[ItemId] = set()
    for split in SPLITS:
        own = _of_split(items, split)
        kept |= _draw(own, section.limit, f"{section.split_seed}:limit")
    return [item for item in items if item.id in kept]


def _draw(items: Sequence[Item], count: int, salt: str) -> set[ItemId]:
    """Ids of whole groups in the order of their hashes, at most `count` items in all."""
    groups: dict[str, list[ItemId]] = {}
    for item in items:
        groups.setdefault(group_of(item), []).append(item.id)

    def by_hash(group: str) -> bytes:
        return hashlib.sha256(f"{salt}:{group}".encode()).digest()

    chosen: set[ItemId] = set()
    for name in sorted(groups, key=by_hash):
        # a group that is too large is passed over
        if len(chosen) + len(groups[name]) <= count:
            chosen.update(groups[name])
    return chosen
