"""An arm: a way of choosing examples for a query and, where it does so, of turning answers into one answer.

Evaluation, forecast, advice, bundle, `lever select`, `lever serve`, reports and adapters know arms through this module
and the catalog's table `ARMS` only. What an arm may show for a query is what `Queries` and `Corpus` leave open; both
are the same objects in evaluation and in use, so that the lists are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from leverplus.arms.corpus import Corpus, Queries, Ranked
from leverplus.arms.similarity import Floats, Positions, best_open
from leverplus.data.parsing import parse_own_json
from leverplus.data.types import Score
from leverplus.errors import DataError, LeverError

if TYPE_CHECKING:
    from leverplus.arms.training import Training

Rows = list[int]
"""Rows of the corpus in prompt order: the one that stands next to the query comes last."""
Arrays = Mapping[str, NDArray[Any]]

MOST_SHOTS = 64
"""Most examples that an arm shows where it sets no bound of its own."""
EXPLAINED = 64
"""Candidates that an explanation lists at least, where there are as many."""
QUERIES_AT_ONCE = 128
"""Queries compared with the whole corpus at a time, which bounds the memory."""
ALL_SCORED = 20_000
FIRST_OF_MANY = 2048
"""So many examples are all scored; of more, so many that are nearest."""
STATE = "arm.json"
ARRAYS = "arm.safetensors"


class ArmUnavailable(LeverError):
    """An arm that these data do not allow; the sentence says why."""


@dataclass(frozen=True)
class Needs:
    """What an arm reads, and what it costs."""

    vectors: tuple[str, ...] = ()
    """Fields whose vectors it compares: "text", "image"; others need not be embedded for it."""
    pictures: bool = False
    """Examples must have pictures."""
    calls: int = 1
    """Calls of the frozen model for each question: 0 where it answers by itself."""
    training: bool = False
    """It learns from what the frozen model answers to training questions."""
    pilot: bool = False
    """It is learnt from a pilot."""
    policy: bool = False
    """It chooses by the network that a run trained."""


@dataclass(frozen=True)
class Explanation:
    """What one choice looked at, best first, by what score, and what it shows."""

    rows: Positions  # (K,)
    score: Floats  # (K,)
    shown: Rows
    terms: Mapping[str, Floats] = field(default_factory=dict)
    """Parts of the score by name, (K,) each, such as "label"."""


@dataclass(frozen=True)
class Outlook:
    """What is known of a run before anything is read or asked."""

    pictures: bool
    trains: bool
    stops: bool
    """Whether the selector that is trained may show fewer examples than it could."""
    pilot: bool


@dataclass(frozen=True)
class Limit:
    """Only so many examples that are nearest to a query may be chosen for it: it travels with an arm."""

    count: int
    text_weight: float = 1.0

    def rows(self, query: Queries, corpus: Corpus) -> Positions:
        """The rows that one query may be shown, best first."""
        return corpus.nearest(query, self.text_weight, self.count)[0].rows


class Arm:
    """The base of every arm.

    A way of choosing of one's own sets `name` and `title`, and defines `choose`:

    >>> class Shortest(Arm):
    ...     name, title = "shortest", "the shortest questions"
    ...     def choose(self, queries, corpus, shots):
    ...         items = corpus.every_item
    ...         chosen = []
    ...         for place in range(len(queries)):
    ...             mask = queries.open_mask(place, corpus)
    ...             rows = [row for row in items if mask[row]]
    ...             rows.sort(key=lambda row: len(items[row].question))
    ...             chosen.append(rows[:shots][::-1])
    ...         return chosen

    One that puts examples in an order for each query derives from `RankedArm`, one that gives them scores from `ScoredArm`.
    `lever fit DATA --model MODEL --arms nearest_text,mine:Shortest` compares it with another one.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    """How tables and advice call it."""
    says: ClassVar[str] = ""
    """What it chooses and what its score is, in one line for `lever select --explain`."""
    needs: Needs = Needs()
    suits: ClassVar[tuple[str, ...]] = ("label", "short", "long")
    """Kinds of answers for which an evaluation runs it where nobody names arms."""
    unasked_for: ClassVar[str] = ""
    """The kind of answers for which a bundle holds it where no model was asked."""
    shows: ClassVar[bool] = True
    """Whether the model sees what it chooses; else it is asked, or answers, without examples."""
    combines: ClassVar[bool] = False
    """`answer` makes its answer of the model's answers, even where there is only one."""
    asks_first: ClassVar[bool] = False
    """Its list follows from a first answer of the model, to what `choose` gives: `choose_given`."""
    advised: ClassVar[bool] = True
    """Whether it may be recommended."""
    is_rival: ClassVar[bool] = False
    """Whether a sweep compares what it chose with this; the last of these that was evaluated."""
    compared_with: ClassVar[tuple[str, ...]] = ()
    """Arms that an evaluation compares it with; (): with all untrained ones, where it is trained itself."""
    same_for_all: bool = False
    """It shows everybody the same, so that it can show a training question itself."""
    nested: str = ""
    """Shorter lists are the end of longer ones ("suffix"), or their beginning ("prefix"); "": neither is sure."""
    keeps: ClassVar[tuple[tuple[str, Callable[[Any], Any]], ...]] = ()
    """Attributes that are what it learnt, as values of JSON, each with what reads it back: ValueError where it is wrong."""

    opened_as: str = ""
    """`package.module:Class`, where it was opened by that name."""

    limit: Limit | None = None
    """What it may choose among for a query, where it was evaluated with fewer than all examples."""

    @property
    def known_as(self) -> str:
        """The name by which it is opened again, without its parts."""
        return self.opened_as or self.name

    @property
    def spec(self) -> str:
        """The name by which it is opened again, with its own parts: `vote(nearest_text, 5)`."""
        return self.known_as

    @property
    def label(self) -> str:
        """Its title with its own parts."""
        return self.title or self.name.replace("_", " ")

    @property
    def goes_by(self) -> str:
        """What it says of itself, with its own parts."""
        return self.says

    @property
    def calls(self) -> int:
        """Calls of the frozen model for each question."""
        return self.needs.calls

    @property
    def fit_calls(self) -> int:
        """Most calls of the frozen model that `fit` takes, for training questions."""
        return 0

    @property
    def vector_fields(self) -> tuple[str, ...]:
        """The fields whose vectors it compares, once it is fitted."""
        return self.needs.vectors

    @property
    def most_shots(self) -> int:
        """The longest list it can choose."""
        return MOST_SHOTS

    def shots(self, wanted: Sequence[int]) -> list[int]:
        """At which of these numbers of examples an evaluation asks it."""
        if self.shows:
            return [n for n in wanted if n <= self.most_shots]
        return [0]

    def is_possible(self, outlook: Outlook) -> bool:
        """Whether a run may have it, before its data are read; for a forecast of calls."""
        needs = self.needs
        return (
            (outlook.pictures or not needs.pictures)
            and (outlook.pilot or not needs.pilot)
            and (outlook.trains or not needs.policy)
            and (outlook.trains or outlook.pilot or not needs.training)
        )

    def draws(self, count: int) -> list[Arm]:  # noqa: ARG002 only chance has several
        """The same arm with other luck, for an evaluation that wants to know its spread."""
        return [self]

    def fit(self, training: Training) -> Self:
        """Learn what it chooses by; ArmUnavailable where the data do not allow it."""
        if self.needs.pictures and not training.corpus.has_images:
            raise ArmUnavailable(
                f'arm "{self.name}" compares pictures, and these items have no vectors of pictures'
            )
        return self

    def choose(self, queries: Queries, corpus: Corpus, shots: int) -> list[Rows]:  # noqa: ARG002
        """At most `shots` open rows for each query, in prompt order."""
        if self.shows:
            raise NotImplementedError
        return [[] for _ in range(len(queries))]

    def choose_each(
        self, queries: Queries, corpus: Corpus, shots: Sequence[int]
    ) -> dict[int, list[Rows]]:
        """The same at several numbers of shots; nested lists are chosen once."""
        if not self.nested:
            return {n: self.choose(queries, corpus, n) for n in shots}
        longest = self.choose(queries, corpus, max(shots, default=0))
        found: dict[int, list[Rows]] = {}
        for n in shots:
            if self.nested == "prefix":
                found[n] = [rows[:n] for rows in longest]
            else:
                cut = []
                for rows in longest:
                    start = max(0, len(rows) - n)
                    cut.append(rows[start:])
                found[n] = cut
        return found

    def choose_lists(
        self, queries: Queries, corpus: Corpus, shots: int
    ) -> list[list[Rows]]:
        """The lists of each query, one for each call of the frozen model."""
        return [[rows] for rows in self.choose(queries, corpus, shots)]

    def choose_given(
        self,
        queries: Queries,
        corpus: Corpus,
        shots: int,
        first_answers: Sequence[str],
    ) -> list[Rows]:
        """The lists of an arm that asks first, from the answers to the first ones."""
        raise NotImplementedError

    def answer(
        self,
        queries: Queries,  # noqa: ARG002
        corpus: Corpus,  # noqa: ARG002
        lists: Sequence[Sequence[Rows]],  # noqa: ARG002
        answers: Sequence[Sequence[Score]],  # noqa: ARG002
    ) -> list[str] | None:
        """One answer a query from those to its lists; None: the answer to its only list, as it came."""
        return None

    def explain(self, query: Queries, corpus: Corpus, shots: int) -> Explanation:
        """What was looked at for one query (a batch of one), and what is shown."""
        shown = self.choose(query, corpus, shots)[0]
        rows = np.array(shown[::-1], np.int64)
        return Explanation(rows, -np.arange(len(rows), dtype=np.float64), shown)

    @property
    def unsavable(self) -> str:
        """Why it cannot be kept in a file; "": it can."""
        return ""

    def settings(self) -> Mapping[str, Any]:
        """What it was fitted to, as values of JSON."""
        return {name: getattr(self, name) for name, _ in self.keeps}

    def arrays(self) -> Arrays:
        """What it was fitted to, as arrays of numbers."""
        return {}

    def restore(self, settings: Mapping[str, Any], arrays: Arrays) -> None:  # noqa: ARG002
        """Take back what `settings` and `arrays` gave; ValueError or KeyError where they do not fit."""
        for name, read in self.keeps:
            setattr(self, name, read(settings[name]))

    def check(self, rows: int) -> None:
        """ValueError where it was fitted to other examples than the first `rows` of a corpus."""

    def save(self, folder: Path) -> None:
        """Keep it in a folder: numbers and texts, never code."""
        folder.mkdir(parents=True, exist_ok=True)
        limit = None if self.limit is None else asdict(self.limit)
        known = {"settings": dict(self.settings()), "limit": limit}
        text = json.dumps(known, ensure_ascii=False, sort_keys=True)
        (folder / STATE).write_text(text + "\n", encoding="utf-8")
        arrays = self.arrays()
        if arrays:
            blocks = {name: np.ascontiguousarray(own) for name, own in arrays.items()}
            save_file(blocks, folder / ARRAYS)

    def load(self, folder: Path) -> Self:
        """Take back what `save` kept."""
        try:
            known = parse_own_json((folder / STATE).read_bytes())
            if limit := known["limit"]:
                count = read_row(limit["count"])
                weight = read_share(limit["text_weight"])
                self.limit = Limit(count, weight)
            held = (folder / ARRAYS).is_file()
            self.restore(known["settings"], load_file(folder / ARRAYS) if held else {})
        except (
            OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, SafetensorError,
        ) as error:  # fmt: skip
            raise DataError(
                f"what {folder} holds of arm {self.spec} is not understood ({error}); pack the bundle again"
            ) from error
        return self


class RankedArm(Arm):
    """An arm that puts the examples in an order for each query and shows the first, the very first next to the query."""

    nested = "suffix"

    def rank(self, queries: Queries, corpus: Corpus, count: int) -> Iterable[Ranked]:
        """Open rows for each query, the first `count` at least; these are the first of any larger number, too."""
        raise NotImplementedError

    def choose(self, queries: Queries, corpus: Corpus, shots: int) -> list[Rows]:
        if not self.shows:
            return super().choose(queries, corpus, shots)
        ranked = self.rank(queries, corpus, shots)
        return [prompt_order(own.rows[:shots]) for own in ranked]

    def explain(self, query: Queries, corpus: Corpus, shots: int) -> Explanation:
        (found,) = self.rank(query, corpus, max(EXPLAINED, shots))
        shown = prompt_order(found.rows[:shots]) if self.shows else []
        order = np.argsort(-found.score, kind="stable")
        terms = {name: values[order] for name, values in found.terms.items()}
        return Explanation(found.rows[order], found.score[order], shown, terms)


class ScoredArm(RankedArm):
    """An arm that gives every example a score and shows the best ones, the best next to the query.

    Of more than ALL_SCORED examples only the FIRST_OF_MANY that are nearest by `shortlist_weight` are scored, unless
    the arm `scores_all`.
    """

    scores_all: ClassVar[bool] = False
    """It reads the whole corpus quickly, however large that is."""

    @property
    def shortlist_weight(self) -> float:
        return 1.0

    def terms(
        self, queries: Queries, corpus: Corpus, rows: Positions
    ) -> Mapping[str, Floats]:
        """The parts whose sum is the score of some rows with each query, (B, K) each."""
        raise NotImplementedError

    def rank(self, queries: Queries, corpus: Corpus, count: int) -> Iterator[Ranked]:
        whole = self.scores_all or len(corpus) <= ALL_SCORED
        at_once = QUERIES_AT_ONCE if whole else 1
        for start in range(0, len(queries), at_once):
            part = queries[start : start + at_once]
            rows = np.arange(len(corpus))
            if not whole:
                near = corpus.nearest(part, self.shortlist_weight, FIRST_OF_MANY)
                rows = np.sort(near[0].rows)
            yield from rank_by(
                self.terms(part, corpus, rows), part, corpus, rows, count
            )


def rank_by(
    terms: Mapping[str, Floats],
    queries: Queries,
    corpus: Corpus,
    rows: Positions,
    count: int,
) -> Iterator[Ranked]:
    """The best open ones among some rows for each query, by the sum of terms (B, K)."""
    scores = np.zeros((len(queries), len(rows)))
    for values in terms.values():
        scores = scores + values
    for place, score in enumerate(scores):
        best = best_open(score, queries.open_mask(place, corpus)[rows], count)
        parts = {}
        for name, values in terms.items():
            parts[name] = values[place][best]
        yield Ranked(rows[best], score[best], parts)


def prompt_order(best_first: Sequence[int] | Positions) -> Rows:
    """Rows with the best one last, next to the query."""
    return [int(row) for row in best_first][::-1]


def read_share(value: Any) -> float:
    """A share between 0 and 1 that a file gives; ValueError where it is none."""
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise ValueError(f"{value!r} is not a share between 0 and 1")
    return float(value)


def read_row(value: Any) -> int:
    """The number of a row, or a count; ValueError where it is none."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a whole number from 0")
    return value


def read_rows(value: Any) -> list[int]:
    """Numbers of rows."""
    return [read_row(row) for row in value]
