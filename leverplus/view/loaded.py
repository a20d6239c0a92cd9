"""Keeps the runs, tasks and selectors that the page has loaded; one request at a time works with them."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from leverplus import rundir
from leverplus.errors import DataError, LeverError, MissingFile
from leverplus.report.data import require_manifest
from leverplus.types import Item, ItemId
from leverplus.view.queries import QueryIndex, Traits

if TYPE_CHECKING:
    from leverplus.experiment.run import Run
    from leverplus.selector.selector import Selector

PICTURE_SIDE = 512  # pixels
MOST_VALUES = 40
"""A trait of items with more values than this is a text, nothing to filter by."""


@dataclass(frozen=True)
class ShownItem:
    """An item as a page shows it; `answers` with their counts, `question` "" where the task cannot be reached."""

    id: str
    question: str = ""
    answers: tuple[tuple[str, int], ...] = ()
    picture: bool = False
    meta: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, item: Item) -> ShownItem:
        ranked = tuple(Counter(item.answers).most_common())  # of equal counts the first given stands first
        return cls(item.id, item.question, ranked, item.image is not None, tuple(item.meta.items()))

    @property
    def answer(self) -> str:
        return self.answers[0][0] if self.answers else ""


class Labels:
    """The questions of the items of a predictions file, and traits to filter by, one value per item."""

    def __init__(self, index: QueryIndex, run: Run | None) -> None:
        known: dict[str, Item] = {}
        if run is not None:
            known = {item.id: item for item in run.task.items("test")}
        ids: list[str] = index.items.to_pylist()
        items = [known.get(item_id) for item_id in ids]
        self._ids, self._items = ids, items
        self.texts: Sequence[str] = [item.question if item else "" for item in items]
        names: dict[str, None] = {}  # a dict as an ordered set
        for item in items:
            if item:
                names.update(dict.fromkeys(item.meta))
        traits: dict[str, list[str]] = {}
        for name in names:
            values = [str(item.meta.get(name, "")) if item else "" for item in items]
            if 2 <= len(set(values)) <= MOST_VALUES:
                traits[name] = values
        self.traits: Traits = traits

    def card(self, row: int) -> ShownItem:
        """The item at a place of the index; by its id alone where the task does not know it."""
        item = self._items[row]
        return ShownItem(self._ids[row]) if item is None else ShownItem.of(item)

    def choices(self) -> dict[str, list[str]]:
        """The values of every trait; the relation a question asks about comes first."""
        names = sorted(self.traits, key=lambda name: name != "relation")
        return {name: sorted(set(self.traits[name])) for name in names}


class LoadedRuns:
    """Keeps what was loaded for the run folders last used, until they change."""

    KEPT = 3  # folders, of each the run and the selector

    def __init__(self) -> None:
        self.lock = RLock()
        self._kept: dict[tuple[str, Path], tuple[Any, Any]] = {}  # least recently used first

    def _load_once(self, kind: str, folder: Path, make: Any) -> Any:
        """What `make` gives for a folder, kept until the times of the folder's files change."""
        stamp = tuple(_mtime(folder / name) for name in (rundir.MANIFEST, rundir.RESOLVED, rundir.CHECKPOINTS))
        with self.lock:
            kept = self._kept.pop((kind, folder), None)
            if kept is None or kept[0] != stamp:
                try:
                    kept = stamp, make()
                except (ValueError, KeyError, TypeError, OSError) as error:
                    said = f"it is not whole or another version made it ({type(error).__name__}: {error})"
                    raise DataError(f"{folder.name} cannot be loaded: {said}") from error
            self._kept[kind, folder] = kept
            while len(self._kept) > 2 * self.KEPT:
                del self._kept[next(iter(self._kept))]
            return kept[1]

    def run(self, folder: Path) -> Run:
        """The run in a folder, its task reachable; a sentence where it is not."""
        from leverplus.experiment.opening import load_run

        def make() -> Run:
            require_manifest(folder)
            run = load_run(folder)
            run.task.items("test")  # fails here rather than later where the task's data cannot be reached
            return run

        found: Run = self._load_once("run", folder, make)
        return found

    def selector(self, folder: Path) -> Selector:
        """The trained selector of a run."""
        from leverplus.selector.selector import Selector

        def make() -> Selector:
            require_manifest(folder)
            return Selector.load(folder)

        found: Selector = self._load_once("selector", folder, make)
        return found

    def reachable(self, folder: Path) -> tuple[Run | None, str]:
        """The run, or None and the sentence that says why it cannot be loaded."""
        try:
            return self.run(folder), ""
        except LeverError as error:
            return None, f"The task's items cannot be reached, so they are shown by id without pictures: {error}"

    def card(self, run: Run | None, item_id: str) -> ShownItem:
        """An item to show; by its id alone where the task is out of reach or does not know it."""
        try:
            return ShownItem(item_id) if run is None else ShownItem.of(run.task.item(ItemId(item_id)))
        except LeverError:
            return ShownItem(item_id)

    def picture(self, folder: Path, item_id: str) -> bytes:
        """An item's picture as WebP."""
        run = self.run(folder)
        with self.lock:
            image = run.task.image(run.task.item(ItemId(item_id)))
        if image is None:
            raise MissingFile(f"item {item_id[:80]} has no picture")
        return webp(image)


def webp(image: Any) -> bytes:
    """A picture for the page, at most PICTURE_SIDE pixels wide and high."""
    small = image.convert("RGB")
    small.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    out = io.BytesIO()
    small.save(out, "WEBP", quality=85)
    return out.getvalue()


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
