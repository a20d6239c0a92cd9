"""Pages through the queries of a run: small arrays of predictions.parquet are kept, texts are read for one page.

The index of a file is a few numpy arrays (item, arm, shots and score of every row), made once per version of the file.
Answers and demonstrations stay on disk and are read by pyarrow's filters for the rows on a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leverplus.errors import DataError, EvaluationError, MissingFile

PAGE = 25  # queries
NEEDED = ("item", "arm", "shots", "draw", "demos", "answer", "score")  # columns of predictions.parquet
FATES = ("helped", "harmed", "flipped")
EQUAL = 1e-9  # means over draws differ by rounding

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Traits = Mapping[str, Sequence[str]]
"""By name, one value per item, such as the relation it asks about."""


@dataclass(frozen=True)
class QueryFilter:
    """Which queries to show: `fate` of `arm` against `baseline` at `shots`, a text, a trait as `name=value`."""

    arm: str
    baseline: str
    shots: int
    fate: str = ""
    text: str = ""
    trait: str = ""
    page: int = 1


@dataclass(frozen=True)
class FoundPage:
    """One page: the places of its items in the index, and how many there are in all."""

    rows: list[int]
    total: int
    page: int
    pages: int


class QueryIndex:
    """The items of a predictions file and the score of every arm on them."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        self.path = path
        try:
            names = pq.read_schema(path).names
            whole = all(name in names for name in NEEDED)
            table = pq.read_table(path, columns=["item", "arm", "shots", "score"]) if whole else None
        except FileNotFoundError as error:
            raise MissingFile(f"{path.parent.name} has no predictions yet; `lever eval` makes them") from error
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path.name} cannot be read ({error}); `lever eval` makes it again") from error
        if table is None:
            raise DataError(f"{path.name} is not of a form this version knows; `lever eval` makes it again")
        if not len(table):
            raise DataError(f"{path.name} holds no predictions; `lever eval` makes them")
        items = pc.dictionary_encode(pc.cast(table["item"], pa.string())).combine_chunks()
        arms = pc.dictionary_encode(pc.cast(table["arm"], pa.string())).combine_chunks()
        self.items = items.dictionary
        self.arms: list[str] = arms.dictionary.to_pylist()
        # One entry per row of the file, (rows,); items and arms as their numbers in the lists above.
        self._item, self._arm = items.indices.to_numpy(), arms.indices.to_numpy()
        self._shots = table["shots"].to_numpy()
        self._score = table["score"].to_numpy()
        self._known: dict[str, list[int]] = {}  # shots by arm
        self._means: dict[tuple[str, int], NDArray[np.float64]] = {}  # (items,) by arm and shots

    def __len__(self) -> int:
        return len(self.items)

    def ids(self, rows: Sequence[int]) -> list[str]:
        found: list[str] = self.items.take(np.asarray(rows, dtype=np.int64)).to_pylist()
        return found

    def shots(self, arm: str) -> list[int]:
        """At how many shots an arm was measured."""
        if arm not in self.arms:
            raise EvaluationError(f"there is no arm '{arm[:80]}' in this run; known: {', '.join(self.arms)}")
        if arm not in self._known:
            own = self._shots[self._arm == self.arms.index(arm)]
            self._known[arm] = [int(n) for n in np.unique(own)]
        return self._known[arm]

    def shared_shots(self, arm: str, other: str) -> list[int]:
        """At how many shots two arms can be compared; one that shows none is compared at the other's."""
        own, rival = self.shots(arm), self.shots(other)
        if rival == [0]:
            return own
        return rival if own == [0] else [n for n in own if n in rival]

    def scores(self, arm: str, shots: int) -> NDArray[np.float64]:
        """The accuracy of an arm on every item, the mean of its draws; an arm that shows none counts at any shots."""
        known = self.shots(arm)
        shots = 0 if known == [0] else shots
        if shots not in known:
            raise EvaluationError(f"arm '{arm}' was not run at {shots} shots; known: {', '.join(map(str, known))}")
        if (arm, shots) not in self._means:
            inside = (self._arm == self.arms.index(arm)) & (self._shots == shots)  # (rows,)
            count = np.bincount(self._item[inside], minlength=len(self))  # (items,), one per draw
            if not count.all():
                raise EvaluationError(
                    f"arm '{arm}' at {shots} shots did not answer every item; `lever eval` asks again"
                )
            total = np.bincount(self._item[inside], weights=self._score[inside], minlength=len(self))
            self._means[arm, shots] = total / count
        return self._means[arm, shots]

    def fate(self, wanted: QueryFilter) -> dict[str, Mask]:
        """Masks (items,): which score higher or lower than with the baseline, which go from wrong to right or back."""
        own, other = self.scores(wanted.arm, wanted.shots), self.scores(wanted.baseline, wanted.shots)  # (items,)
        return {
            "helped": own > other + EQUAL,
            "harmed": own < other - EQUAL,
            "flipped": (own > EQUAL) != (other > EQUAL),
        }

    def find(self, wanted: QueryFilter, texts: Callable[[], Sequence[str]], traits: Callable[[], Traits]) -> FoundPage:
        """One page of the items that fit, in the order of the file.

        `texts` and `traits` are functions, because they load the task, which most addresses do not need.
        """
        inside = np.ones(len(self), dtype=np.bool_)
        if wanted.fate:
            if wanted.fate not in FATES:
                raise EvaluationError(f"a query is {', '.join(FATES)}, not '{wanted.fate[:40]}'")
            inside &= self.fate(wanted)[wanted.fate]
        if wanted.trait:
            name, _, value = wanted.trait.partition("=")
            values = traits().get(name, [""] * len(self))
            inside &= np.array([own == value for own in values], dtype=np.bool_)
        if wanted.text.strip():
            inside &= self._containing(wanted, texts())
        rows = np.flatnonzero(inside)
        pages = max(1, -(-len(rows) // PAGE))  # rounded up
        page = min(max(1, wanted.page), pages)
        on_page = rows[(page - 1) * PAGE : page * PAGE]
        return FoundPage([int(row) for row in on_page], len(rows), page, pages)

    def _containing(self, wanted: QueryFilter, texts: Sequence[str]) -> Mask:
        """Items with the text in their id, their question or the arm's answer."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        def holds(values: Any) -> Mask:
            found = pc.fill_null(pc.match_substring(values, wanted.text.strip(), ignore_case=True), False)
            return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)

        inside = holds(self.items) | holds(pa.array(texts, type=pa.string()))
        own = (ds.field("arm") == wanted.arm) & (ds.field("shots") == self._own_shots(wanted.arm, wanted.shots))
        answers = self._read(("item", "answer"), own & (ds.field("draw") == 0))
        matching = pa.array(holds(answers["answer"].combine_chunks()))
        places = pc.index_in(answers["item"].filter(matching), self.items)
        inside[places.to_numpy()] = True
        return inside

    def _own_shots(self, arm: str, shots: int) -> int:
        """Under how many shots an arm is in the file: 0 for one that shows nothing, whatever the page shows."""
        return 0 if self.shots(arm) == [0] else shots

    def predictions(self, items: Sequence[str], arms: Sequence[str], shots: int) -> list[dict[str, Any]]:
        """The first draw of some arms on some items: item, arm, shots, demos, answer, score."""
        import pyarrow.dataset as ds

        counts = sorted({self._own_shots(arm, shots) for arm in arms})
        wanted = ds.field("item").isin(list(items)) & ds.field("arm").isin(list(arms))
        wanted &= ds.field("shots").isin(counts)
        found = self._read(NEEDED, wanted & (ds.field("draw") == 0)).to_pylist()
        return [row for row in found if row["shots"] == self._own_shots(row["arm"], shots)]

    def _read(self, columns: Sequence[str], wanted: Any) -> Any:
        import pyarrow as pa
        import pyarrow.dataset as ds

        try:
            return ds.dataset(self.path, format="parquet").to_table(columns=list(columns), filter=wanted)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path.name} cannot be read ({error}); `lever eval` makes it again") from error


class Indexes:
    """The indexes of the files last looked at, each made again when its file has changed."""

    KEPT = 4

    def __init__(self) -> None:
        # By path: time and size of the file when it was read, and its index; least recently used first.
        self._kept: dict[Path, tuple[tuple[int, int], QueryIndex]] = {}

    def of(self, path: Path) -> QueryIndex:
        try:
            stat = path.stat()
        except OSError as error:
            raise MissingFile(f"{path.parent.name} has no predictions yet; `lever eval` makes them") from error
        stamp = stat.st_mtime_ns, stat.st_size
        kept = self._kept.pop(path, None)
        if kept is None or kept[0] != stamp:
            kept = stamp, QueryIndex(path)
        self._kept[path] = kept
        while len(self._kept) > self.KEPT:
            del self._kept[next(iter(self._kept))]
        return kept[1]
