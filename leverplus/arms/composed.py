"""Arms made of arms: at most so many of one, one after the other, and a vote over several lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from leverplus.arms.base import (
    MOST_SHOTS,
    Arm,
    Explanation,
    Needs,
    Outlook,
    Rows,
    read_row,
)
from leverplus.arms.corpus import Corpus, Queries
from leverplus.arms.training import Training
from leverplus.arms.voting import most_common
from leverplus.data.types import Score

MOST_LISTS = 32
"""Most lists of a vote."""


class Composed(Arm):
    """The base of arms that are made of other arms, which are fitted, saved and loaded with them."""

    suits: ClassVar[tuple[str, ...]] = ()
    default: ClassVar[type[Arm] | None] = None
    """Its only part where its name stands alone."""
    takes_several: ClassVar[bool] = False
    """It can be made of arms that make one answer of several."""

    def __init__(self, parts: Sequence[Arm] = ()) -> None:
        self.is_plain = not parts
        self.parts = list(parts)
        if self.is_plain and self.default is not None:
            self.parts.append(self.default())
        for part in self.parts:
            if (part.calls > 1 or part.combines) and not self.takes_several:
                raise ValueError(
                    f"{part.spec} takes {part.calls} calls for one answer; put it outermost"
                )
        vectors: dict[str, None] = {}
        for part in self.parts:
            vectors |= dict.fromkeys(part.needs.vectors)
        needs = [part.needs for part in self.parts]
        self.needs = Needs(
            vectors=tuple(vectors),
            pictures=any(own.pictures for own in needs),
            calls=max(own.calls for own in needs),
            training=any(own.training for own in needs),
            pilot=any(own.pilot for own in needs),
            policy=any(own.policy for own in needs),
        )
        self.same_for_all = any(part.same_for_all for part in self.parts)

    @classmethod
    def of_parts(cls, arms: Sequence[Arm], numbers: Sequence[int]) -> Self:
        """From what stands in the brackets; ValueError where that does not suit."""
        if numbers or len(arms) > 1 or not (arms or cls.default):
            raise ValueError(f"{cls.name} takes one arm in its brackets")
        return cls(arms)

    @property
    def spec(self) -> str:
        if self.is_plain:
            return self.known_as
        return f"{self.known_as}({self.parts[0].spec})"

    @property
    def label(self) -> str:
        if self.is_plain:
            return self.title
        return f"{self.title}, from {self.parts[0].label}"

    @property
    def vector_fields(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for part in self.parts:
            found |= dict.fromkeys(part.vector_fields)
        return tuple(found)

    @property
    def most_shots(self) -> int:
        return max(part.most_shots for part in self.parts)

    @property
    def fit_calls(self) -> int:
        return sum(part.fit_calls for part in self.parts)

    @property
    def unsavable(self) -> str:
        return next((part.unsavable for part in self.parts if part.unsavable), "")

    def is_possible(self, outlook: Outlook) -> bool:
        return all(part.is_possible(outlook) for part in self.parts)

    def fit(self, training: Training) -> Self:
        for part in self.parts:
            part.fit(training)
        return self

    def check(self, rows: int) -> None:
        for part in self.parts:
            part.check(rows)

    def save(self, folder: Path) -> None:
        super().save(folder)
        for number, part in enumerate(self.parts):
            part.save(folder / f"part{number}")

    def load(self, folder: Path) -> Self:
        super().load(folder)
        for number, part in enumerate(self.parts):
            part.load(folder / f"part{number}")
        return self


class AtMost(Composed):
    """At most so many examples of an arm: `nearest_text(8)`."""

    name = "at_most"

    def __init__(self, arm: Arm, count: int) -> None:
        super().__init__([arm])
        self.count = count

    @property
    def spec(self) -> str:
        return f"{self.parts[0].spec}({self.count})"

    @property
    def label(self) -> str:
        return f"{self.parts[0].label}, at most {self.count}"

    @property
    def goes_by(self) -> str:
        return f"{self.parts[0].goes_by}; at most {self.count} examples"

    @property
    def most_shots(self) -> int:
        return min(self.count, self.parts[0].most_shots)

    def choose(self, queries: Queries, corpus: Corpus, shots: int) -> list[Rows]:
        return self.parts[0].choose(queries, corpus, min(shots, self.count))

    def explain(self, query: Queries, corpus: Corpus, shots: int) -> Explanation:
        return self.parts[0].explain(query, corpus, min(shots, self.count))


class Joined(Composed):
    """One arm's examples and then another's: `fixed(8)+nearest_text(8)`; the last arm's stand next to the query.

    Later arms are served first: what they choose is not chosen again, and where fewer examples are wanted than all
    arms show together, the first arms show fewer.
    """

    name = "joined"

    @property
    def spec(self) -> str:
        return "+".join(part.spec for part in self.parts)

    @property
    def label(self) -> str:
        return " and ".join(part.label for part in self.parts)

    @property
    def goes_by(self) -> str:
        return ", and then ".join(f"[{part.goes_by}]" for part in self.parts)

    @property
    def most_shots(self) -> int:
        return min(MOST_SHOTS, sum(part.most_shots for part in self.parts))

    def choose(self, queries: Queries, corpus: Corpus, shots: int) -> list[Rows]:
        chosen: list[Rows] = [[] for _ in range(len(queries))]
        for part in reversed(self.parts):
            count = min(shots, part.most_shots)
            offered = part.choose(queries, corpus, min(part.most_shots, count + shots))
            for place, rows in enumerate(offered):
                fresh = [row for row in rows if row not in chosen[place]]
                room = min(count, shots - len(chosen[place]))
                start = max(0, len(fresh) - room)
                chosen[place] = fresh[start:] + chosen[place]
        return chosen


class Vote(Composed):
    """Several lists, one call each; the most common answer counts: `vote(nearest_text, 5)`, `vote(nearest_text, bm25, mmr)`.

    An arm ranks so many examples as its lists take together, and they are dealt out in turn; several arms give one list
    each, or so many as the number says. Among equally common answers the first arm's best list decides.
    """

    name = "vote"
    title = "vote of several lists"
    says = "several lists of examples, and the most common of the answers"
    combines = True
    keeps = (("lists", read_row),)

    def __init__(self, arms: Sequence[Arm], lists: int) -> None:
        super().__init__(arms)
        if not 2 <= lists * len(arms) <= MOST_LISTS:
            raise ValueError(
                f"a vote is over 2 to {MOST_LISTS} lists, not {lists * len(arms)}"
            )
        for arm in arms:
            if arm.calls != 1:
                raise ValueError(
                    f"{arm.spec} asks no model, so there is nothing to count"
                )
        self.lists = lists
        """Lists of each arm."""
        self.needs = replace(self.needs, calls=lists * len(arms))

    @classmethod
    def of_parts(cls, arms: Sequence[Arm], numbers: Sequence[int]) -> Self:
        if not arms or len(numbers) > 1:
            raise ValueError("vote takes arms, and the number of lists of each")
        usual = 5 if len(arms) == 1 else 1
        return cls(arms, *(numbers or [usual]))

    @property
    def spec(self) -> str:
        named = [part.spec for part in self.parts]
        if self.lists > 1:
            named.append(str(self.lists))
        return f"{self.known_as}({', '.join(named)})"

    @property
    def label(self) -> str:
        named = ", ".join(part.label for part in self.parts)
        return f"vote of {self.calls} lists, {named}"

    @property
    def most_shots(self) -> int:
        return min(part.most_shots for part in self.parts) // self.lists

    def choose(self, queries: Queries, corpus: Corpus, shots: int) -> list[Rows]:
        return [own[-1] for own in self.choose_lists(queries, corpus, shots)]

    def choose_lists(
        self, queries: Queries, corpus: Corpus, shots: int
    ) -> list[list[Rows]]:
        """The list with the first arm's best examples comes last; an example stands in one list of an arm only."""
        found: list[list[Rows]] = [[] for _ in range(len(queries))]
        for part in reversed(self.parts):
            chosen = part.choose(queries, corpus, shots * self.lists)
            for own, rows in zip(found, chosen, strict=True):
                best_first = rows[::-1]
                for number in reversed(range(self.lists)):
                    own.append(best_first[number :: self.lists][:shots][::-1])
        return found

    def answer(
        self,
        queries: Queries,
        corpus: Corpus,
        lists: Sequence[Sequence[Rows]],  # noqa: ARG002
        answers: Sequence[Sequence[Score]],
    ) -> list[str]:
        found = []
        for item, own in zip(queries.items, answers, strict=True):
            texts = [score.answer for score in own]
            found.append(most_common(texts, corpus.rules, item))
        return found

    def explain(self, query: Queries, corpus: Corpus, shots: int) -> Explanation:
        lists = self.choose_lists(query, corpus, shots)[0]
        shown = np.concatenate(lists)[::-1].astype(np.int64).tolist()
        rows = np.array(list(dict.fromkeys(shown)), np.int64)
        return Explanation(rows, -np.arange(len(rows), dtype=np.float64), lists[-1])
