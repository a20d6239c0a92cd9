"""Seeds: every random number follows from the run's seed and the place it is used, never from a global generator."""

from __future__ import annotations

import hashlib

from leverplus.data.types import ItemId

SEED_WORDS = {"label_pretraining": "agreement"}
"""The word by which a stage draws, where it is not its name: the recorded results of `best` rest on it."""


def derive_seed(*parts: object) -> int:
    """A seed below 2^63 from (run seed, stage, step, query id, ...); the same parts give the same seed everywhere."""
    words = [
        SEED_WORDS.get(part, part) if isinstance(part, str) else str(part)
        for part in parts
    ]
    text = "\x1f".join(words)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def source_seed(seed: int, source: str, query: ItemId) -> int:
    """A seed for one query of one source; the batch a query sits in does not change its draws."""
    digest = hashlib.blake2b(
        f"{seed}/{source}/{query}".encode(), digest_size=8
    ).digest()
    return int.from_bytes(digest, "big") >> 1  # below 2^63, which every generator takes
