"""The items of a recording, and lists of examples by every arm for its questions; no model is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from leverplus.arms.base import Arm, ArmUnavailable
from leverplus.arms.corpus import Queries
from leverplus.arms.similarity import Positions
from leverplus.arms.training import Training
from leverplus.data.reader import text_id
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Demos, Item, ItemId
from leverplus.encode.base import Array, Vectors
from leverplus.errors import DataError
from leverplus.scores.keys import item_digest

Say = Callable[[str], None]
TextVectors = Callable[[Sequence[str]], Array]

SCORES = "scores"
"""The arm's name in lists that are asked to learn from."""


@dataclass(frozen=True)
class ListRow:
    """One list: what an arm shows for a question at a number of shots, in prompt order.

    `split_key` names the split of the data, `part` is train, dev or test in it.
    """

    split_key: str
    part: str
    arm: str
    shots: int
    query: ItemId
    demos: Demos

    def as_json(self) -> list[Any]:
        """As a line of a file."""
        head = [self.split_key, self.part, self.arm, self.shots, self.query]
        return [*head, list(self.demos)]

    @classmethod
    def of_json(cls, row: Sequence[Any]) -> ListRow:
        """Back from a line of a file."""
        split_key, part, arm, shots, query, demos = row
        shown = tuple(map(ItemId, demos))
        return cls(split_key, part, arm, shots, ItemId(query), shown)


@dataclass(frozen=True)
class Data:
    """The items of one split of a task, and the corpus of its training items."""

    split_key: str
    items: Sequence[Item]
    text_vectors: TextVectors
    rules: AnswerRules
    limit: int = 0
    """So many training items make the corpus, the first of a fixed shuffle; 0: all."""

    def part(self, name: str) -> list[Item]:
        """The items of train, dev or test."""
        return [item for item in self.items if item.split == name]

    @cached_property
    def corpus_items(self) -> list[Item]:
        """The examples that may be shown."""
        train = self.part("train")
        if not self.limit or self.limit >= len(train):
            return train
        drawn = np.random.default_rng(0).permutation(len(train))
        order = drawn[: self.limit]
        return [train[place] for place in np.sort(order)]

    @property
    def name(self) -> str:
        """Names the split, and the size of a smaller corpus."""
        if self.limit:
            return f"{self.split_key}/{self.limit}"
        return self.split_key

    def ids(self, rows: Sequence[int]) -> Demos:
        """The examples of some rows of the corpus."""
        return tuple(self.corpus_items[row].id for row in rows)

    @cached_property
    def training(self) -> Training:
        """The corpus as arms see it."""
        items = self.corpus_items
        return Training(items, self._vectors(items), self.rules)

    def _vectors(self, items: Sequence[Item]) -> Vectors:
        text = self.text_vectors([item.question for item in items])
        return Vectors(None, text, np.zeros_like(text))

    def queries(self, items: Sequence[Item]) -> Queries:
        """Questions without their answers; a training item may not be shown to itself."""
        rows = {item.id: row for row, item in enumerate(self.corpus_items)}
        closed: list[Positions | None] = []
        asked = []
        for item in items:
            own = rows.get(item.id)
            closed.append(None if own is None else np.array([own], np.int64))
            asked.append(replace(item, answers=()))
        return Queries(asked, self._vectors(items), closed, (), query_digest)


def query_digest(item: Item) -> str:
    """Names a question by its words."""
    alone = replace(item, id=ItemId(""), answers=())
    return item_digest(alone, "", role="query").hex()


def with_split(items: Sequence[Item], split_key: str) -> list[Item]:
    """The same items in another split, such as `meta.query_split`."""
    if split_key == "split":
        return list(items)
    name = split_key.removeprefix("meta.")
    found = []
    for item in items:
        split = item.meta.get(name, "")
        if split in ("train", "dev", "test"):
            found.append(replace(item, split=split))
    return found


def plan_arms(
    data: Data,
    arms: Sequence[Arm],
    shots: Sequence[int],
    parts: Sequence[str],
    say: Say,
) -> Iterator[ListRow]:
    """What every arm shows for every question of some parts."""
    training = data.training
    for arm in arms:
        try:
            arm.fit(training)
        except ArmUnavailable as error:
            say(f"{arm.spec}: left out, {error}")
            continue
        for part in parts:
            queries = data.queries(data.part(part))
            for count in arm.shots(shots):
                lists = arm.choose(queries, training.corpus, count)
                for item, rows in zip(queries.items, lists, strict=True):
                    demos = data.ids(rows)
                    yield ListRow(data.name, part, arm.spec, count, item.id, demos)
        say(f"{data.split_key}: {arm.spec} has chosen")


def answers_without_model(
    data: Data, arms: Sequence[Arm], parts: Sequence[str]
) -> Iterator[tuple[ListRow, str]]:
    """What arms that need no model answer to every question of some parts; DataError where one does."""
    training = data.training
    for arm in arms:
        arm.fit(training)
        for part in parts:
            queries = data.queries(data.part(part))
            lists = arm.choose_lists(queries, training.corpus, 1)
            given = arm.answer(queries, training.corpus, lists, [[] for _ in lists])
            if given is None:
                raise DataError(f"{arm.spec} asks a model; name it in `plan --arms`")
            for item, own, answer in zip(queries.items, lists, given, strict=True):
                demos = data.ids(own[0]) if own else ()
                yield ListRow(data.name, part, arm.spec, 0, item.id, demos), answer


def plan_scores(
    data: Data, arms: Sequence[Arm], queries: int, candidates: int, seed: int = 0
) -> Iterator[ListRow]:
    """One example at a time for training questions: the first ones of every arm in turn, none twice."""
    items = data.corpus_items
    rng = np.random.default_rng(seed)
    places = rng.permutation(len(items))[:queries]
    drawn = [items[place] for place in np.sort(places)]
    asked = data.queries(drawn)
    corpus = data.training.corpus
    ranked = []
    for arm in arms:
        arm.fit(data.training)
        ranked.append(arm.choose(asked, corpus, candidates))
    for row, item in enumerate(asked.items):
        best_first = [lists[row][::-1] for lists in ranked]
        for place in in_turn(best_first, candidates):
            demos = data.ids([place])
            yield ListRow(data.name, "train", SCORES, 1, item.id, demos)
        yield ListRow(data.name, "train", SCORES, 0, item.id, ())


def in_turn(lists: Sequence[Sequence[int]], count: int) -> list[int]:
    """The first of every list, then the second of every list, each once, up to `count`.

    >>> in_turn([[1, 2, 3], [2, 4, 5]], 4)
    [1, 2, 4, 3]
    """
    found: dict[int, None] = {}
    for depth in range(max(map(len, lists), default=0)):
        for own in lists:
            if depth < len(own):
                found[own[depth]] = None
    return list(found)[:count]


@dataclass(frozen=True)
class Sizes:
    """How many items of each split are taken at most."""

    train: int = 4000
    dev: int = 150
    test: int = 300


def choose_items(items: Sequence[Item], sizes: Sizes, seed: int = 0) -> list[Item]:
    """Items drawn from every split, in the order of the data; without a dev split, dev is drawn from the rest of train.

    A question that stands in an earlier split word for word is left out afterwards, so that nothing is looked up.

    >>> items = [Item(str(n), f"q{n}", ("a",), "train") for n in range(9)]
    >>> chosen = choose_items(items, Sizes(train=4, dev=2))
    >>> [sum(item.split == split for item in chosen) for split in ("train", "dev")]
    [4, 2]
    """
    rng = np.random.default_rng(seed)
    given = _of(items, "train")
    train = _drawn(given, sizes.train, rng)
    rest = _of(items, "dev")
    if not rest:
        taken = {item.id for item in train}
        for item in given:
            if item.id not in taken:
                rest.append(replace(item, split="dev"))
    dev = _drawn(rest, sizes.dev, rng)
    test = _drawn(_of(items, "test"), sizes.test, rng)
    known: set[str] = set()
    kept = []
    for part in (train, dev, test):
        texts = set()
        for item in part:
            text = text_id(item.question)
            texts.add(text)
            if text not in known:
                kept.append(item)
        known |= texts
    return kept


def _of(items: Sequence[Item], split: str) -> list[Item]:
    return [item for item in items if item.split == split]


def _drawn(items: Sequence[Item], count: int, rng: np.random.Generator) -> list[Item]:
    """So many of them, or all."""
    if len(items) <= count:
        return list(items)
    places = np.sort(rng.choice(len(items), count, replace=False))
    return [items[place] for place in places]
