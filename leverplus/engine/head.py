"""Watches whether the head of a Ray cluster (its GCS server) still takes connections.

Workers go on without a head for a while. After 60 seconds Ray itself ends the driver's process, without a word that a
user of this package could act on; so the engine looks for itself and stops earlier.
"""

from __future__ import annotations

import socket
import time

from leverplus.errors import ScoringError

SILENT = 30.0
"""Seconds without a head after which scoring stops; one that restarts in this time is not noticed."""

EVERY = 2.0
"""Seconds between two looks, and the longest that one look may take."""


class HeadWatch:
    """Looks for the head at `address` (host:port)."""

    def __init__(self, address: str, silent: float = SILENT) -> None:
        self.address, self.silent = address, silent
        self._seen = self._looked = time.monotonic()

    def look(self) -> None:
        """ScoringError when the head has not been there for too long; looks at most every two seconds."""
        now = time.monotonic()
        if now - self._looked < EVERY:
            return
        self._looked = now
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=EVERY).close()
            self._seen = now
        except OSError as error:
            if now - self._seen >= self.silent:
                raise ScoringError(
                    f"the head of the Ray cluster at {self.address} has not answered for {now - self._seen:.0f} s; "
                    "what was answered is in the store: start the cluster again (`ray start --head` there, `ray start "
                    "--address=...` on the others), then run the same command again"
                ) from error
