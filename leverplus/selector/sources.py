"""Where demonstrations come from: the folder of a bundle, or the task of a run.

Both give the same: all rows as vectors, the demonstration of a row, the row of an id, the vectors of a query.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from leverplus.embedders.base import Array, Vectors
from leverplus.errors import DataError, LeverError
from leverplus.selector.corpus import FIELDS, CorpusRows
from leverplus.selector.demo import BY_PIXELS, Demo, Scratch, StoredPicture, png_of
from leverplus.selector.query import HeldPictures, Query
from leverplus.selector.store import DemoStore, Entry
from leverplus.types import Item, ItemId

if TYPE_CHECKING:
    from leverplus.embedders.base import Embedder
    from leverplus.experiment.run import Run


class Source(Protocol):
    """What a selector needs to know of its demonstrations."""

    rows: CorpusRows
    """What a choice that starts now sees."""

    def refresh(self) -> None:
        """See what others have added and deleted."""

    def demos(self, rows: Sequence[int]) -> dict[int, Demo]:
        """The demonstrations of rows; those deleted meanwhile are left out."""

    def all(self) -> Iterator[tuple[int, Demo]]: ...

    def rows_of(self, ids: Sequence[ItemId]) -> dict[ItemId, int]: ...

    def embed(self, query: Query) -> Vectors: ...

    @property
    def fingerprint(self) -> str: ...


class QueryEncoder:
    """Embeds single queries, one thread at a time: tokenizers are not made for several."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder: Any = embedder.uncached() if hasattr(embedder, "uncached") else embedder
        self._lock = threading.Lock()

    def __call__(self, query: Query) -> Vectors:
        item = query.item()
        held = {} if query.picture is None or item.image is None else {item.image: query.picture}
        with self._lock:
            found: Vectors = self._embedder.embed([item], HeldPictures(held))
        return found

    def items(self, items: Sequence[Item], pictures: HeldPictures) -> Vectors:
        """Vectors of labelled items."""
        with self._lock:
            found: Vectors = self._embedder.embed(list(items), pictures)
        return found


class RunSource:
    """The training split of a run's task."""

    def __init__(self, run: Run, text_weight: float) -> None:
        self.run, self.scratch = run, Scratch()
        held = run.demonstration_vectors
        blocks = {name: block for name, block in vars(held).items() if block is not None}
        self.rows = CorpusRows.of(blocks, text_weight)

    def refresh(self) -> None:
        return

    @cached_property
    def _encode(self) -> QueryEncoder:
        return QueryEncoder(self.run.embedder)

    def embed(self, query: Query) -> Vectors:
        return self._encode(query)

    def demos(self, rows: Sequence[int]) -> dict[int, Demo]:
        return {row: self._demo(self.run.demonstrations[row]) for row in rows}

    def _demo(self, item: Item) -> Demo:
        picture = None
        if item.image is not None:
            path = item.image if Path(item.image).is_file() else None
            picture = StoredPicture(item.image, lambda: picture_bytes(self.run.task, item), self.scratch, path)
        return Demo(item.id, item.question, item.answers, item.meta, picture)

    def all(self) -> Iterator[tuple[int, Demo]]:
        return ((row, self._demo(item)) for row, item in enumerate(self.run.demonstrations))

    @cached_property
    def _places(self) -> dict[ItemId, int]:
        return {item.id: row for row, item in enumerate(self.run.demonstrations)}

    def rows_of(self, ids: Sequence[ItemId]) -> dict[ItemId, int]:
        return {name: self._places[name] for name in ids if name in self._places}

    @cached_property
    def fingerprint(self) -> str:
        digests = (Entry(item.id, item.question, item.answers, item.meta).digest for item in self.run.demonstrations)
        return f"{sum(int.from_bytes(digest, 'big') for digest in digests) % (1 << 128):032x}"


def picture_bytes(task: Any, item: Item) -> bytes:
    """The picture of an item of a task: its file as it is, or a PNG where there is no file."""
    path = Path(item.image or "")
    if path.is_file():
        return path.read_bytes()
    image = task.image(item)
    if image is None:
        raise DataError(f"item {item.id} has no picture any more; run `lever task check`")
    return png_of(image)


class BundleSource:
    """The folder of a bundle: `demos.sqlite` is the truth, the vector files hold its first rows."""

    def __init__(self, folder: Path, store: DemoStore, rows: CorpusRows, open_encoder: Any) -> None:
        self.folder, self.store, self.scratch = folder, store, Scratch()
        self.rows = rows
        self._open_encoder = open_encoder
        self._seen = -1
        self._version = store.version()
        self._catch_up()

    @cached_property
    def encoder(self) -> QueryEncoder:
        encoder: QueryEncoder = self._open_encoder()
        return encoder

    def embed(self, query: Query) -> Vectors:
        return self.encoder(query)

    def refresh(self) -> None:
        version = self.store.version()
        if version != self._version:
            with self.store.lock:
                self._version = version
                self._catch_up()

    def _catch_up(self) -> None:
        """Take over every change since the last look; the caller holds the lock, or is alone."""
        rows, last = self.rows, self.store.last_change()
        changes = self.store.changes_since(self._seen) if self._seen >= 0 else self._first_changes()
        fresh = [change for change in changes if change.row >= len(rows)]
        if fresh:
            numbers = [change.row for change in fresh]
            if numbers != list(range(len(rows), len(rows) + len(fresh))):
                raise DataError(f"{self.store.path} lacks rows before {numbers[-1]}; pack the bundle again")
            blocks = unpacked([change.vectors for change in fresh], rows, self.store.path)
            rows = rows.grown(blocks, np.array([not change.deleted for change in fresh], np.bool_))
        gone = [change.row for change in changes if change.deleted]
        self.rows, self._seen = (rows.closed(gone) if gone else rows), last

    def _first_changes(self) -> list[Any]:
        """At the beginning: rows that the vector files lack, and what was deleted of those they have."""
        from leverplus.selector.store import Change

        base = len(self.rows)
        late = [change for change in self.store.changes_since(self._packed_change()) if change.row >= base]
        return [*(Change(row, True, None) for row in self.store.deleted_rows() if row < base), *late]

    def _packed_change(self) -> int:
        return int(self.store.facts().get("packed_change", "0"))

    def demos(self, rows: Sequence[int]) -> dict[int, Demo]:
        return {row: self._demo(entry) for row, entry in self.store.entries(rows).items()}

    def _demo(self, entry: Entry) -> Demo:
        picture = None
        if entry.picture is not None:
            picture = self._picture(entry.picture)
        return Demo(entry.id, entry.question, entry.answers, entry.meta, picture)

    def _picture(self, name: str) -> StoredPicture:
        def read() -> bytes:
            kept = self.store.picture(name)
            if kept.content is not None:
                return kept.content
            try:
                return Path(kept.path or "").read_bytes()
            except OSError as error:
                raise DataError(f"the picture {kept.path} of the bundle cannot be read ({error.strerror})") from error

        return StoredPicture(BY_PIXELS + name, read, self.scratch)

    def all(self) -> Iterator[tuple[int, Demo]]:
        return ((row, self._demo(entry)) for row, entry in self.store.all())

    def rows_of(self, ids: Sequence[ItemId]) -> dict[ItemId, int]:
        return self.store.rows_of(ids)

    @property
    def fingerprint(self) -> str:
        return self.store.fingerprint


def packed(vectors: Mapping[str, Array], fields: Sequence[str]) -> list[bytes]:
    """The vectors of each row as bytes, fields one after the other, single precision."""
    together = np.concatenate([vectors[name] for name in fields], axis=1).astype("<f4")
    return [row.tobytes() for row in together]


def unpacked(blobs: Sequence[bytes | None], rows: CorpusRows, path: Path) -> dict[str, Array]:
    """The blocks of rows that came later; a row that was deleted at once has none, and zeros stand for it."""
    names = [name for name in FIELDS if name in rows.blocks]
    widths = [rows.blocks[name].width for name in names]
    whole: NDArray[np.float32] = np.zeros((len(blobs), sum(widths)), np.float32)
    for place, blob in enumerate(blobs):
        if blob is None:
            continue
        if len(blob) != 4 * sum(widths):
            raise DataError(f"{path}: a demonstration has {len(blob)} bytes of vectors, not {4 * sum(widths)}")
        whole[place] = np.frombuffer(blob, "<f4")
    ends = np.cumsum(widths)
    return {name: whole[:, end - width : end] for name, width, end in zip(names, widths, ends, strict=True)}


def require_vectors(rows: CorpusRows, vectors: Mapping[str, Any]) -> Vectors:
    """Vectors that a caller gives instead of having the query embedded, as unit vectors of the right width."""
    found: dict[str, Array | None] = {"image": None}
    for name in ("text", "image"):
        if name not in vectors or vectors[name] is None:
            continue
        array = np.asarray(vectors[name], np.float32).reshape(1, -1)
        norm = float(np.linalg.norm(array))
        block = rows.blocks.get(name)
        if block is None or array.shape[1] != block.width or not np.isfinite(norm) or norm == 0.0:
            width = "none" if block is None else f"{block.width} numbers, finite and not all zero"
            raise LeverError(f"vectors['{name}'] has {array.shape[1]} numbers; this selector takes {width}")
        found[name] = array / norm
    text = found.get("text")
    if text is None:
        raise LeverError("vectors must hold 'text': the vector of the question")
    return Vectors(found["image"], text, np.zeros_like(text))
