"""The calls of a training: the distinct prompts that it asked for, counted in the run folder as they are asked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from leverplus.data.rundir import disk_sentence, write_text


class KeptCalls:
    """The keys of all prompts that training and dev selection asked for, one hexadecimal line each in a file.

    A run that was stopped and goes on, and an evaluation later, therefore know the count without asking again.
    `path` is None where there is no run folder.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.counted = path is not None and path.is_file()
        """False for a new run, and for a folder from before calls were kept."""
        self.keys: set[bytes] = set()
        if path is not None and path.is_file():
            self.keys = _read(path)

    def __len__(self) -> int:
        return len(self.keys)

    def write(self, keys: Iterable[bytes]) -> None:
        """Append keys that are counted for the first time."""
        if self.path is None:
            return
        self.counted = True
        with disk_sentence(self.path), self.path.open("a", encoding="ascii") as file:
            file.write("".join(f"{key.hex()}\n" for key in sorted(keys)))


def _read(path: Path) -> set[bytes]:
    text = path.read_text(encoding="ascii")
    whole, _, torn = text.rpartition("\n")
    if torn:  # a process was killed while it wrote: its last prompts are asked, and counted, again
        write_text(path, whole + "\n" if whole else "")
    return {bytes.fromhex(line) for line in whole.split("\n") if line}
