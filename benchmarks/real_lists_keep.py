"""Keeps every answer about lists in one Parquet file (`benchmarks/real/okvqa-lists.parquet`), and reads it back.

A row is a prompt: question and demonstrations by their numbers in `leverplus/tables/okvqa-items.jsonl.gz`, the arm, the
model's answer, its accuracy and the probability of the truth (half precision). Two columns say what was thought of the
list by models that never saw an answer to the question's fold:

    promised    the value that the arm `learned` chose lists by (`learnt.json`), for lists within the question's pool
    expected    for lists drawn for learning: their accuracy by ridge regression on the features of all lists drawn for
                the questions of the other folds, up to the question's own level

Lengths in tokens and what was learnt are in the metadata.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from real_lists_ask import Record, read_records
from real_lists_learn import NAMES, centred, ridge, with_length
from real_lists_pools import FOLDS, Floats, Ints, describe

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "real" / "okvqa-lists.parquet"
ITEMS = ROOT / "leverplus" / "tables" / "okvqa-items.jsonl.gz"
META = b"leverplus.lists"
STEP = 5e-4
"""What `promised` and `expected` are rounded to; both differ by about 0.01 between lists of one question."""
COMPANY, CHECK = "company", "check"
LONGEST = 32


@dataclass(frozen=True)
class Kept:
    """Answers to R prompts about N questions; demonstrations (R, 32) are filled up with -1."""

    fold: Ints
    group: Ints
    query: Ints
    arm: NDArray[np.str_]
    shots: Ints
    number: Ints
    demos: Ints
    accuracy: Floats
    gt_prob: Floats
    answer: Ints
    """A number for every different answer."""
    promised: Floats
    expected: Floats
    lengths: Ints
    """Tokens of every item as a demonstration and as the question (N, 2)."""
    notes: list[dict[str, Any]]

    def rows_of(self, arm: str, shots: int) -> Ints:
        return np.flatnonzero((self.arm == arm) & (self.shots == shots))

    def drawn(self, shots: int) -> Ints:
        """Rows (N, L) of the lists that were drawn for learning, question by question."""
        rows = self.rows_of(COMPANY, shots)
        rows = rows[np.lexsort((self.number[rows], self.query[rows]))]
        found = rows.reshape(len(self.fold), -1)
        assert (self.query[found] == np.arange(len(self.fold))[:, None]).all()
        return found


def read_kept(path: Path = FILE) -> Kept:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    about = json.loads(table.schema.metadata[META])
    with gzip.open(ITEMS, "rt", encoding="utf-8") as lines:
        items = [json.loads(line) for line in lines]

    def column(name: str) -> Any:
        return table.column(name).combine_chunks()

    def rounded(name: str) -> Floats:
        return STEP * column(name).to_numpy(zero_copy_only=False).astype(np.float64)

    lists = column("demos")
    shots = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    demos = np.full((len(shots), LONGEST), -1)
    demos[np.arange(LONGEST) < shots[:, None]] = lists.values.to_numpy()
    arm = column("arm")
    return Kept(
        fold=np.array([int(item["meta"]["fold"]) for item in items]),
        group=np.unique([item["image_id"] for item in items], return_inverse=True)[1],
        query=column("query").to_numpy().astype(np.int64),
        arm=np.array(arm.dictionary.to_pylist())[arm.indices.to_numpy()],
        shots=shots,
        number=column("number").to_numpy().astype(np.int64),
        demos=demos,
        accuracy=column("accuracy").to_numpy().astype(np.float64),
        gt_prob=column("gt_prob").to_numpy().astype(np.float64),
        answer=column("answer").indices.to_numpy().astype(np.int64),
        promised=rounded("promised"),
        expected=rounded("expected"),
        lengths=np.array(about["lengths"]),
        notes=about["learnt"],
    )


def keep(folder: Path, inputs: Any, out: Path) -> None:
    """Writes the file from the records of a run and what it was given (`real_lists.Inputs`)."""
    records = [record for record in read_records(folder) if record.arm != CHECK]
    records.sort(key=lambda record: (record.query, record.arm, record.shots, record.number))
    notes = json.loads((folder / "learnt.json").read_text())
    about = {"lengths": json.loads((folder / "lengths.json").read_text()), "learnt": notes}
    values = {"promised": promised_values(records, inputs, notes), "expected": expected_values(records, inputs)}
    write_kept(out, records, values, about)
    print(f"{len(records):,} answers, {out.stat().st_size:,} bytes")


def write_kept(path: Path, records: list[Record], values: dict[str, Floats], about: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = [demo for record in records for demo in record.demos]
    ends = np.cumsum([0, *(record.shots for record in records)]).astype(np.int32)
    columns = {
        "query": pa.array([record.query for record in records], pa.int16()),
        "arm": pa.array([record.arm for record in records]).dictionary_encode(),
        "number": pa.array([record.number for record in records], pa.int8()),
        "demos": pa.ListArray.from_arrays(pa.array(ends), pa.array(flat, pa.int16())),
        "accuracy": pa.array([record.accuracy for record in records], pa.float32()),
        "gt_prob": pa.array(np.array([record.gt_prob for record in records], np.float16)),
        "answer": pa.array([record.answer for record in records]).dictionary_encode(),
    }
    for name, own in values.items():
        steps = np.round(np.nan_to_num(own) / STEP).astype(np.int16)
        columns[name] = pa.array(steps, mask=np.isnan(own))  # null where nothing is known
    table = pa.table(columns).replace_schema_metadata({META: json.dumps(about, separators=(",", ":")).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    words = ["arm", "answer", "accuracy"]
    pq.write_table(table, path, compression="zstd", compression_level=19, use_dictionary=words, write_statistics=False)


def promised_values(records: list[Record], inputs: Any, notes: list[dict[str, Any]]) -> Floats:
    """What the arm `learned` thought of every list of 8 or 16 that lies in the pool of its question; NaN elsewhere."""
    pools = inputs.pools()
    place = np.full((len(inputs.fold), len(inputs.fold)), -1, np.int16)
    place[np.arange(len(inputs.fold))[:, None], pools.members] = np.arange(pools.members.shape[1])
    weights = {note["fold"]: np.array([note["weights"]["learned"][name] for name in NAMES]) for note in notes}
    found = np.full(len(records), np.nan)
    arms = sorted({(record.arm, record.shots) for record in records if record.arm != COMPANY})
    for arm, shots in arms:
        if shots not in (8, 16):
            continue
        rows = np.array([r for r, record in enumerate(records) if (record.arm, record.shots) == (arm, shots)])
        queries = np.array([records[row].query for row in rows])  # each once, and in order
        places = place[queries[:, None], np.array([records[row].demos for row in rows])].astype(np.int64)
        inside = (places >= 0).all(axis=1)
        if not inside.any():
            continue
        part = pools.part(np.isin(pools.rows, queries[inside]))
        features = with_length(describe(part, places[inside]), shots)
        own = np.stack([weights[fold] for fold in inputs.fold[queries[inside]]])
        found[rows[inside]] = (features * own).sum(axis=1)
    rows, features = drawn_features(records, inputs)
    own = np.stack([weights[fold] for fold in inputs.fold[[records[row].query for row in rows]]])
    found[rows] = (features * own).sum(axis=1)
    return found


def drawn_features(records: list[Record], inputs: Any) -> tuple[Ints, Floats]:
    """Rows of the lists drawn for learning, and their features as they were when they were drawn."""
    known: dict[tuple[int, int], int] = {}
    seen: dict[int, int] = {}
    for number, query in enumerate(inputs.kept["company_rows"].tolist()):
        known[query, seen.setdefault(query, 0)] = number
        seen[query] += 1
    rows = np.array([row for row, record in enumerate(records) if record.arm == COMPANY])
    at = [known[records[row].query, records[row].number] for row in rows]
    shots = np.array([records[row].shots for row in rows])
    return rows, with_length(inputs.kept["company_features"].astype(np.float64)[at], shots)


def expected_values(records: list[Record], inputs: Any) -> Floats:
    """Accuracy of drawn lists by ridge regression within the questions of the other folds; NaN for other lists."""
    rows, features = drawn_features(records, inputs)
    found = np.full(len(records), np.nan)
    for shots in (8, 16):
        which = np.array([records[row].shots == shots for row in rows])
        own, queries = rows[which], np.array([records[row].query for row in rows[which]])
        x = centred(features[which], queries)
        x = x / np.maximum(x.std(axis=0), 1e-12)
        y = centred(np.array([records[row].accuracy for row in own])[:, None], queries)[:, 0]
        for fold in range(FOLDS):
            inside = inputs.fold[queries] == fold
            found[own[inside]] = x[inside] @ ridge(x[~inside], y[~inside], queries[~inside])
    return found
