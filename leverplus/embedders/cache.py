"""Vectors kept on disk by content: what was embedded once by the same weights is read, whatever task asks for it.

A folder holds parts, `<digest of the keys>.safetensors` with `keys` (N, 16) uint8 and `vectors` (N, D) float32. Parts
are written whole and moved into place, so that a killed process leaves nothing half written and several may write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from leverplus.embedders.base import Array
from leverplus.rundir import disk_sentence, replaced

KEY_SIZE = 16


def content_key(kind: str, content: str) -> bytes:
    """The key of a text, or of a picture by its digest."""
    return blake2b(content.encode(), digest_size=KEY_SIZE, person=kind.encode()).digest()


class VectorCache:
    """The vectors of one encoder; `root` is shared by all, the fingerprint names the folder."""

    def __init__(self, root: Path, fingerprint: Mapping[str, str]) -> None:
        name = blake2b(repr(sorted(fingerprint.items())).encode(), digest_size=8).hexdigest()
        self.folder = root / f"{fingerprint['embedder']}-{name}"

    def read(self, keys: Iterable[bytes]) -> dict[bytes, Array]:
        """The vectors of those keys that are there."""
        wanted = set(keys)
        found: dict[bytes, Array] = {}
        for path in sorted(self.folder.glob("*.safetensors")) if wanted else ():
            try:
                part = load_file(path)
                rows = {row.tobytes(): number for number, row in enumerate(part["keys"])}
            except (SafetensorError, KeyError):
                path.unlink(missing_ok=True)  # damaged by the disk: it is embedded again
                continue
            found |= {key: part["vectors"][rows[key]] for key in wanted & rows.keys()}
            wanted -= rows.keys()
        return found

    def write(self, keys: Sequence[bytes], vectors: Array) -> None:
        """Keep vectors; the part appears at once or not at all."""
        name = blake2b(b"".join(keys), digest_size=KEY_SIZE).hexdigest()
        path = self.folder / f"{name}.safetensors"
        table = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), KEY_SIZE)
        with disk_sentence(path):
            self.folder.mkdir(parents=True, exist_ok=True)
        with replaced(path) as part:
            try:
                save_file({"keys": table, "vectors": np.ascontiguousarray(vectors)}, part)
            except SafetensorError as error:  # how it says that the disk is full
                raise OSError(str(error)) from error
