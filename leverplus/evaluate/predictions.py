"""Predictions: the answers of every arm on every item, in memory and as `predictions.parquet`.

Where pyarrow is not installed the same rows are lines of JSON, in `predictions.jsonl`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.data.rundir import read_log, write_atomically
from leverplus.data.types import Demos, Item, ItemId, Score
from leverplus.errors import (
    DataError,
    EvaluationError,
    MissingFile,
    NotMeasured,
    is_installed,
    require_packages,
)

LINES = ".jsonl"
COLUMNS = ("item", "image", "arm", "shots", "draw", "demos", "answer", "score")


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer of an arm to one item, and the demonstrations shown.

    `choices` holds the log-probability of every label of a classification; it is not written to a file.
    """

    item: ItemId
    demos: Demos
    answer: str
    accuracy: float
    choices: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, score: Score) -> Prediction:
        return cls(
            score.query, score.demos, score.answer, score.accuracy, score.choices
        )


@dataclass
class Results:
    """Predictions of every arm on the same items; `draws[arm][shots]` lists draws, each in the order of `items`.

    `images` names each item's picture: intervals draw all items of a picture together.
    """

    items: Sequence[ItemId]
    images: Sequence[str]
    draws: dict[str, dict[int, list[list[Prediction]]]] = field(default_factory=dict)

    @classmethod
    def of(cls, queries: Sequence[Item]) -> Results:
        items = []
        images = []
        for item in queries:
            items.append(item.id)
            images.append(item.image_id or item.id)
        return cls(items, images)

    def add(self, arm: str, shots: int, predictions: Sequence[Prediction]) -> None:
        """One draw of an arm: a prediction for every item, in their order."""
        if [prediction.item for prediction in predictions] != list(self.items):
            raise EvaluationError(
                f"arm '{arm}' at {shots} shots has {len(predictions)} predictions that are not one for each of the "
                f"{len(self.items)} items in their order; run every arm on the same items"
            )
        by_shots = self.draws.setdefault(arm, {})
        by_shots.setdefault(shots, []).append(list(predictions))

    def accuracy(self, arm: str, shots: int) -> NDArray[np.float64]:
        """Accuracy of every item (n,), averaged over draws."""
        if shots not in self.draws.get(arm, {}):
            raise NotMeasured(f"arm '{arm}' was not run at {shots} shots; run it first")
        draws = []
        for draw in self.draws[arm][shots]:
            draws.append([prediction.accuracy for prediction in draw])
        return np.asarray(np.mean(draws, axis=0))  # over draws, (n,)

    def shots(self, arm: str) -> list[int]:
        return sorted(self.draws[arm])

    def every_shots(self) -> list[int]:
        """All numbers of shots that some arm was run at."""
        return sorted(set().union(*self.draws.values()))

    def shown_shots(self) -> list[int]:
        """The same without 0, or [0] where no arm showed anything."""
        return [n for n in self.every_shots() if n] or [0]

    def first(self, arm: str, shots: int) -> list[Prediction]:
        """The first draw of an arm at a number of shots."""
        return self.draws[arm][shots][0]

    def against(self, baseline: str, shots: int) -> int | None:
        """At how many shots a baseline is compared with an arm at `shots`: the same, or 0 if it shows none."""
        own = self.draws.get(baseline, {})
        if shots in own:
            return shots
        if list(own) == [0]:  # zero_shot, label_vote
            return 0
        return None

    def __iter__(self) -> Iterator[tuple[str, int, list[Prediction]]]:
        """Every draw with its arm and number of shots."""
        for arm, by_shots in self.draws.items():
            for shots, draws in by_shots.items():
                for draw in draws:
                    yield arm, shots, draw


def write_predictions(results: Results, path: Path) -> None:
    """One row per item, arm, shots and draw, as Parquet, else as lines of JSON beside `path`; replaced at once."""
    lines = path.with_suffix(LINES)
    if is_installed("pyarrow"):
        _write_parquet(results, path)
        lines.unlink(missing_ok=True)
        return
    with write_atomically(lines) as part, part.open("w", encoding="utf-8") as file:
        for row in _rows(results):
            line = dict(zip(COLUMNS, row, strict=True))
            file.write(json.dumps(line) + "\n")
    path.unlink(missing_ok=True)


def _rows(results: Results) -> Iterator[tuple[Any, ...]]:
    """The rows of a file, in the order of COLUMNS."""
    for arm, by_shots in results.draws.items():
        for shots, draws in by_shots.items():
            for number, draw in enumerate(draws):
                for image, own in zip(results.images, draw, strict=True):
                    demos = list(own.demos)
                    place = (own.item, image, arm, shots, number)
                    yield (*place, demos, own.answer, own.accuracy)


def _write_parquet(results: Results, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.string()
    few = pa.int8()
    name = pa.dictionary(few, text)  # few arms, many rows: each name is stored once
    types = (text, text, name, few, few, pa.list_(text), text, pa.float64())
    schema = pa.schema(list(zip(COLUMNS, types, strict=True)))
    columns = list(zip(*_rows(results), strict=True))
    columns = columns or [()] * len(COLUMNS)
    named = dict(zip(COLUMNS, columns, strict=True))
    table = pa.table(named, schema=schema)
    with write_atomically(path) as part:
        pq.write_table(table, part)


def predictions_file(path: Path) -> Path:
    """The file of predictions that is there: `path` itself, or the lines of JSON beside it."""
    lines = path.with_suffix(LINES)
    if lines.is_file() and not path.is_file():
        return lines
    return path


def read_predictions(path: Path, arms: Collection[str] | None = None) -> Results:
    """The predictions of a file, checked: every arm has each item once per draw, and accuracies lie in [0, 1].

    With `arms` only those are read.
    """
    path = predictions_file(path)
    if not path.is_file():
        raise MissingFile(
            f"{path} is not there; type `lever eval {path.parent}` to make it"
        )
    read = _read_lines if path.suffix == LINES else _read_parquet
    return collect(read(path, arms), str(path))


def _read_lines(path: Path, arms: Collection[str] | None) -> Iterator[Sequence[Any]]:
    lines, damaged = read_log(path)
    if damaged or not all(set(COLUMNS) <= set(row) for row in lines):
        raise DataError(
            f"{path} holds lines that cannot be read; type `lever eval {path.parent}`"
        )
    for row in lines:
        if arms is None or row["arm"] in arms:
            yield [row[name] for name in COLUMNS]


def _read_parquet(path: Path, arms: Collection[str] | None) -> Iterable[Sequence[Any]]:
    require_packages(f"reading {path}", "pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    filters = None
    if arms is not None:
        filters = [("arm", "in", list(arms))]
    try:
        missing = set(COLUMNS) - set(pq.read_schema(path).names)
        if missing:
            raise pa.ArrowInvalid(f"it has no column {', '.join(sorted(missing))}")
        table = pq.read_table(path, columns=list(COLUMNS), filters=filters)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} cannot be read as predictions ({error}); type `lever eval {path.parent}` to make it again"
        ) from error
    columns = [table.column(name).to_pylist() for name in COLUMNS]
    return zip(*columns, strict=True)


def collect(rows: Iterable[Sequence[Any]], source: str) -> Results:
    """Results from rows in the order of COLUMNS; anything that cannot be compared is refused with a sentence."""
    images: dict[ItemId, str] = {}
    draws: dict[tuple[str, int, int], list[Prediction]] = {}
    for item, image, arm, shots, number, demos, answer, score in rows:
        if score is None or not 0.0 <= score <= 1.0:
            raise EvaluationError(
                f"{source}: the accuracy of item {item}, arm '{arm}', {shots} shots is {score}; it must lie in [0, 1]"
            )
        images.setdefault(item, image)
        prediction = Prediction(item, tuple(demos), answer, score)
        draws.setdefault((arm, shots, number), []).append(prediction)
    if not draws:
        raise EvaluationError(f"{source} holds no predictions")
    items = sorted(images)
    results = Results(items, [images[item] for item in items])
    for (arm, shots, number), predictions in draws.items():
        place = f"arm '{arm}' at {shots} shots (draw {number})"
        own: dict[ItemId, Prediction] = {}
        for prediction in predictions:
            if prediction.item in own:
                raise EvaluationError(
                    f"{source}: {place} answers item {prediction.item} more than once; each item counts once"
                )
            own[prediction.item] = prediction
        if len(own) != len(images):
            raise EvaluationError(
                f"{source}: {place} has {len(own)} items, but there are {len(images)} in the file; "
                "arms can only be compared on the same items"
            )
        results.add(arm, shots, [own[item] for item in items])
    return results
