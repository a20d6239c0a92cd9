"""Makes an embedder of an encoder: embeds each text and picture once, in batches, and reads known ones from a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from leverplus import catalog
from leverplus.embedders.base import Array, Embedder, Encoder, Progress, Vectors
from leverplus.embedders.cache import VectorCache, content_key
from leverplus.errors import DataError
from leverplus.recipe.sections import EmbedSection
from leverplus.tasks.base import Task
from leverplus.types import Item

if TYPE_CHECKING:
    from PIL import Image

PART_BATCHES = 16
"""Batches per file of the cache: as many as a killed process has to embed again at most."""

FEWEST_KEPT = 16
"""Fewer new vectors than this are not kept: a selector that serves single queries would fill the folder with files."""


def open_embedder(
    section: EmbedSection, folder: Path, progress: Progress = lambda _what, _done, _total: None
) -> Embedder:
    """The embedder of an `[embed]` section; `folder` is where vectors are kept."""
    factory = catalog.load(catalog.EMBEDDERS, section.name, "embedder")
    made: Any = factory(section)
    if hasattr(made, "embed"):  # an embedder itself; the others are encoders, which are wrapped with a cache
        embedder: Embedder = made
        return embedder
    return CachedEmbedder(made, folder, batch=section.batch, mean=section.mean, progress=progress)


class NoCache:
    """Stands in for `VectorCache` where single queries are embedded: it keeps nothing and finds nothing."""

    def read(self, _keys: Iterable[bytes]) -> dict[bytes, Array]:
        return {}

    def write(self, _keys: Sequence[bytes], _vectors: Array) -> None:
        return


class CachedEmbedder:
    """Unit vectors of items from an encoder. With `mean`, picture and question become one vector, given as `text`."""

    def __init__(
        self,
        encoder: Encoder,
        folder: Path,
        *,
        batch: int = 64,
        mean: bool = False,
        progress: Progress = lambda _what, _done, _total: None,
    ) -> None:
        self.encoder, self.folder, self.batch, self.mean, self.progress = encoder, folder, batch, mean, progress

    def uncached(self) -> CachedEmbedder:
        """The same encoder for single queries: reading all kept vectors to find one takes longer than encoding."""
        alone = CachedEmbedder(self.encoder, self.folder, batch=self.batch, mean=self.mean, progress=self.progress)
        alone.__dict__["_cache"] = NoCache()  # where `cached_property` looks before it opens a VectorCache
        return alone

    @cached_property
    def _fingerprint(self) -> Mapping[str, str]:  # kept, because it hashes all weights
        return dict(self.encoder.fingerprint())

    @cached_property
    def _cache(self) -> VectorCache:
        return VectorCache(self.folder, self._fingerprint)

    def fingerprint(self) -> Mapping[str, str]:
        if self.mean:
            return {**self._fingerprint, "mean": "picture and question"}
        return self._fingerprint

    def embed(self, items: Sequence[Item], task: Task) -> Vectors:
        text = self.of_texts([item.question for item in items])  # (N, D)
        answer = self._of_answers(items, text)  # (N, D)
        image = self.of_pictures(items, task)  # (N, D) or None
        if self.mean and image is not None:
            return Vectors(None, mean_vectors(image, text), answer)
        return Vectors(image, text, answer)

    def _of_answers(self, items: Sequence[Item], text: Array) -> Array:
        """Unit vectors (N, D) of the answers that items show; a zero row for an item without an answer.

        Few answers are shared by many items, so each is embedded once and its row is copied.
        """
        shown = sorted({item.answer for item in items if item.answers})
        if not shown:  # queries: nothing is encoded only to learn how wide a row is
            return np.zeros_like(text)
        distinct = self.of_texts(shown, "embedding answers")  # (answers, D)
        distinct = np.concatenate([distinct, np.zeros_like(text[:1])])  # the last row is zero
        row_of = {answer: row for row, answer in enumerate(shown)}
        rows = [row_of[item.answer] if item.answers else len(shown) for item in items]
        answers: Array = distinct[rows]
        return answers

    def of_texts(self, texts: Sequence[str], what: str = "embedding questions") -> Array:
        """Unit vectors of texts (N, D)."""
        keys = [content_key("text", text) for text in texts]
        text_of = dict(zip(keys, texts, strict=True))
        # Longest first: texts of like lengths share a batch, so little of it is padding.
        ordered = sorted(text_of, key=lambda key: (-len(text_of[key]), key))

        def encode(part: Sequence[bytes]) -> Tensor:
            return self.encoder.texts([text_of[key] for key in part])

        found = self._embed_missing(ordered, encode, what)
        return self._stack([found[key] for key in keys])

    def of_pictures(self, items: Sequence[Item], task: Task) -> Array | None:
        """Unit vectors of the items' pictures; None for a text task or an encoder that sees none."""
        if not self.encoder.sees or all(item.image is None for item in items):
            return None
        blind = [item.id for item in items if item.image is None]
        if blind:
            raise DataError(
                f"{len(blind)} of {len(items)} items have no picture, {blind[0]} among them; give all one, or set "
                'task.images = "none" and embed.name = "sentence"'
            )
        keys = [content_key("image", task.image_digest(item)) for item in items]
        first_item: dict[bytes, Item] = {}  # several items may share a picture
        for key, item in zip(keys, items, strict=True):
            first_item.setdefault(key, item)

        def encode(part: Sequence[bytes]) -> Tensor:
            return self.encoder.pictures(pictures_of([first_item[key] for key in part], task))

        found = self._embed_missing(list(first_item), encode, "embedding pictures")
        return self._stack([found[key] for key in keys])

    def _embed_missing(
        self, keys: Sequence[bytes], encode: Callable[[Sequence[bytes]], Tensor], what: str
    ) -> dict[bytes, Array]:
        """The vectors (D,) of all keys: read from the cache, or encoded batch by batch and then kept there."""
        found = self._cache.read(keys)
        fresh = [key for key in keys if key not in found]
        for part in _cut(fresh, self.batch * PART_BATCHES):
            blocks = []
            done = len(found)
            for batch in _cut(part, self.batch):
                with torch.inference_mode():
                    block = encode(batch).float().cpu().numpy()  # (batch, D)
                blocks.append(block)
                done += len(block)
                self.progress(what, done, len(keys))
            vectors = np.concatenate(blocks)  # (part, D)
            if len(fresh) >= FEWEST_KEPT:
                self._cache.write(part, vectors)
            found.update(zip(part, vectors, strict=True))
        return found

    def _stack(self, rows: Sequence[Array]) -> Array:
        if rows:
            return np.stack(rows)  # (N, D)
        with torch.inference_mode():
            width = self.encoder.texts(["a"]).shape[-1]  # D, which no row can tell where there is none
        return np.zeros((0, width), dtype=np.float32)


def mean_vectors(image: Array, text: Array) -> Array:
    """The unit vector of the mean of two unit vectors, row by row; the earlier code's mean of both."""
    total = image + text  # (N, D)
    length = np.linalg.norm(total, axis=1, keepdims=True)  # (N, 1)
    unit: Array = (total / length.clip(min=1e-12)).astype(np.float32)  # opposite vectors sum to zero
    return unit


def pictures_of(items: Sequence[Item], task: Task) -> list[Image.Image]:
    """The decoded pictures of items, all of which have one."""
    pictures = []
    for item in items:
        picture = task.image(item)
        if picture is not None:
            pictures.append(picture)
    return pictures


def _cut(keys: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(keys), size):
        yield keys[start : start + size]
