"""Builds tasks from files: checks all items, gives them splits by picture, finds their pictures, digests everything.

A file is read whole or not at all: every problem is collected with its line or id, and one error lists them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from PIL import Image

from leverplus.errors import DataError
from leverplus.recipe.sections import TaskSection
from leverplus.tasks.base import SPLITS
from leverplus.tasks.pictures import MOST_PIXELS, PICTURE_ERRORS, as_rgb, picture_reason
from leverplus.tasks.reading import LISTED, Problems
from leverplus.tasks.splits import assign_splits, group_of, limit_items
from leverplus.types import Item, ItemId

# The last bytes of a whole file (JPEG: end of image, PNG: the last chunk); a download that broke off lacks them.
_ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}
_TAIL_BYTES = 4096  # cameras and editors append some bytes after the end, so the ending is searched for in these
LONGEST_NAME = 300
"""Letters of a picture's name that a message shows."""


@dataclass(frozen=True)
class Draft:
    """An item as it was read, and the place in its file that a problem is reported with; split "" is still open."""

    item: Item
    place: str


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
        metric: str,
        postprocess: str,
        labels: tuple[str, ...] = (),
        notes: Sequence[str] = (),
        places: Mapping[ItemId, str] | None = None,
    ) -> None:
        self.name, self.metric, self.postprocess = name, metric, postprocess
        self.labels, self.notes, self.places = labels, tuple(notes), places or {}
        self._items = {split: [item for item in items if item.split == split] for split in SPLITS}
        self._by_id = {item.id: item for item in items}
        self._digests: dict[str, str] = {}

    @cached_property
    def version(self) -> str:
        """A digest of every item, of the names and sizes of the pictures, and of how answers are judged.

        The content of a picture is in `image_digest`, which is part of every stored score's key.
        """
        content = hashlib.sha256(repr((self.name, self.metric, self.postprocess, self.labels)).encode())
        sizes: dict[str, int] = {}
        for item in sorted(self._by_id.values(), key=lambda item: item.id):
            picture = None
            if item.image is not None:
                if item.image not in sizes:
                    sizes[item.image] = Path(item.image).stat().st_size
                # The name without its folder: the same data give the same version wherever they lie.
                picture = (Path(item.image).name, sizes[item.image])
            content.update(repr((item.id, item.question, item.answers, item.split, item.image_id, picture)).encode())
        return content.hexdigest()[:16]

    def items(self, split: str) -> Sequence[Item]:
        if split not in self._items:
            raise DataError(f"task {self.name} has no split '{split}'; allowed: {', '.join(SPLITS)}")
        return self._items[split]

    def item(self, item_id: ItemId) -> Item:
        if item_id not in self._by_id:
            example = next(iter(self._by_id))
            raise DataError(f"task {self.name} has no item '{item_id}'; ids look like {example}")
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
                raise DataError(f"item {item.id}: {item.image} cannot be read ({error.strerror})") from error
            self._digests[item.image] = hashlib.sha256(content).hexdigest()[:16]
        return self._digests[item.image]


def task_from_drafts(
    name: str,
    drafts: Sequence[Draft],
    section: TaskSection,
    problems: Problems,
    *,
    metric: str,
    postprocess: str,
    labels: tuple[str, ...] = (),
    notes: Sequence[str] = (),
) -> FileTask:
    """Make a task from drafts: give open splits, check everything, raise all problems in one error."""
    if section.skip_empty:
        empty = [draft.item.id for draft in drafts if _is_empty(draft.item)]
        drafts = [draft for draft in drafts if not _is_empty(draft.item)]
        if empty:
            more = ", ..." if len(empty) > LISTED else ""
            left = f"{len(empty)} items without an answer were left out: {', '.join(empty[:LISTED])}{more}"
            notes = [*notes, left]
    _check_items(drafts, problems)
    problems.finish()  # before splits are made: they need distinct ids
    places = {draft.item.id: draft.place for draft in drafts}
    items = assign_splits(name, [draft.item for draft in drafts], section)
    _check_splits(items, places, problems)
    if section.limit:
        kept: list[Item] = []
        for split in SPLITS:
            kept += limit_items(items, split, section)
        items = kept
    check_picture_files(items, places, problems)
    problems.finish()
    return FileTask(name, items, metric=metric, postprocess=postprocess, labels=labels, notes=notes, places=places)


def _check_items(drafts: Sequence[Draft], problems: Problems) -> None:
    first_place: dict[ItemId, str] = {}
    for draft in drafts:
        item = draft.item
        if item.id in first_place:
            problems.add(draft.place, f"the id {item.id} was used before, at {first_place[item.id]}")
        first_place.setdefault(item.id, draft.place)
        if not item.question.strip():
            problems.add(draft.place, "the question is empty")
        if _is_empty(item):
            problems.add(draft.place, "the answer is empty; task.skip_empty = true leaves such items out")
    if not drafts and not problems.found:
        problems.add(problems.task, "there is no item at all")


def _is_empty(item: Item) -> bool:
    return not item.answers or not item.answer.strip()


def _check_splits(items: Sequence[Item], places: Mapping[ItemId, str], problems: Problems) -> None:
    """Report pictures that two splits share, and splits without an item."""
    split_of_group: dict[str, str] = {}
    for item in items:
        first = split_of_group.setdefault(group_of(item), item.split)
        if first != item.split:
            problems.add(places[item.id], f"its picture {item.image_id} is in {first} and in {item.split}")
    for split in SPLITS:
        if split not in split_of_group.values():
            problems.add(f"split {split}", "it has no item; give more items, or change task.dev_items, task.test_items")


def text_id(text: str) -> str:
    """The `image_id` of an item without a picture: texts that differ only in case and spaces get the same one."""
    normal = " ".join(text.lower().split())
    return "text:" + hashlib.sha256(normal.encode()).hexdigest()[:16]


def check_picture_files(
    items: Iterable[Item], places: Mapping[ItemId, str], problems: Problems, *, decode: bool = False
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
            shown = item.image if len(item.image) <= LONGEST_NAME else f"{item.image[:LONGEST_NAME]}..."
            problems.add(places[item.id], f"{shown} {fault}")
    return len(seen)


def picture_fault(path: Path, *, decode: bool) -> str | None:
    """What is wrong with a picture file, or None. Without `decode` only its head and its end are looked at."""
    try:
        if not path.is_file():
            return "is not there"
        with Image.open(path) as picture:
            pixels = picture.width * picture.height
            if pixels > MOST_PIXELS:
                return f"has {pixels:,} pixels; at most {MOST_PIXELS:,} are taken: scale it down"
            ending = _ENDINGS.get(picture.format or "")
            if decode or ending is None or ending not in _tail(path):
                picture.load()  # decodes; raises where the file is cut short
    except PICTURE_ERRORS as error:
        return f"cannot be read as a picture ({picture_reason(error)})"
    return None


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read()
