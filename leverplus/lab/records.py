"""`results.json.gz`: everything a benchmark has measured, in one file that any machine can go on from."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leverplus.errors import DataError
from leverplus.rundir import disk_sentence, write_atomically

FILE = "results.json.gz"
FORMAT = 1


@dataclass
class Records:
    """Records by key, and what failed with the sentence that says why."""

    path: Path
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Records:
        """What a folder holds; empty where nothing was measured yet."""
        path = folder / FILE
        if not path.is_file():
            return cls(path)
        try:
            value = json.loads(gzip.decompress(path.read_bytes()))
        except (OSError, EOFError, ValueError) as error:
            raise DataError(f"{path} is damaged ({error}); move it away and run the benchmark again") from error
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise DataError(f"{path} is not a benchmark's results (format {FORMAT}); choose another --out DIR")
        return cls(path, value["records"], value["failed"])

    def add(self, found: Mapping[str, dict[str, Any]]) -> None:
        """Add what a job has measured; what was measured before stays, so that curves do not replace their tables.

        A record that lacked some arms gets these, if it was measured on the same items and pools.
        """
        for key, fresh in found.items():
            known = self.found.setdefault(key, fresh)
            if known["conditions"] == fresh["conditions"]:
                self.found[key] = {**known, "accuracy": {**fresh["accuracy"], **known["accuracy"]}}

    def write(self) -> None:
        """Replace the file at once."""
        value = {"format": FORMAT, "records": self.found, "failed": self.failed}
        text = json.dumps(value, separators=(",", ":"))
        with disk_sentence(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(self.path) as part:
            part.write_bytes(gzip.compress(text.encode(), compresslevel=4, mtime=0))
