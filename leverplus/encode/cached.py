"""Makes an embedder of an encoder: embeds each text and picture once, in batches, and reads known ones from a cache.

A text or picture that the same weights have embedded once is read, in any task. The folder of an encoder holds parts,
`<digest of the keys>.npz` with `keys` (N, 16) uint8 and `vectors` (N, D) float32. Parts are written whole and moved into
place, so that a killed process leaves nothing half written and several may write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from leverplus import catalog
from leverplus.data.rundir import disk_sentence, shipped, write_atomically
from leverplus.data.tasks.base import Task
from leverplus.data.types import Item
from leverplus.encode.base import (
    KEY_SIZE,
    Array,
    Embedder,
    Progress,
    TextEmbedder,
    Vectors,
    content_key,
    shown_answers,
    unit_rows,
)
from leverplus.encode.settings import EmbedSection
from leverplus.errors import PART_EXTRAS, DataError, MissingFile, needs_extra

if TYPE_CHECKING:
    from PIL import Image

PART_BATCHES = 16
"""Batches per file of the cache: as many as a killed process has to embed again at most."""

FEWEST_KEPT = 16
"""Fewer pieces than this are neither looked up nor kept: reading all vectors to find one takes longer than encoding."""

UNREADABLE = (OSError, ValueError, KeyError, EOFError, BadZipFile)
"""What NumPy raises for a file of vectors that is damaged, or is none."""


def open_embedder(
    section: EmbedSection,
    folder: Path | None = None,
    progress: Progress = lambda _what, _done, _total: None,
    learn_from: Callable[[], Iterable[Item]] = tuple,
) -> Embedder:
    """The embedder of an `[embed]` section; `folder` is where vectors are kept, None: nowhere.

    One that learns from texts, as `tfidf` does where no file of it is named, learns from the items of `learn_from`.
    """
    factory = catalog.load(catalog.EMBEDDERS, section.name, "embedder")
    extra = PART_EXTRAS.get(section.name, "hf")
    with needs_extra(f"embed.name = '{section.name}'", extra):
        made: Any = factory(section)
    if not hasattr(made, "embed"):  # an encoder
        return CachedEmbedder(made, folder, batch=section.batch, progress=progress)
    if hasattr(made, "learn") and not section.model:
        made.learn(_texts_of(learn_from()))
    embedder: Embedder = made
    return embedder


def _texts_of(items: Iterable[Item]) -> Iterator[str]:
    """The questions of items, and every answer that they show once."""
    answers = set()
    for item in items:
        yield item.question
        if item.answers:
            answers.add(item.answer)
    yield from sorted(answers)


class CachedEmbedder:
    """Unit vectors of items from an encoder; `folder` is where vectors are kept, None: nothing is kept."""

    def __init__(
        self,
        encoder: Any,
        folder: Path | None,
        *,
        batch: int = 64,
        progress: Progress = lambda _what, _done, _total: None,
    ) -> None:
        self.encoder = encoder
        self.folder = folder
        self.batch = batch
        self.progress = progress

    @cached_property
    def _fingerprint(self) -> Mapping[str, str]:  # kept, because it hashes all weights
        return dict(self.encoder.fingerprint())

    def fingerprint(self) -> Mapping[str, str]:
        return self._fingerprint

    def embed(self, items: Sequence[Item], task: Task) -> Vectors:
        text = self.of_texts([item.question for item in items])  # (N, D)
        image = self.of_pictures(items, task)  # (N, D) or None
        of_answers = partial(self.of_texts, what="embedding answers")
        answer = shown_answers(items, text, of_answers)
        return Vectors(image, text, answer)

    def of_texts(
        self, texts: Sequence[str], what: str = "embedding questions"
    ) -> Array:
        """Unit vectors of texts (N, D)."""
        keys = [content_key("text", text) for text in texts]
        text_of = dict(zip(keys, texts, strict=True))
        # Longest first: texts of like lengths share a batch, so little of it is padding.
        ordered = sorted(text_of, key=lambda key: (-len(text_of[key]), key))

        def encode(part: Sequence[bytes]) -> Any:
            return self.encoder.texts([text_of[key] for key in part])

        found = self._embed_missing(ordered, encode, what)
        if keys:
            return np.stack([found[key] for key in keys])  # (N, D)
        # D, which no row can tell where there is none
        width = _as_array(self.encoder.texts, ["a"]).shape[-1]
        return np.zeros((0, width), dtype=np.float32)

    def of_pictures(self, items: Sequence[Item], task: Task) -> Array | None:
        """Unit vectors of the items' pictures; None for a text task or an encoder that sees none."""
        blind = []
        for item in items:
            if item.image is None:
                blind.append(item.id)
        if not self.encoder.sees or len(blind) == len(items):
            return None
        if blind:
            raise DataError(
                f"{len(blind)} of {len(items)} items have no picture, {blind[0]} among them; give all one, or set "
                'task.images = "none" and embed.name = "sentence"'
            )
        keys = [content_key("image", task.image_digest(item)) for item in items]
        item_of = dict(zip(keys, items, strict=True))  # several may share a picture

        def encode(part: Sequence[bytes]) -> Any:
            own = [item_of[key] for key in part]
            return self.encoder.pictures(pictures_of(own, task))

        found = self._embed_missing(list(item_of), encode, "embedding pictures")
        return np.stack([found[key] for key in keys])  # (N, D)

    def _embed_missing(
        self,
        keys: Sequence[bytes],
        encode: Callable[[Sequence[bytes]], Any],
        what: str,
    ) -> dict[bytes, Array]:
        """The vectors (D,) of all keys: read from the cache, or encoded batch by batch and then kept there."""
        cache = None
        found: dict[bytes, Array] = {}
        if self.folder and len(keys) >= FEWEST_KEPT:
            cache = VectorCache(self.folder, self._fingerprint)
            found = cache.read(keys)
        fresh = [key for key in keys if key not in found]
        size = self.batch * PART_BATCHES
        for start in range(0, len(fresh), size):
            part = fresh[start : start + size]
            blocks: list[Array] = []
            for first in range(0, len(part), self.batch):
                batch = part[first : first + self.batch]
                blocks.append(_as_array(encode, batch))
                done = len(found) + first + len(batch)
                self.progress(what, done, len(keys))
            vectors = np.concatenate(blocks)  # (part, D)
            if cache:
                cache.write(part, vectors)
            found.update(zip(part, vectors, strict=True))
        return found


def _as_array(encode: Callable[[Any], Any], part: Sequence[Any]) -> Array:
    """What an encoder gives for a batch, as an array (N, D), and without gradients where torch computes it."""
    torch = sys.modules.get("torch")  # an encoder that needs it has imported it
    with nullcontext() if torch is None else torch.inference_mode():
        block: Any = encode(part)
    if not isinstance(block, np.ndarray):
        block = block.float().cpu().numpy()
    return np.asarray(block, np.float32)


def pictures_of(items: Sequence[Item], task: Task) -> list[Image.Image]:
    """The decoded pictures of items, all of which have one."""
    pictures = []
    for item in items:
        picture = task.image(item)
        if picture is not None:
            pictures.append(picture)
    return pictures


class VectorCache:
    """The vectors of one encoder, in a folder of its own below `root`, named after the encoder's fingerprint."""

    def __init__(self, root: Path, fingerprint: Mapping[str, str]) -> None:
        marks = repr(sorted(fingerprint.items())).encode()
        name = blake2b(marks, digest_size=8).hexdigest()
        self.folder = root / f"{fingerprint.get('embedder', 'own')}-{name}"

    def read(self, keys: Iterable[bytes]) -> dict[bytes, Array]:
        """The vectors (D,) of those keys that are kept."""
        wanted = set(keys)
        found: dict[bytes, Array] = {}
        for path in sorted(self.folder.glob("*.npz")):
            try:
                rows, vectors = read_vectors(path)
            except UNREADABLE:
                # damaged by the disk: its pieces are embedded again
                path.unlink(missing_ok=True)
                continue
            for key in wanted & rows.keys():
                found[key] = vectors[rows[key]]
        return found

    def write(self, keys: Sequence[bytes], vectors: Array) -> None:
        """Keep vectors (N, D) as one new part; it appears whole or not at all."""
        joined = b"".join(keys)
        path = self.folder / f"{blake2b(joined, digest_size=KEY_SIZE).hexdigest()}.npz"
        with disk_sentence(path):
            self.folder.mkdir(parents=True, exist_ok=True)
        table = np.frombuffer(joined, np.uint8).reshape(-1, KEY_SIZE)  # (N, 16)
        with write_atomically(path) as part, part.open("wb") as file:
            np.savez(file, keys=table, vectors=vectors)


def read_vectors(path: Path) -> tuple[dict[bytes, int], Any]:
    """The rows of keys in a file of kept vectors, and the vectors (N, D)."""
    # opened here: NumPy leaves a damaged file open
    with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
        keys = kept["keys"]
        vectors = kept["vectors"]
    return {key.tobytes(): row for row, key in enumerate(keys)}, vectors


class StoredVectors(TextEmbedder):
    """Unit vectors of the questions and answers that a file (embed.model) has; others come from a sentence encoder.

    The file (NumPy's npz) holds `keys` (N, 16) uint8, a digest of each text, `vectors` (N, D) int8, scaled so that the
    largest component of each row is 127, and `fingerprint` (JSON as bytes) of the embedder that made them.
    """

    def __init__(self, section: EmbedSection) -> None:
        self.path = shipped(section.model)
        if not section.model or not self.path.is_file():
            raise MissingFile(
                f'embed.model = "{section.model}": there is no such file of vectors; set embed.name = "sentence" to '
                "compute them"
            )

    @cached_property
    def _kept(self) -> tuple[dict[bytes, int], Any, dict[str, str]]:
        try:
            rows, vectors = read_vectors(self.path)
            with np.load(self.path, allow_pickle=False) as file:
                made = json.loads(file["fingerprint"].tobytes())
        except UNREADABLE as error:
            raise DataError(
                f"{self.path} is not a file of vectors ({error})"
            ) from error
        digest = sha256(b"".join(rows) + vectors.tobytes()).hexdigest()[:16]
        return rows, vectors, {**made, "stored": digest}

    @cached_property
    def _sentence(self) -> CachedEmbedder:
        """The sentence encoder, for texts that the file lacks; they are computed anew in every process."""
        from leverplus.encode.networks import SentenceEncoder

        return CachedEmbedder(SentenceEncoder(EmbedSection(name="sentence")), None)

    def fingerprint(self) -> Mapping[str, str]:
        return self._kept[2]

    def of_texts(self, texts: Sequence[str]) -> Array:
        """Unit vectors of texts (N, D)."""
        rows, vectors, _ = self._kept
        keys = [content_key("text", text) for text in texts]
        found = np.empty((len(texts), vectors.shape[1]), np.float32)
        missing = []
        for place, key in enumerate(keys):
            if key in rows:
                found[place] = vectors[rows[key]]
            else:
                missing.append(place)
        if missing:
            found[missing] = self._sentence.of_texts([texts[own] for own in missing])
        # the scale of a stored row falls out of its unit vector
        return unit_rows(found)
