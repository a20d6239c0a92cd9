"""Seeds: every random number follows from the run's seed and the place it is used, never from a global generator."""

from __future__ import annotations

import hashlib

from leverplus.renamed import first_name


def derive_seed(*parts: object) -> int:
    """A seed below 2^63 from (run seed, stage, step, query id, ...); the same parts give the same seed everywhere."""
    # a stage that was renamed draws what it drew before
    text = "\x1f".join(first_name(part) if isinstance(part, str) else str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
