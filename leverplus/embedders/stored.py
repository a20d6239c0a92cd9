"""An embedder that reads vectors from a file instead of computing them, for texts that were embedded before.

The file (NumPy's npz) holds `keys` (N, 16) uint8, a digest of each text, `vectors` (N, D) int8, scaled so that the
largest component of each row is 127, and `fingerprint` (JSON as bytes) of the embedder that made them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leverplus.embedders.base import Array, Vectors
from leverplus.embedders.cache import content_key
from leverplus.errors import DataError, MissingFile
from leverplus.recipe.sections import EmbedSection
from leverplus.rundir import shipped
from leverplus.tasks.base import Task
from leverplus.types import Item

if TYPE_CHECKING:
    from leverplus.embedders.cached import CachedEmbedder

STEPS = 127  # the largest int8


class StoredVectors:
    """Unit vectors of the questions and answers that a file (embed.model) has; others come from a sentence encoder."""

    def __init__(self, section: EmbedSection) -> None:
        self.path = shipped(section.model)
        if not section.model or not self.path.is_file():
            raise MissingFile(
                f'embed.model = "{section.model}": there is no such file of vectors; set embed.name = "sentence" to '
                "compute them"
            )

    @cached_property
    def _file(self) -> dict[str, Any]:
        try:
            with np.load(self.path, allow_pickle=False) as file:
                return {name: file[name] for name in ("keys", "vectors", "fingerprint")}
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{self.path} is not a file of vectors ({error})") from error

    @cached_property
    def _rows(self) -> dict[bytes, int]:
        return {key.tobytes(): row for row, key in enumerate(self._file["keys"])}

    @cached_property
    def _sentence(self) -> CachedEmbedder:
        """The sentence encoder, for texts that the file lacks; they are computed anew in every process."""
        from leverplus.embedders.cached import CachedEmbedder
        from leverplus.embedders.sentence import SentenceEncoder

        return CachedEmbedder(SentenceEncoder(EmbedSection(name="sentence")), self.path.parent).uncached()

    def fingerprint(self) -> Mapping[str, str]:
        made: dict[str, str] = json.loads(self._file["fingerprint"].tobytes())
        digest = sha256(self._file["keys"].tobytes() + self._file["vectors"].tobytes()).hexdigest()[:16]
        return {**made, "stored": digest}

    def of_texts(self, texts: Sequence[str]) -> Array:
        """Unit vectors of texts (N, D)."""
        stored = self._file["vectors"]  # (stored texts, D) int8
        unit: Array = np.empty((len(texts), stored.shape[1]), np.float32)
        held: list[int] = []  # places in `texts` that the file holds
        rows: list[int] = []  # their rows in the file
        missing: list[int] = []
        for place, text in enumerate(texts):
            row = self._rows.get(content_key("text", text))
            if row is None:
                missing.append(place)
            else:
                held.append(place)
                rows.append(row)
        steps = stored[rows].astype(np.float32)  # (held, D); the scale of a row falls out of its unit vector
        unit[held] = steps / np.linalg.norm(steps, axis=1, keepdims=True).clip(min=1e-12)
        if missing:
            unit[missing] = self._sentence.of_texts([texts[place] for place in missing])
        return unit

    def embed(self, items: Sequence[Item], task: Task) -> Vectors:  # noqa: ARG002 one signature with other embedders
        text = self.of_texts([item.question for item in items])
        answer = np.zeros_like(text)
        labelled = [place for place, item in enumerate(items) if item.answers]
        answer[labelled] = self.of_texts([items[place].answer for place in labelled])
        return Vectors(None, text, answer)


def write_vectors(path: Path, texts: Sequence[str], vectors: Array, fingerprint: Mapping[str, str]) -> None:
    """Keep the vectors (N, D) of texts, one byte per number."""
    keys = np.array([np.frombuffer(content_key("text", text), np.uint8) for text in texts])  # (N, 16)
    scale = np.abs(vectors).max(axis=1, keepdims=True)  # (N, 1)
    steps = np.rint(vectors / scale * STEPS).astype(np.int8)  # (N, D)
    made = np.frombuffer(json.dumps(dict(fingerprint), sort_keys=True).encode(), np.uint8)
    np.savez_compressed(path, keys=keys, vectors=steps, fingerprint=made)
