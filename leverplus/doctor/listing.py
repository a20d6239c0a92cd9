"""Data quality query by query and candidate by candidate, written as CSV while a store or an RL file is read."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from leverplus.doctor.quality import Sample, tier_or_flat
from leverplus.errors import LeverError
from leverplus.maths.signal import is_flat

QUERIES = (
    "query", "members", "distinct", "positives", "mean_accuracy", "best_accuracy", "worst_accuracy", "mean_gt_prob",
    "gt_prob_range", "flat", "tier", "pick_accuracy", "behind_best",
)  # fmt: skip
CANDIDATES = ("query", "source", "rank", "demos", "accuracy", "gt_prob", "estimated", "borrowed")
Cell = str | int | float | None


def query_row(query: str, samples: Sequence[Sample]) -> list[Cell]:
    """What QUERIES names of one query; empty where nobody measured it."""
    known = [sample.accuracy for sample in samples if sample.accuracy is not None]
    probabilities = [sample.gt_prob for sample in samples if sample.gt_prob is not None]
    counts: list[Cell] = [query, len(samples), len({sample.demos for sample in samples})]
    if not known:
        return counts + [None] * (len(QUERIES) - len(counts))
    pick = next((sample.accuracy for sample in samples if sample.rank == 0), None)
    spread = max(probabilities) - min(probabilities) if probabilities else None
    flat = is_flat(known) and is_flat(probabilities)
    return [
        *counts,
        sum(value > 0 for value in known),
        sum(known) / len(known),
        max(known),
        min(known),
        sum(probabilities) / len(probabilities) if probabilities else None,
        spread,
        int(flat),
        tier_or_flat(np.array(known)),
        pick,
        None if pick is None else max(known) - pick,
    ]


def candidate_rows(query: str, samples: Sequence[Sample]) -> list[list[Cell]]:
    """What CANDIDATES names of every member, in order."""
    return [
        [
            query,
            sample.source,
            sample.rank,
            " ".join(map(str, sample.demos)),
            sample.accuracy,
            sample.gt_prob,
            int(sample.estimated),
            int(sample.borrowed),
        ]
        for sample in samples
    ]


class Listing:
    """Writes the tables that are asked for; the files take their places when everything was read."""

    def __init__(self, queries: Path | None = None, candidates: Path | None = None) -> None:
        rows: dict[Path, tuple[Sequence[str], Callable[[str, Sequence[Sample]], list[list[Cell]]]]] = {}
        if queries is not None:
            rows[queries] = (QUERIES, lambda query, samples: [query_row(query, samples)])
        if candidates is not None:
            rows[candidates] = (CANDIDATES, candidate_rows)
        self.rows = rows

    def __enter__(self) -> Listing:
        self.files = {}
        for path, (head, _) in self.rows.items():
            try:
                self.files[path] = _part(path).open("w", encoding="utf-8", newline="")
            except OSError as error:
                raise LeverError(f"cannot write {path} ({error.strerror}); choose another place") from error
            csv.writer(self.files[path]).writerow(head)
        return self

    def __call__(self, query: str, samples: Sequence[Sample]) -> None:
        """One query; a value that nobody measured is an empty cell."""
        for path, (_, rows_of) in self.rows.items():
            csv.writer(self.files[path]).writerows(rows_of(query, samples))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path, file in self.files.items():
            file.close()
            if kind is None:
                _part(path).replace(path)
            else:
                _part(path).unlink()


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")
