"""A forecast before any call: how often each arm shows an example whose answer has the right answer's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leverplus.arms.answers import Form, form_of
from leverplus.arms.foretell import shapes_of, shown_parts, target_parts
from leverplus.arms.words import Vocabulary, products
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item

SHOTS = (1, 4, 8)
Lists = Sequence[Sequence[int]]
"""Rows of examples for each question."""


@dataclass(frozen=True)
class ArmForecast:
    """One arm: the share of questions with the right shape among so many examples, and the mean likeness of the best.

    `likeness` is between 0 and 1: how like the right answer the likest of the shown answers is, by their parts.
    """

    arm: str
    shares: Mapping[int, float]
    likeness: Mapping[int, float]


@dataclass(frozen=True)
class ShapeForecast:
    """What arms show for some questions whose answers are known, without asking a model.

    `possible` is the share of questions whose answer's shape any allowed example has; `shapes` counts those of the
    examples, `questions` what was looked at.
    """

    form: Form
    questions: int
    shapes: int
    possible: float
    arms: tuple[ArmForecast, ...]

    def best(self, shots: int) -> ArmForecast | None:
        """The arm that shows the right shape most often among so many; the first among equals."""
        return max(self.arms, key=lambda arm: arm.shares[shots], default=None)

    def lines(self) -> list[str]:
        """The same in sentences, the best way first."""
        found = [
            f"without a call, for {self.questions:,} dev questions: {100 * self.possible:.0f} % have an example whose "
            f"answer has the right answer's shape ({self.shapes:,} shapes)"
        ]
        for arm in sorted(self.arms, key=lambda arm: -arm.shares[max(arm.shares)]):
            shown = []
            for count, share in arm.shares.items():
                shown.append(f"{100 * share:.0f} % among {count}")
            found.append(f"{arm.arm} shows one for {', '.join(shown)}")
        return found


def forecast_shapes(
    questions: Sequence[Item],
    examples: Mapping[int, Item],
    rules: AnswerRules,
    lists: Mapping[str, Mapping[int, Lists]],
) -> ShapeForecast:
    """What the lists of each arm, by their length, show for questions whose answers are known.

    >>> def ask(number, name):
    ...     return Item(str(number), f"age of {name}", (f"SELECT age FROM p WHERE name = '{name}'",), "")
    >>> examples = {row: ask(row, name) for row, name in enumerate(("Ann", "Bo", "Cy"))}
    >>> found = forecast_shapes([ask(9, "Di")], examples, AnswerRules("sql"), {"first": {1: [[0]]}})
    >>> found.possible, found.arms[0].shares[1]
    (1.0, 1.0)
    """
    form = form_of(list(examples.values()), rules)
    rows = [row for row, item in examples.items() if item.answers]
    places = {row: place for place, row in enumerate(rows)}
    shapes = [shapes_of(examples[row], form, rules)[0] for row in rows]
    right = [set(shapes_of(item, form, rules)) for item in questions]
    shown = [shown_parts(examples[row], form, rules) for row in rows]
    parts = Vocabulary.learn(shown)
    wanted = parts.unit_rows([target_parts(item, form, rules) for item in questions])
    like = products(wanted, parts.unit_rows(shown).T.tocsr())  # (Q, N)
    arms = []
    for name, by_length in lists.items():
        shares, likeness = {}, {}
        for count, chosen in sorted(by_length.items()):
            hits, nearest = [], []
            for question, own in enumerate(chosen):
                near = [places[row] for row in own if row in places]
                hits.append(any(shapes[place] in right[question] for place in near))
                nearest.append(float(like[question, near].max(initial=0.0)))
            shares[count] = sum(hits) / max(1, len(chosen))
            likeness[count] = sum(nearest) / max(1, len(chosen))
        arms.append(ArmForecast(name, shares, likeness))
    known = set(shapes)
    possible = sum(not known.isdisjoint(own) for own in right) / max(1, len(right))
    return ShapeForecast(form, len(questions), len(known), possible, tuple(arms))
