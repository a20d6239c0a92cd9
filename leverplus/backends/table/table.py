"""A recorded table in memory: arrays over all rows, and for each query the prompts it was asked with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.backends.table.format import CARD, REQUIRED, ROWS_AT_ONCE
from leverplus.errors import DataError, MissingFile
from leverplus.types import Demos, ItemId

Ints = NDArray[np.int64]
NOTHING = -1  # the number of no text


@dataclass
class Codes:
    """Texts as numbers, in the order of their first mention."""

    texts: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def of(self, column: Any) -> Ints:
        """The numbers of an arrow column of texts; NOTHING for null."""
        encoded = column.dictionary_encode()
        # numbers of the texts of this column's dictionary; nulls point to one more entry behind them
        own = np.array([self._number(text) for text in encoded.dictionary.to_pylist()] + [NOTHING], dtype=np.int64)
        found: Ints = own[encoded.indices.fill_null(len(own) - 1).to_numpy()]  # (rows,)
        return found

    def _number(self, text: str) -> int:
        if text not in self.numbers:
            self.numbers[text] = len(self.texts)
            self.texts.append(text)
        return self.numbers[text]


@dataclass(frozen=True)
class RecordedTable:
    """All rows of some files, and the card and the items of each file.

    `demos[starts[r]:starts[r + 1]]` are the demonstrations of row r, as numbers of `ids`.
    """

    ids: Codes
    answers: Codes
    queries: Ints
    starts: Ints
    demos: Ints
    accuracy: NDArray[np.float64]
    gt_prob: NDArray[np.float64]
    answer: Ints
    logprobs: NDArray[np.float64] | None
    cards: tuple[dict[str, Any], ...]
    members: tuple[tuple[ItemId, ...], ...]
    digest: str

    @cached_property
    def _rows(self) -> dict[int, Ints]:
        """The rows of every query in table order."""
        order = np.argsort(self.queries, kind="stable")  # rows of one query together, each in table order
        cuts = np.flatnonzero(np.diff(self.queries[order])) + 1  # where the next query begins
        parts = np.split(order, cuts) if len(order) else []
        return {int(self.queries[part[0]]): part for part in parts}

    @cached_property
    def _prompts(self) -> dict[int, dict[Demos, int]]:
        return {}

    def prompts(self, query: ItemId) -> dict[Demos, int]:
        """The rows of a query by their demonstrations, in table order; a prompt that occurs twice counts once."""
        number = self.ids.numbers.get(query, NOTHING)
        if number not in self._prompts:
            found: dict[Demos, int] = {}
            for row in self._rows.get(number, np.empty(0, np.int64)).tolist():
                own = self.demos[self.starts[row] : self.starts[row + 1]].tolist()
                found.setdefault(tuple(ItemId(self.ids.texts[demo]) for demo in own), row)
            self._prompts[number] = found
        return self._prompts[number]

    def holds(self, query: ItemId) -> bool:
        return bool(self.prompts(query))


def read_table(paths: Sequence[Path]) -> RecordedTable:
    """The rows of some files, one after the other; DataError with a sentence where a file is no recorded table."""
    ids, answers = Codes(), Codes()
    parts: list[list[Any]] = [[], [], [], [], [], []]  # batches of each column that `_columns` gives
    logprobs: list[Any] = []
    cards, members, digest = [], [], hashlib.sha256()
    for path in paths:
        file = _open(path)
        cards.append(json.loads((file.metadata.metadata or {}).get(CARD, b"{}")))
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
        mentioned: set[int] = set()
        for batch in file.iter_batches(ROWS_AT_ONCE):
            columns = _columns(batch, ids, answers, path)
            mentioned.update(np.unique(np.concatenate([columns[0], columns[2]])).tolist())
            for part, found in zip(parts, columns, strict=True):
                part.append(found)
            if "label_logprobs" in batch.schema.names:
                column = batch.column("label_logprobs")
                logprobs.append(column.flatten().to_numpy(zero_copy_only=False).astype(np.float64))
        members.append(tuple(ItemId(ids.texts[number]) for number in sorted(mentioned)))
    queries, counts, demos, accuracy, gt_prob, answer = (np.concatenate(part) for part in parts)
    if not len(queries):
        raise DataError(f"{', '.join(map(str, paths))}: a recorded table without rows; record it again")
    weighed = np.concatenate(logprobs).reshape(len(queries), -1) if logprobs else None  # (rows, labels)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)  # (rows + 1,)
    name = digest.hexdigest()[:16]
    return RecordedTable(
        ids=ids,
        answers=answers,
        queries=queries,
        starts=starts,
        demos=demos,
        accuracy=accuracy,
        gt_prob=gt_prob,
        answer=answer,
        logprobs=weighed,
        cards=tuple(cards),
        members=tuple(members),
        digest=name,
    )


def _open(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise MissingFile(f"there is no recorded table {path}; `lever record RECIPE --out FILE.parquet` writes one")
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}); record it again") from error
    missing = [name for name in REQUIRED if name not in file.schema_arrow.names]
    if missing:
        raise DataError(
            f"{path} is not a recorded table: it has no column {', '.join(missing)}; a table has query, "
            "demos, accuracy, "
            "gt_prob and answer"
        )
    return file


def _columns(batch: Any, ids: Codes, answers: Codes, path: Path) -> tuple[Any, ...]:
    """Queries, number of demonstrations, demonstrations, accuracy, gt_prob (NaN: none) and answer of a batch."""
    names = batch.schema.names
    for name in REQUIRED:
        if batch.column(name).null_count:
            raise DataError(f"{path}: a row has no {name}; every row of a recorded table has one")
    demos = batch.column("demos")
    accuracy = batch.column("accuracy").to_numpy(zero_copy_only=False).astype(np.float64)
    if batch.schema.field("accuracy").type.bit_width < 64:
        accuracy = np.round(accuracy, 6)  # 0.3 as a short number is 0.30000001
    if len(accuracy) and not (accuracy.min() >= 0.0 and accuracy.max() <= 1.0):
        raise DataError(f"{path}: accuracies lie between {accuracy.min():g} and {accuracy.max():g}, expected 0 to 1")
    count = len(accuracy)
    probability = np.full(count, np.nan)
    if "gt_prob" in names:
        probability = batch.column("gt_prob").to_numpy(zero_copy_only=False).astype(np.float64)
    answer = answers.of(batch.column("answer")) if "answer" in names else np.full(count, NOTHING)
    counts = np.diff(demos.offsets.to_numpy())  # demonstrations of each row
    return ids.of(batch.column("query")), counts, ids.of(demos.flatten()), accuracy, probability, answer
