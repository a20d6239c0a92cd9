"""An encoder as an embedder: each text and picture once, in batches, from the cache where it was seen before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

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

PART_BATCHES = 16
"""Batches that are kept together: what a killed process has to embed again at most."""

SMALL = 16
"""Fewer fresh pieces are not worth a file: a selector that serves single queries would fill the folder."""


def open_embedder(
    section: EmbedSection, folder: Path, progress: Progress = lambda _what, _done, _total: None
) -> Embedder:
    """The embedder of an `[embed]` section; `folder` is where vectors are kept."""
    factory = catalog.load(catalog.EMBEDDERS, section.name, "embedder")
    if section.name == "world":
        world: Embedder = factory()
        return world
    if section.name == "stored":
        stored: Embedder = factory(section)
        return stored
    return CachedEmbedder(factory(section), folder, batch=section.batch, mean=section.mean, progress=progress)


class NoCache:
    """Keeps nothing and finds nothing."""

    def read(self, _keys: Iterable[bytes]) -> dict[bytes, Array]:
        return {}

    def write(self, _keys: Sequence[bytes], _vectors: Array) -> None:
        return


class CachedEmbedder:
    """Unit vectors of items from an encoder. With `mean`, picture and question become one vector, kept as text."""

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
        alone.__dict__["_cache"] = NoCache()
        return alone

    @cached_property
    def _fingerprint(self) -> Mapping[str, str]:
        return dict(self.encoder.fingerprint())

    @cached_property
    def _cache(self) -> VectorCache:
        return VectorCache(self.folder, self._fingerprint)

    def fingerprint(self) -> Mapping[str, str]:
        return {**self._fingerprint, "mean": "picture and question"} if self.mean else self._fingerprint

    def embed(self, items: Sequence[Item], task: Task) -> Vectors:
        text = self.of_texts([item.question for item in items])
        shown = sorted({item.answer for item in items if item.answers})
        rows = {answer: row for row, answer in enumerate(shown)}
        answers = np.concatenate([self.of_texts(shown, "embedding answers"), np.zeros_like(text[:1])])
        answer = answers[[rows[item.answer] if item.answers else len(shown) for item in items]]
        image = self.of_pictures(items, task)
        if self.mean and image is not None:
            return Vectors(None, mean_of(image, text), answer)
        return Vectors(image, text, answer)

    def of_texts(self, texts: Sequence[str], what: str = "embedding questions") -> Array:
        """Unit vectors of texts (N, D)."""
        keys = [content_key("text", text) for text in texts]
        fresh = dict(zip(keys, texts, strict=True))
        ordered = sorted(fresh, key=lambda key: (-len(fresh[key]), key))  # like lengths share a batch
        found = self._all(ordered, lambda part: self.encoder.texts([fresh[key] for key in part]), what)
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
        first = dict(zip(reversed(keys), reversed(items), strict=True))
        ordered = list(dict.fromkeys(keys))
        found = self._all(ordered, lambda part: self._see([first[key] for key in part], task), "embedding pictures")
        return self._stack([found[key] for key in keys])

    def _see(self, items: Sequence[Item], task: Task) -> Tensor:
        pictures = [picture for item in items if (picture := task.image(item)) is not None]
        return self.encoder.pictures(pictures)

    def _all(self, keys: Sequence[bytes], encode: Callable[[Sequence[bytes]], Tensor], what: str) -> dict[bytes, Array]:
        found = self._cache.read(keys)
        fresh = [key for key in keys if key not in found]
        for part in _cut(fresh, self.batch * PART_BATCHES):
            rows = []
            for batch in _cut(part, self.batch):
                with torch.inference_mode():
                    rows.append(encode(batch).float().cpu().numpy())
                self.progress(what, sum(len(row) for row in rows) + len(found), len(keys))
            vectors = np.concatenate(rows)
            if len(fresh) >= SMALL:
                self._cache.write(part, vectors)
            found.update(zip(part, vectors, strict=True))
        return found

    def _stack(self, rows: Sequence[Array]) -> Array:
        if rows:
            return np.stack(rows)
        with torch.inference_mode():
            width = self.encoder.texts(["a"]).shape[-1]
        return np.zeros((0, width), dtype=np.float32)


def mean_of(image: Array, text: Array) -> Array:
    """The unit vector of the mean of two unit vectors, row by row; the earlier code's mean of both."""
    total = image + text
    unit: Array = (total / np.linalg.norm(total, axis=1, keepdims=True).clip(min=1e-12)).astype(np.float32)
    return unit


def _cut(keys: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))
