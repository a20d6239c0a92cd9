"""Choosing by a ranking in a bundle: similarity, what labels predict, and each demonstration's own effect.

`bundle.json` holds the weights (`ranking`), `demos.sqlite` the effects, `labels.npz` what was learnt from labels. A
demonstration that was added later has no effect yet and counts by the other terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from leverplus.embedders.base import Array, Vectors
from leverplus.errors import DataError
from leverplus.pools.similarity import Floats, Positions, top
from leverplus.ranking.labels import LabelModel, answer_key
from leverplus.ranking.ranking import Ranking
from leverplus.selector.choose import EFFECT, FEWEST, MOST_SHOTS, AskedQuery, JudgedCandidates, in_prompt_order
from leverplus.selector.corpus import CorpusRows
from leverplus.types import ItemId

LABELS = "labels.npz"
MOST_RANKED, FIRST_OF_MANY = 20_000, 2048
"""So many demonstrations are all ranked; of more, the nearest ones."""

Answers = Callable[[Sequence[int]], Mapping[int, str]]
"""The answers of some rows; deleted ones are missing."""


@dataclass(frozen=True)
class PackedLabels:
    """What labels predict: rows of the bundle that it was learnt from (M,), weights (M, A), columns of answers."""

    rows: Positions
    weights: Array
    columns: Mapping[str, int]
    width: float
    text_share: float

    def expected(self, near: Mapping[str, Floats]) -> Floats:
        """The accuracy predicted for every answer (A,), from the query's similarities to the rows learnt from."""
        total = self.text_share * near["text"]
        if self.text_share < 1.0:
            total = total + (1.0 - self.text_share) * near["image"]
        kernel = np.exp((total - 1.0) / self.width).astype(np.float32)
        return np.asarray(kernel @ self.weights, np.float64)


class RankedChooser:
    """The highest scores of all demonstrations, the best last; of very many, only the nearest are looked at."""

    most, searches = MOST_SHOTS, True

    def __init__(self, ranking: Ranking, labels: PackedLabels | None, answers: Answers) -> None:
        self.ranking, self.labels, self.answers = ranking, labels, answers
        self.lock = Lock()
        self.columns = np.empty(0, np.int64)  # of the rows seen so far; -1 where the answer is not told apart
        self.learnt: dict[str, Array] = {}  # vectors of the rows learnt from, by field, once they were needed

    def choose(self, asked: AskedQuery, shots: int) -> list[int]:
        rows, terms = self._terms(asked)
        score = np.asarray(sum(terms.values()), np.float64)
        return in_prompt_order(rows[top(score[None], min(shots, len(rows)))[0]])

    def judge(self, asked: AskedQuery, shots: int) -> JudgedCandidates:
        rows, terms = self._terms(asked)
        score = np.asarray(sum(terms.values()), np.float64)
        order = top(score[None], min(len(rows), max(FEWEST, shots)))[0]
        shown = in_prompt_order(rows[order[:shots]])
        return JudgedCandidates(rows[order], score[order], shown, label=terms["label"][order])

    def _terms(self, asked: AskedQuery) -> tuple[Positions, dict[str, Floats]]:
        """The rows that may be shown, and the terms of their scores (K,)."""
        held, known = asked.rows, self.labels
        fields = set(self.ranking.similarity)
        if known is not None:
            fields |= {"text"} if known.text_share == 1.0 else {"text", "image"}
        if len(held) <= MOST_RANKED:
            rows = np.flatnonzero(asked.open_rows)
            every = {name: _near(held, asked.vectors, name, np.arange(len(held))) for name in fields}
            near = {name: values[rows] for name, values in every.items()}
            learnt = {} if known is None else {name: values[known.rows] for name, values in every.items()}
        else:
            rows = np.sort(asked.nearest(FIRST_OF_MANY)[0])
            near = {name: _near(held, asked.vectors, name, rows) for name in fields}
            learnt = {} if known is None else {name: self._near_learnt(held, asked.vectors, name) for name in fields}
        expected = None
        if known is not None:
            guess = known.expected(learnt)
            columns = self._columns_of(len(held))[rows]
            expected = np.where(columns >= 0, guess[np.maximum(columns, 0)], 0.0)
        effects = held.numbers.get(EFFECT)
        own = np.zeros(len(rows)) if effects is None else np.nan_to_num(effects[rows], nan=0.0)
        return rows, self.ranking.terms(near, expected, own)

    def _near_learnt(self, held: CorpusRows, query: Vectors, name: str) -> Floats:
        """How near the rows learnt from are; reading these from among very many costs more than the product."""
        assert self.labels is not None
        if name not in self.learnt:  # a row never changes, so it does not matter which thread came first
            self.learnt[name] = held.blocks[name].take(self.labels.rows)
        return (self.learnt[name] @ _asked(query, name)).astype(np.float64)

    def _columns_of(self, count: int) -> Positions:
        """The column of every row's answer; those of rows that came since are looked up once."""
        assert self.labels is not None
        with self.lock:
            known = len(self.columns)
            if known < count:
                answers = self.answers(range(known, count))
                fresh = [self.labels.columns.get(answer_key(answers.get(row, "")), -1) for row in range(known, count)]
                self.columns = np.concatenate([self.columns, np.array(fresh, np.int64)])
            return self.columns


def _near(held: CorpusRows, query: Vectors, name: str, rows: Positions) -> Floats:
    """How near some rows are to the query by one field (K,); all products at once where all rows are wanted."""
    asked, block = _asked(query, name), held.blocks[name]
    if len(rows) == len(block) and not block.held:
        found: NDArray[np.float32] = np.asarray(block.base, np.float32) @ asked
    else:
        found = block.take(rows) @ asked
    return found.astype(np.float64)


def _asked(query: Vectors, name: str) -> Array:
    """The query's vector of one field (D,)."""
    vectors = query.text if name == "text" else query.image
    if vectors is None:
        raise DataError("this selector sees pictures, and the query has none; pass an image")
    own: Array = vectors[0]
    return own


def ranking_facts(ranking: Ranking, labels: LabelModel | None) -> dict[str, Any]:
    """What bundle.json says of a ranking."""
    found: dict[str, Any] = {"similarity": dict(ranking.similarity), "label": ranking.label, "labels": None}
    if labels is not None:
        found["labels"] = {"width": labels.width, "text_share": labels.text_share, "answers": list(labels.columns)}
    return found


def write_labels(path: Path, labels: LabelModel, places: Mapping[ItemId, int]) -> None:
    """Keep what was learnt from labels; `places` are the rows of the bundle."""
    rows = np.array([places[item] for item in labels.items], np.int64)
    with path.open("wb") as file:
        np.savez(file, rows=rows, weights=labels.weights)


def read_ranked(folder: Path, facts: Mapping[str, Any], rows: int, answers: Answers) -> RankedChooser:
    """The ranked way of choosing that a bundle holds; refused where its parts do not fit each other."""
    said = facts.get("ranking")
    try:
        slopes = {name: float(own) for name, own in said["similarity"].items()}  # type: ignore[index]
        if not set(slopes) <= set(facts["fields"]):
            raise ValueError(f"it compares {', '.join(slopes)}, and has vectors of {', '.join(facts['fields'])}")
        ranking = Ranking(slopes, float(said["label"]), np.empty(0))  # type: ignore[index]
        labels = None if said["labels"] is None else _read_labels(folder / LABELS, said["labels"], rows)  # type: ignore[index]
    except (OSError, TypeError, KeyError, ValueError, EOFError, BadZipFile) as error:
        raise DataError(f"the ranking of {folder} is not understood ({error}); pack it again") from error
    return RankedChooser(ranking, labels, answers)


def _read_labels(path: Path, said: Mapping[str, Any], rows: int) -> PackedLabels:
    with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
        learnt, weights = file["rows"].astype(np.int64), file["weights"].astype(np.float32)
    answers = [str(answer) for answer in said["answers"]]
    if weights.shape != (len(learnt), len(answers)) or (len(learnt) and not 0 <= learnt.min() <= learnt.max() < rows):
        raise ValueError(f"{LABELS} belongs to other demonstrations")
    columns = {answer: place for place, answer in enumerate(answers)}
    return PackedLabels(learnt, weights, columns, float(said["width"]), float(said["text_share"]))
