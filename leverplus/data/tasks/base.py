"""Defines what a task gives, and builds tasks from files: labelled items in three splits, pictures, how answers count.

A file is read whole or not at all: every problem is collected with its line or id, and one error lists them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

from PIL import Image

from leverplus.data.formats import LISTED, Problems
from leverplus.data.pictures import (
    PICTURE_ERRORS,
    as_rgb,
    picture_fault,
    picture_reason,
)
from leverplus.data.tasks.answers import AnswerRules, without_unreachable
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.tasks.splits import SPLITS, assign_splits, group_of, limit_items
from leverplus.data.types import Item, ItemId
from leverplus.errors import DataError

LONGEST_NAME = 300
"""Letters of a picture's name that a message shows."""


@runtime_checkable
class HasLabels(Protocol):
    """A classification task: `labels` are all answers there are; empty where any text may be the answer."""

    labels: tuple[str, ...]


class Task(Protocol):
    """Demonstrations and training queries come from `train`, every choice is made on `dev`, `test` is looked at once.

    No image is shared between splits. `version` changes whenever an item, an image or the metric could differ.
    `answers` says how an answer is cut out of the model's words and what it scores.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def answers(self) -> AnswerRules: ...

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


class FileTask:
    """Labelled items from files, in three splits that share no picture.

    `labels` are all answers of a classification task; `notes` say what a reader of `lever task check` should know;
    `places` say where in its file an item stands.
    """

    def __init__(
        self,
        name: str,
        items: Sequence[Item],
        *,
        answers: AnswerRules,
        labels: tuple[str, ...] = (),
        notes: Sequence[str] = (),
        places: Mapping[ItemId, str] | None = None,
    ) -> None:
        self.name, self.answers = name, answers.for_items(items)
        self.labels, self.notes, self.places = labels, tuple(notes), places or {}
        self._items: dict[str, list[Item]] = {split: [] for split in SPLITS}
        for item in items:
            self._items[item.split].append(item)
        self._by_id = {item.id: item for item in items}
        self._digests: dict[str, str] = {}

    @cached_property
    def version(self) -> str:
        """A digest of every item, of the names and sizes of the pictures, and of how answers are judged.

        The content of a picture is in `image_digest`, which is part of every stored score's key.
        """
        rules = self.answers.fingerprint(self._by_id.values())
        content = hashlib.sha256(repr((self.name, *rules, self.labels)).encode())
        for item in sorted(self._by_id.values(), key=lambda item: item.id):
            picture = None
            group = item.image_id
            if item.image is not None:
                path = Path(item.image)
                # The name without its folder: the same data give the same version wherever they lie.
                picture = (path.name, path.stat().st_size)
                group = None if group == item.image else group
            texts = (item.id, item.question, item.answers)
            content.update(repr((*texts, item.split, group, picture)).encode())
            if item.fields:
                content.update(repr(tuple(item.fields.items())).encode())
        return content.hexdigest()[:16]

    def items(self, split: str) -> Sequence[Item]:
        if split not in self._items:
            raise DataError(
                f"task {self.name} has no split '{split}'; allowed: {', '.join(SPLITS)}"
            )
        return self._items[split]

    def item(self, item_id: ItemId) -> Item:
        if item_id not in self._by_id:
            example = next(iter(self._by_id))
            raise DataError(
                f"task {self.name} has no item '{item_id}'; ids look like {example}"
            )
        return self._by_id[item_id]

    def image(self, item: Item) -> Image.Image | None:
        if item.image is None:
            return None
        try:
            with Image.open(item.image) as picture:
                return as_rgb(picture)
        except PICTURE_ERRORS as error:
            raise DataError(
                f"item {item.id}: {item.image} cannot be read as a picture ({picture_reason(error)}); "
                f"`lever task check {self.name}` names all such files"
            ) from error

    def image_digest(self, item: Item) -> str:
        if item.image is None:
            return ""
        if item.image not in self._digests:
            try:
                content = Path(item.image).read_bytes()
            except OSError as error:
                raise DataError(
                    f"item {item.id}: {item.image} cannot be read ({error.strerror})"
                ) from error
            self._digests[item.image] = hashlib.sha256(content).hexdigest()[:16]
        return self._digests[item.image]


@dataclass(frozen=True)
class Draft:
    """An item as it was read, and the place in its file that a problem is reported with; split "" is still open."""

    item: Item
    place: str

    @property
    def is_empty(self) -> bool:
        """Whether it has no answer, or an empty one."""
        return not self.item.answers or not self.item.answer.strip()


def task_from_drafts(
    name: str,
    drafts: Sequence[Draft],
    section: TaskSection,
    problems: Problems,
    *,
    answers: AnswerRules,
    labels: tuple[str, ...] = (),
    notes: Sequence[str] = (),
    check_answers: bool = False,
) -> FileTask:
    """Make a task from drafts: give open splits, check everything, raise all problems in one error.

    With `check_answers` records are left out whose own answer could not be right, and too many of them refused.
    """
    notes = list(notes)
    if section.skip_empty:
        empty = []
        full = []
        for draft in drafts:
            if draft.is_empty:
                empty.append(str(draft.item.id))
            else:
                full.append(draft)
        drafts = full
        if empty:
            listed = ", ".join(empty[:LISTED])
            if len(empty) > LISTED:
                listed += ", ..."
            notes.append(
                f"{len(empty)} items without an answer were left out: {listed}"
            )
    places = _check_drafts(drafts, problems)
    problems.finish()  # before splits are made: they need distinct ids
    items = [draft.item for draft in drafts]
    if check_answers:
        answers = answers.for_items(items)
        items, left_out = without_unreachable(items, answers, places)
        notes += filter(None, [left_out])
    items = assign_splits(name, items, section)
    _check_splits(items, places, problems)
    if section.limit:
        items = limit_items(items, section)
    check_picture_files(items, places, problems)
    problems.finish()
    return FileTask(
        name, items, answers=answers, labels=labels, notes=notes, places=places
    )


def _check_drafts(drafts: Sequence[Draft], problems: Problems) -> dict[ItemId, str]:
    """Report ids that occur twice and texts that are empty; the place of every item."""
    places: dict[ItemId, str] = {}
    for draft in drafts:
        item = draft.item
        place = draft.place
        if item.id in places:
            where = places[item.id]
            problems.add(place, f"the id {item.id} was used before, at {where}")
        places.setdefault(item.id, place)
        if not item.question.strip():
            problems.add(place, "the question is empty")
        if draft.is_empty:
            problems.add(
                place, "the answer is empty; task.skip_empty = true leaves such out"
            )
    if not drafts and not problems.found:
        problems.add(problems.task, "there is no item at all")
    return places


def _check_splits(
    items: Sequence[Item], places: Mapping[ItemId, str], problems: Problems
) -> None:
    """Report pictures that two splits share, and splits without an item."""
    split_of_group: dict[str, str] = {}
    for item in items:
        first = split_of_group.setdefault(group_of(item), item.split)
        if first != item.split:
            problems.add(
                places[item.id],
                f"its picture {item.image_id} is in {first} and in {item.split}",
            )
    for split in SPLITS:
        if split not in split_of_group.values():
            problems.add(
                f"split {split}",
                "it has no item; give more items, or change task.dev_items, task.test_items",
            )


def check_picture_files(
    items: Iterable[Item],
    places: Mapping[ItemId, str],
    problems: Problems,
    *,
    decode: bool = False,
) -> int:
    """Report every file that is missing, is no picture or is cut short; return how many were checked.

    With `decode` each is read to the end, which takes longer and finds damage in the middle too.
    """
    seen: set[str] = set()
    for item in items:
        if item.image is None or item.image in seen:
            continue
        seen.add(item.image)
        fault = picture_fault(Path(item.image), decode=decode)
        if fault:
            problems.add(places[item.id], f"{item.image[:LONGEST_NAME]} {fault}")
    return len(seen)
