"""The selector that a worker serves: sees demonstrations that others add or delete, and a bundle that was replaced.

Demonstrations that `lever demos`, another worker or another program changed are seen by the selector itself at its next
choice. Here the rest: a folder that was exchanged as a whole, or whose way of choosing was changed, is loaded anew
while the old one goes on answering.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.errors import LeverError
from leverplus.rundir import read_json
from leverplus.selector.bundle import DEMOS, MANIFEST
from leverplus.selector.selector import Selector

if TYPE_CHECKING:
    from leverplus.serve.metrics import Metrics

LOOK_SECONDS = 0.5
"""How often the folder is looked at, at most."""

Stamp = tuple[int, ...]


class ServedSelector:
    """Gives the selector to choose with now."""

    def __init__(self, address: str, metrics: Metrics) -> None:
        self.address, self.metrics = address, metrics
        self._selector = _open(address)
        self._folder = None if self._selector.bundle is None else self._selector.bundle.folder
        self._lock = threading.Lock()
        self._stamp, self._manner = self._look()
        self._next = time.monotonic() + LOOK_SECONDS

    def current(self) -> Selector:
        """The selector; the thread that finds the folder exchanged loads it, others use the old one meanwhile."""
        if self._folder is None or time.monotonic() < self._next or not self._lock.acquire(blocking=False):
            return self._selector
        try:
            self._next = time.monotonic() + LOOK_SECONDS
            self._reload_if_exchanged()
        finally:
            self._lock.release()
        return self._selector

    def _reload_if_exchanged(self) -> None:
        assert self._folder is not None
        try:
            stamp = _stamp(self._folder)
            if stamp == self._stamp:
                return
            found, manner = self._look()
            if manner != self._manner:
                self._selector = _open(str(self._folder))
                self._manner = manner
                self.metrics.add("lever_reloads_total", "loaded")
            self._stamp = found
        except (LeverError, OSError):
            # half copied, or gone for a moment: the old one still answers, and the next look tries again
            self.metrics.add("lever_reloads_total", "failed")

    def _look(self) -> tuple[Stamp, Any]:
        """Stamps of the files, and what makes a change of theirs count: another database, another way of choosing."""
        if self._folder is None:
            return (), None
        stamp = _stamp(self._folder)
        facts = read_json(self._folder / MANIFEST)
        manner = {key: value for key, value in facts.items() if key != "demonstrations"}  # `demos` changes that one
        return stamp, (stamp[:2], manner)


def _stamp(folder: Path) -> Stamp:
    """Which database it is, then which manifest."""
    demos, manifest = (folder / DEMOS).stat(), (folder / MANIFEST).stat()
    return demos.st_dev, demos.st_ino, manifest.st_ino, manifest.st_mtime_ns


def _open(address: str) -> Selector:
    """A selector whose embedder is open already, so that the first visitor does not wait for it."""
    selector = Selector.load(address)
    source: Any = selector.source
    if selector.chooser.searches and selector.bundle is not None:
        _ = source.encoder
    return selector
