"""Whether what arms show before any call foretells what they gain, from recorded lists; no model is asked.

    python benchmarks/forecast.py [--texts FOLDER]

Shares and likenesses are those of `leverplus.arms.forecast`, on dev questions; accuracy is that of test. GeoQuery and
NL2Bash ship without texts: FOLDER holds geoquery.jsonl and nl2bash.jsonl, else they are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from leverplus.arms.forecast import forecast_shapes
from leverplus.data.formats import Problems
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.tasks.jsonl import read_task_file
from leverplus.data.tasks.settings import TaskSection
from leverplus.data.types import Item, ItemId
from leverplus_lab.structured.records import read_records

SHIPPED = Path(__file__).resolve().parents[1] / "leverplus" / "tables" / "structured"
METRICS = {
    "Advising": "sql",
    "BANKING77": "label_accuracy",
    "GeoQuery": "sql",
    "MTOP": "exact",
    "NL2Bash": "exact",
}
"""How answers are taken apart; GeoQuery's database is not needed for that."""
CHANCE = "random"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Point:
    """An arm at a number of shots: what dev questions foretell, and its accuracy on test."""

    arm: str
    shots: int
    share: float
    likeness: float
    density: float
    accuracy: float


@dataclass(frozen=True)
class Table:
    name: str
    possible: float
    points: Sequence[Point]

    def column(self, name: str) -> Floats:
        return np.array([getattr(point, name) for point in self.points])


def items_of(file: Path, metric: str) -> dict[ItemId, Item]:
    section = TaskSection(name="jsonl", file=str(file), metric=metric)
    read = read_task_file(section, Problems("jsonl", "look at the file"))
    return {item.id: item for item in read.items}


def tables(texts: Path | None) -> Iterator[Table]:
    for path in sorted((SHIPPED / "records").glob("*.parquet")):
        records = read_records(path)
        name = records.task
        file = SHIPPED / f"{name.lower()}-items.jsonl.gz"
        if not file.is_file():
            file = (texts or Path()) / f"{name.lower()}.jsonl"
        if not file.is_file():
            print(f"{name}: {file} is not there; name its folder with --texts")
            continue
        rules = AnswerRules(METRICS[name])
        items = items_of(file, METRICS[name])
        rows = {item_id: row for row, item_id in enumerate(items)}
        shown: dict[str, dict[str, dict[int, dict[ItemId, list[int]]]]] = {}
        scores: dict[tuple[str, str, int], list[float]] = {}
        for record in records.rows:
            own = record.row
            if own.part == "dev" and own.shots:
                arms = shown.setdefault(own.split_key, {}).setdefault(own.arm, {})
                lists = arms.setdefault(own.shots, {})
                lists[own.query] = [rows[demo] for demo in own.demos]
            elif own.part == "test":
                key = own.split_key, own.arm, own.shots
                scores.setdefault(key, []).append(record.accuracy)
        for key, arms in shown.items():
            queries = sorted(next(iter(arms[CHANCE].values())))
            lists = {}
            for arm, by_shots in arms.items():
                lists[arm] = {
                    shots: [own[query] for query in queries]
                    for shots, own in by_shots.items()
                }
            examples = {}
            for item in items.values():
                split = item.split
                if key != "split":
                    split = item.meta[key.removeprefix("meta.")]
                if split == "train":
                    examples[rows[item.id]] = item
            found = forecast_shapes(
                [items[query] for query in queries], examples, rules, lists
            )
            points = []
            for own in found.arms:
                for shots, share in own.shares.items():
                    mean = float(np.mean(scores[key, own.arm, shots]))
                    like, dense = own.likeness[shots], own.density[shots]
                    points.append(Point(own.arm, shots, share, like, dense, mean))
            title = name + (" by query" if "query" in key else "")
            yield Table(title, found.possible, points)


def rank(first: Floats, second: Floats) -> float:
    """Spearman's rank correlation; NaN where one of them is the same everywhere."""
    if np.ptp(first) == 0 or np.ptp(second) == 0 or len(first) < 3:
        return float("nan")
    return float(spearmanr(first, second).statistic)


def without(table: Table, shots: int | None, *, chance: bool = False) -> Table:
    """The points at one number of shots, or all of them; those drawn by chance only where wanted."""
    kept = []
    for point in table.points:
        at = shots is None or point.shots == shots
        if at and (chance or point.arm != CHANCE):
            kept.append(point)
    return Table(table.name, table.possible, kept)


WEIGHTS = tuple(product((0.0, 1.0), (0.0, 0.25, 1.0), (0.0, 0.1, 0.5)))
"""What density, share and likeness count for."""


def mixed(table: Table, weights: Sequence[float]) -> Floats:
    dense, share, like = weights
    found = dense * table.column("density") + share * table.column("share")
    return np.asarray(found + like * table.column("likeness"))


def left_out(every: Sequence[Table], place: int) -> Sequence[float]:
    """The weights with the best mean rank correlation on the other tables."""
    quality = []
    for weights in WEIGHTS:
        own = []
        for other, table in enumerate(every):
            if other != place:
                value = rank(mixed(table, weights), table.column("accuracy"))
                own.append(0.0 if np.isnan(value) else value)
        quality.append(np.mean(own))
    return WEIGHTS[int(np.argmax(quality))]


def best_arm(table: Table, values: Floats) -> float:
    """How far the point that is foretold to be best lies below the best, in accuracy."""
    accuracy = table.column("accuracy")
    return float(accuracy.max() - accuracy[int(values.argmax())])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=Path)
    given = parser.parse_args(words)
    every = list(tables(given.texts))
    for title, shots, chance in (
        ("every arm and number of shots", None, False),
        ("the same with examples drawn by chance", None, True),
        ("with 1 example", 1, False),
        ("with 4", 4, False),
        ("with 8", 8, False),
        ("with 16", 16, False),
    ):
        print(
            f"\n{title}: table | points | share | likeness | density | mixed, left out | less than the best, mixed"
        )
        kept = [without(table, shots, chance=chance) for table in every]
        columns: list[list[float]] = []
        for place, table in enumerate(kept):
            accuracy = table.column("accuracy")
            values = mixed(table, left_out(kept, place))
            row = []
            for name in ("share", "likeness", "density"):
                row.append(rank(table.column(name), accuracy))
            row.append(rank(values, accuracy))
            columns.append(row)
            cells = " | ".join(f"{value:.2f}" for value in row)
            less = 100 * best_arm(table, values)
            print(f"{table.name} | {len(table.points)} | {cells} | {less:.1f}")
        medians = np.nanmedian(columns, axis=0)
        print("median | | " + " | ".join(f"{value:.2f}" for value in medians))


if __name__ == "__main__":
    main()
