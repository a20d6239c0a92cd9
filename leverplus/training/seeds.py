"""Seeds: every random number follows from the run's seed and the place it is used, never from a global generator."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """A seed below 2^63 from (run seed, stage, step, query id, ...); the same parts give the same seed everywhere."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
