"""A recorded table as arrays: what every way of choosing is measured on (`benchmarks/real_measure.py`).

Items are numbered in the order of the plan (`record_plan.py`), which also says which lists a chooser would have shown.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from record_plan import SOURCES, Planner, Sizes, Source, Texts

from leverplus.backends.table.table import RecordedTable, read_table
from leverplus.metrics import metric_named
from leverplus.tasks.files import group_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
NONE = -1
PLACES = 64
CHANCE = slice(48, 64)
"""Places of the uniform random candidates; anchors stand before them (docs/recorded.md)."""
ANCHORS = slice(40, 48)
HERE = Path(__file__).parent
SHIPPED = HERE.parent / "leverplus" / "tables"


class TaskData:
    """Items, vectors, answers and rankings of a task, the same for all models."""

    def __init__(self, name: str, data: Path, texts: Texts) -> None:
        self.source: Source = SOURCES[name]
        self.planner = Planner(self.source, self.source.read(data), texts, Sizes())
        self.items = self.planner.items
        self.numbers = {item.id: place for place, item in enumerate(self.items)}
        self.split = np.array([item.split for item in self.items])
        self.fold = self.planner.folds
        self.group = np.unique([group_of(item) for item in self.items], return_inverse=True)[1]
        shown = list(self.source.labels) or sorted({item.answer for item in self.items})
        column = {answer: place for place, answer in enumerate(shown)}
        self.shown = np.array([column[item.answer] for item in self.items])
        judge = metric_named("label_accuracy" if self.source.labels else "vqa_accuracy")
        # what every shown answer would score if it were given to every item
        self.answer_accuracy = np.zeros((len(self.items), len(shown)))  # (items, answers)
        for place, item in enumerate(self.items):
            for answer in {*item.answers} & column.keys():
                self.answer_accuracy[place, column[answer]] = judge(answer, item.answers)
        self.vectors: Mapping[str, NDArray[np.float32]] = self.planner.vectors
        self.likeness = self.planner.likeness
        self.labels: dict[str, tuple[Floats, int]] = {}
        """What labels alone predict (`real_labels.tuned`), once it has been asked for."""

    @cached_property
    def lists(self) -> dict[int, dict[str, list[int]]]:
        """For every query with longer prompts: what each chooser shows, best first."""
        found: dict[int, dict[str, list[int]]] = {}
        for query in self.planner.queries(Sizes().sequences):
            own = found.setdefault(query, {})
            for name, demos in self.planner.sequences(query):
                if len(demos) > len(own.get(name, [])):
                    own[name] = demos[::-1]
        return found


@dataclass
class ModelTable:
    """Recorded answers of one model: the one-shot table (Q, 64) as rows, and the rows of longer prompts."""

    task: TaskData
    model: str
    table: RecordedTable
    queries: Ints
    candidates: Ints
    one_shot: Ints
    zero_shot: Ints
    longer: dict[tuple[int, ...], int] = field(default_factory=dict)

    @classmethod
    def read(cls, task: TaskData, model: str, folder: Path = HERE / "tables") -> ModelTable:
        name = f"{task.source.name}-{model}"
        where = folder if (folder / f"{name}.parquet").is_file() else SHIPPED
        table = read_table([where / f"{name}.parquet", where / f"{name}-test.parquet"])
        own = np.array([task.numbers[text] for text in table.ids.texts])  # type: ignore[index]
        length, query = np.diff(table.starts), own[table.queries]
        alone = np.flatnonzero(length == 1)
        order = alone[np.argsort(query[alone], kind="stable")].reshape(-1, PLACES)
        queries = query[order[:, 0]]
        zero = np.full(len(task.items), NONE)
        bare = np.flatnonzero(length == 0)
        zero[query[bare]] = bare
        longer = {}
        for row in np.flatnonzero(length > 1).tolist():
            demos = own[table.demos[table.starts[row] : table.starts[row + 1]]].tolist()
            longer[(int(query[row]), *demos)] = row
        return cls(task, model, table, queries, own[table.demos[table.starts[order]]], order, zero[queries], longer)

    @cached_property
    def accuracy(self) -> Floats:
        return self.table.accuracy[self.one_shot]

    @cached_property
    def probability(self) -> Floats:
        return self.table.gt_prob[self.one_shot]

    @cached_property
    def place(self) -> dict[int, int]:
        return {query: place for place, query in enumerate(self.queries.tolist())}

    def rows_of(self, chooser: str, shots: int) -> Ints:
        """The rows (Q,) of what a chooser shows at so many shots, nearest last; NONE where that was not recorded."""
        found = np.full(len(self.queries), NONE)
        for query, lists in self.task.lists.items():
            demos = lists.get(chooser, [])[:shots][::-1]
            if len(demos) == shots:
                found[self.place[query]] = self.longer.get((query, *demos), NONE)
        return found

    def splits(self, name: str) -> NDArray[np.bool_]:
        return np.asarray(self.task.split[self.queries] == name)

    @cached_property
    def usable(self) -> NDArray[np.bool_]:
        """Candidates (Q, 64) that may be shown while learning and choosing: test items teach nothing as examples."""
        test = self.task.split == "test"
        return np.asarray(~test[self.candidates] | test[self.queries][:, None])


def embedder(cache: Path) -> Any:
    """Unit vectors of texts by the sentence encoder, kept in a folder."""
    from leverplus.embedders.cached import open_embedder
    from leverplus.recipe.sections import EmbedSection

    return open_embedder(EmbedSection(name="sentence"), cache)
