"""A way of choosing of somebody's own, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leverplus import Arm
from leverplus.arms.base import Rows
from leverplus.arms.composed import Vote
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.training import Training


class TwoLists(Vote):
    """A vote of somebody's own."""

    name, title = "two_lists", "a vote of two lists"


class Deaf(Arm):
    """The first examples, whatever a query may be shown."""

    name, title = "deaf", "the first examples"

    def choose(self, queries: Queries, corpus: Corpus, shots: int) -> list[Rows]:
        return [list(corpus.every_item)[:shots] for _ in range(len(queries))]


class Shortest(Arm):
    """The examples with the shortest questions, among those that share the query's first word where there are some."""

    name, title = "shortest", "shortest questions"
    says = "the shortest questions"
    longest = 0

    def fit(self, training: Training) -> Shortest:
        self.longest = max(len(item.question) for item in training.items)
        return self

    def settings(self) -> Mapping[str, Any]:
        return {"longest": self.longest}

    def restore(self, settings: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        self.longest = int(settings["longest"])

    def choose(self, queries: Queries, corpus: Corpus, shots: int) -> list[Rows]:
        chosen = []
        for place, words in enumerate(queries.words):
            rows = [int(row) for row in queries.open_mask(place, corpus).nonzero()[0]]
            items = corpus.items(rows)
            first = words.split()[0]
            rows = [row for row in rows if len(items[row].question) <= self.longest]
            rows.sort(
                key=lambda row: (
                    first not in items[row].question,
                    len(items[row].question),
                    row,
                )
            )
            chosen.append(rows[:shots][::-1])
        return chosen
