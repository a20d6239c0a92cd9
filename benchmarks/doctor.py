"""The doctor on a large score store: how long `lever doctor STORE` takes, and how much memory.

    python benchmarks/doctor.py                     1,000,000 records, the promise: under 60 s, under 2 GB
    python benchmarks/doctor.py --records 250000 --json

The store is synthetic: 64 sequences of 1-4 demonstrations for every query, five references each.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from store import CONTEXT, records

from leverplus.scores.store import ScoreStore

EACH = 64


def build(path: Path, count: int) -> None:
    """A store of so many records."""
    made = islice(records(range(-(-count // EACH)), EACH), count)
    with ScoreStore(path) as store:
        while batch := list(islice(made, 20_000)):
            store.put(CONTEXT, batch)


def examine(path: Path) -> dict[str, Any]:
    """What one `lever doctor --json` costs in a process of its own; the peak is that of the largest child so far."""
    started, before = time.monotonic(), os.times()
    done = subprocess.run(
        [sys.executable, "-m", "leverplus.cli.main", "doctor", str(path), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    after, wall = os.times(), time.monotonic() - started
    result = json.loads(done.stdout)
    return {
        "records": result["quality"]["members"],
        "queries": result["quality"]["queries"],
        "wall_s": round(wall, 1),
        "cpu_s": round(
            after.children_user
            - before.children_user
            + after.children_system
            - before.children_system,
            1,
        ),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
        "findings": [finding["code"] for finding in result["findings"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.db"
        build(path, args.records)
        found = examine(path)
    if args.json:
        print(json.dumps(found))
        return
    print(f"{found['records']:,} members of {found['queries']:,} queries:")
    print(
        f"{found['wall_s']} s, {found['cpu_s']} s of them CPU; {found['peak_mb']} MB at most"
    )
    print(f"findings: {', '.join(found['findings']) or 'none'}")


if __name__ == "__main__":
    main()
