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
RARE = 0.05
"""Below this share of questions whose answer's shape any example has, parts of answers are what can be shown."""
Lists = Sequence[Sequence[int]]
"""Rows of examples for each question."""


@dataclass(frozen=True)
class ArmForecast:
    """One arm, by the number of examples that it shows.

    `shares` are those of questions with the right shape among the shown, `density` how many of the shown have it in the
    mean: between arms at one number of examples density tells who gains most. `likeness` is between 0 and 1: how like
    the right answer the likest of the shown answers is, by their parts.
    """

    arm: str
    shares: Mapping[int, float]
    likeness: Mapping[int, float]
    density: Mapping[int, float]


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
        """The arm of whose examples most have the right shape; where hardly any can, whose likest answer is likest."""
        return max(self.arms, key=lambda arm: self._promise(arm, shots), default=None)

    def _promise(self, arm: ArmForecast, shots: int) -> tuple[float, float]:
        if self.possible < RARE:
            return arm.likeness[shots], arm.density[shots]
        return arm.density[shots], arm.likeness[shots]

    def lines(self) -> list[str]:
        """The same in sentences, the most promising way first."""
        what = "the right answer's shape"
        if self.form in (Form.LABEL, Form.WORDS):
            what = "the right answer itself"
        found = [
            f"without a call, for {self.questions:,} dev questions: {100 * self.possible:.0f} % have an example with "
            f"{what} ({self.shapes:,} different ones among the examples)"
        ]
        longest = max((max(arm.shares) for arm in self.arms), default=0)
        for arm in sorted(
            self.arms, key=lambda arm: self._promise(arm, longest), reverse=True
        ):
            shown = []
            for count, share in arm.shares.items():
                shown.append(f"{100 * share:.0f} % among {count}")
            if self.possible < RARE:
                said = f"the closest of {longest} has {100 * arm.likeness[longest]:.0f} % of the right answer's parts"
            else:
                said = f"{100 * arm.density[longest]:.0f} % of {longest} have it"
            found.append(f"{arm.arm} shows one for {', '.join(shown)}; {said}")
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
        shares = {}
        likeness = {}
        density = {}
        for count, chosen in sorted(by_length.items()):
            hits = []
            nearest = []
            dense = []
            for question, own in enumerate(chosen):
                near = [places[row] for row in own if row in places]
                fitting = sum(shapes[place] in right[question] for place in near)
                hits.append(fitting > 0)
                dense.append(fitting / max(1, len(near)))
                nearest.append(float(like[question, near].max(initial=0.0)))
            shares[count] = sum(hits) / max(1, len(chosen))
            likeness[count] = sum(nearest) / max(1, len(chosen))
            density[count] = sum(dense) / max(1, len(chosen))
        arms.append(ArmForecast(name, shares, likeness, density))
    known = set(shapes)
    reached = 0
    for of_query in right:
        reached += not known.isdisjoint(of_query)
    possible = reached / max(1, len(right))
    return ShapeForecast(form, len(questions), len(known), possible, tuple(arms))
