"""Keeps vectors on disk by content: a text or picture that the same weights have embedded once is read, in any task.

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
from leverplus.rundir import disk_sentence, write_atomically

KEY_SIZE = 16  # bytes; part of the file format


def content_key(kind: str, content: str) -> bytes:
    """The key of a text, or of a picture by its digest."""
    return blake2b(content.encode(), digest_size=KEY_SIZE, person=kind.encode()).digest()


class VectorCache:
    """The vectors of one encoder, in a folder of its own below `root`, named after the encoder's fingerprint."""

    def __init__(self, root: Path, fingerprint: Mapping[str, str]) -> None:
        name = blake2b(repr(sorted(fingerprint.items())).encode(), digest_size=8).hexdigest()
        self.folder = root / f"{fingerprint['embedder']}-{name}"

    def read(self, keys: Iterable[bytes]) -> dict[bytes, Array]:
        """The vectors (D,) of those keys that are kept."""
        wanted = set(keys)
        found: dict[bytes, Array] = {}
        if not wanted:
            return found
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                part = load_file(path)
                rows = {row.tobytes(): number for number, row in enumerate(part["keys"])}
            except (SafetensorError, KeyError):
                path.unlink(missing_ok=True)  # damaged by the disk: its pieces are embedded again
                continue
            for key in wanted & rows.keys():
                found[key] = part["vectors"][rows[key]]
            wanted -= rows.keys()
        return found

    def write(self, keys: Sequence[bytes], vectors: Array) -> None:
        """Keep vectors (N, D) as one new part; it appears whole or not at all."""
        joined = b"".join(keys)
        name = blake2b(joined, digest_size=KEY_SIZE).hexdigest()
        path = self.folder / f"{name}.safetensors"
        table = np.frombuffer(joined, dtype=np.uint8).reshape(len(keys), KEY_SIZE)  # (N, 16)
        with disk_sentence(path):
            self.folder.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as part:
            try:
                save_file({"keys": table, "vectors": np.ascontiguousarray(vectors)}, part)
            except SafetensorError as error:  # for a full disk too, which `write_atomically` explains as an OSError
                raise OSError(str(error)) from error
