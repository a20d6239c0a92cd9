"""Adds what a trained selector chose to the records of a recorded table.

    python benchmarks/real_learned.py RUN RECORDS/TASK-MODEL.parquet

RUN is the folder of `lever run okvqa_table --set task.file=... model.name=...` on that table. Its test items must be
those of the records. It has no cross-fitted accuracy on training queries, so it is never the one recommended.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from leverplus.lab.real import WayRecord, read_file, write_records


def learned(run: Path, like: WayRecord) -> list[WayRecord]:
    """One-shot accuracies of the run's selector on the items of a record."""
    import pyarrow.parquet as pq

    rows = pq.read_table(run / "predictions.parquet", columns=["item", "arm", "shots", "score"]).to_pylist()
    score = {row["item"]: row["score"] for row in rows if row["arm"] == "learned" and row["shots"] == 1}
    missing = [item for item in like.items if item not in score]
    if missing:
        raise SystemExit(f"{run} has no choice for item {missing[0]} ({len(missing)} such); evaluate all test items")
    own = np.array([score[item] for item in like.items])
    made = replace(
        like,
        arm="learned",
        kind="calls",
        setting="selector, 1 shot",
        tries=1,
        dev=float("nan"),
        estimate=float("nan"),
        accuracy=own,
    )
    return [replace(made, shots=shots) for shots in ("1", "best")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("records", type=Path)
    args = parser.parse_args()
    kept = [record for record in read_file(args.records) if record.arm != "learned"]
    write_records(args.records, [*kept, *learned(args.run, kept[0])])


if __name__ == "__main__":
    main()
