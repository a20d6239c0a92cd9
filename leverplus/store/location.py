"""Where the score store lives when the user does not say."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "LEVERPLUS_STORE"


def default_store_path() -> Path:
    """The file named by LEVERPLUS_STORE, else ~/.cache/leverplus/scores.db; stores are shared between runs."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "leverplus" / "scores.db"
