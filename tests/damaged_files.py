"""A contract for every file that is read again: damage of any kind is refused in a sentence or changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leverplus.errors import LeverError

FOREIGN = (
    b"",
    b"not this kind of file\n" * 40,
    b"PAR1" * 64,
    b"SQLite format 3\0" + bytes(4096),
    b"\x89PNG\r\n\x1a\n",
)


def check_file(
    whole: Path, folder: Path, read: Callable[[Path], Any], *, flips: int, seed: int = 0
) -> dict[str, int]:
    """Read damaged copies of a file with `read`, which gives a value that can be compared.

    A flipped bit is refused with a LeverError or gives exactly the value of the whole file; a file that was cut, or is
    of another kind, is refused. Every error names the file. Returns how many flips were refused and how many harmless.
    """
    expected = read(whole)
    content = whole.read_bytes()
    draw = random.Random(seed)
    path = folder / whole.name
    path.parent.mkdir(parents=True, exist_ok=True)

    def refusal(damaged: bytes) -> str | None:
        path.write_bytes(damaged)
        try:
            value = read(path)
        except LeverError as error:
            said = str(error)
        else:
            assert value == expected, "damage changed what was read"
            return None
        assert whole.name in said, f"the error does not name the file: {said}"
        return said

    counts = {"refused": 0, "harmless": 0}
    for _ in range(flips):
        damaged = bytearray(content)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        counts["harmless" if refusal(bytes(damaged)) is None else "refused"] += 1
    for length in (1, len(content) // 3, len(content) - 1):
        assert refusal(content[:length]) is not None, (
            f"a file cut to {length} bytes was taken"
        )
    for foreign in FOREIGN:
        assert refusal(foreign) is not None, (
            f"a file that begins with {foreign[:8]!r} was taken"
        )
    path.unlink()
    return counts
