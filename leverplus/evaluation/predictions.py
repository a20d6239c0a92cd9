"""Predictions: the answers of every arm on every item, in memory and as `predictions.parquet`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.errors import DataError, EvaluationError, MissingFile, NotMeasured
from leverplus.rundir import write_atomically
from leverplus.types import Demos, Item, ItemId, Score

COLUMNS = ("item", "image", "arm", "shots", "draw", "demos", "answer", "score", "tokens", "seconds")


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer of an arm to one item, and the demonstrations shown; an arm that asks no model has no tokens or time.

    `choices` holds the log-probability of every label of a classification; it is not written to a file.
    """

    item: ItemId
    demos: Demos
    answer: str
    accuracy: float
    tokens: int = 0
    seconds: float = 0.0
    choices: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, score: Score) -> Prediction:
        return cls(score.query, score.demos, score.answer, score.accuracy, score.tokens, score.seconds, score.choices)


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
        return cls([item.id for item in queries], [item.image_id or item.id for item in queries])

    def add(self, arm: str, shots: int, predictions: Sequence[Prediction]) -> None:
        """One draw of an arm: a prediction for every item, in their order."""
        if [prediction.item for prediction in predictions] != list(self.items):
            raise EvaluationError(
                f"arm '{arm}' at {shots} shots has {len(predictions)} predictions that are not one for each of the "
                f"{len(self.items)} items in their order; run every arm on the same items"
            )
        self.draws.setdefault(arm, {}).setdefault(shots, []).append(list(predictions))

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
    """One row per item, arm, shots and draw, as Parquet; replaced at once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for arm, by_shots in results.draws.items():
        for shots, draws in by_shots.items():
            for number, draw in enumerate(draws):
                count = len(draw)
                columns["item"] += [prediction.item for prediction in draw]
                columns["image"] += results.images
                columns["arm"] += [arm] * count
                columns["shots"] += [shots] * count
                columns["draw"] += [number] * count
                columns["demos"] += [list(prediction.demos) for prediction in draw]
                columns["answer"] += [prediction.answer for prediction in draw]
                columns["score"] += [prediction.accuracy for prediction in draw]
                columns["tokens"] += [prediction.tokens for prediction in draw]
                columns["seconds"] += [prediction.seconds for prediction in draw]
    words, name = pa.string(), pa.dictionary(pa.int8(), pa.string())  # few arms, many rows: each name is stored once
    types = (words, words, name, pa.int8(), pa.int8(), pa.list_(words), words, pa.float64(), pa.int32(), pa.float32())
    table = pa.table(columns, schema=pa.schema(list(zip(COLUMNS, types, strict=True))))
    with write_atomically(path) as part:
        pq.write_table(table, part)


def read_predictions(path: Path, arms: Collection[str] | None = None) -> Results:
    """The predictions of a file, checked: every arm has each item once per draw, and accuracies lie in [0, 1].

    With `arms` only those are read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise MissingFile(f"{path} is not there; type `lever eval {path.parent}` to make it")
    try:
        filters = None if arms is None else [("arm", "in", list(arms))]
        table = pq.read_table(path, filters=filters)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} cannot be read as Parquet ({error}); type `lever eval {path.parent}`") from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise DataError(f"{path} has no column {', '.join(missing)}; type `lever eval {path.parent}` to make it again")
    columns = [table.column(name).to_pylist() for name in COLUMNS]
    return collect(zip(*columns, strict=True), str(path))


def collect(rows: Iterable[Sequence[Any]], source: str) -> Results:
    """Results from rows in the order of COLUMNS; anything that cannot be compared is refused with a sentence."""
    images: dict[ItemId, str] = {}
    draws: dict[tuple[str, int, int], list[Prediction]] = {}
    for item, image, arm, shots, number, demos, answer, score, tokens, seconds in rows:
        if score is None or not 0.0 <= score <= 1.0:
            raise EvaluationError(
                f"{source}: the accuracy of item {item}, arm '{arm}', {shots} shots is {score}; it must lie in [0, 1]"
            )
        images.setdefault(item, image)
        prediction = Prediction(item, tuple(demos), answer, score, tokens, seconds)
        draws.setdefault((arm, shots, number), []).append(prediction)
    if not draws:
        raise EvaluationError(f"{source} holds no predictions")
    results = Results(list(images), list(images.values()))
    for (arm, shots, number), predictions in draws.items():
        place = f"arm '{arm}' at {shots} shots (draw {number})"
        twice, times = Counter(prediction.item for prediction in predictions).most_common(1)[0]
        if times > 1:
            raise EvaluationError(f"{source}: {place} answers item {twice} {times} times; each item counts once")
        if len(predictions) != len(images):
            raise EvaluationError(
                f"{source}: {place} has {len(predictions)} items, but there are {len(images)} in the file; "
                "arms can only be compared on the same items"
            )
        own = {prediction.item: prediction for prediction in predictions}
        results.add(arm, shots, [own[item] for item in results.items])
    return results


def check_items(results: Results, known: Collection[ItemId], source: str) -> None:
    """Refuse predictions for items that do not exist."""
    strangers = [item for item in results.items if item not in known]
    if strangers:
        raise EvaluationError(
            f"{source} holds predictions for {len(strangers)} items that do not exist in the task's split, "
            f"such as {strangers[0]}; evaluate the run again"
        )
