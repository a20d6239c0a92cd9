"""What a metric is given, and metrics that need more than an answer and its references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from leverplus.errors import NotMeasured


class Example(tuple[str, ...]):
    """What an answer is judged against: the reference answers, and as attributes what else the example holds.

    As it is the sequence of its references, a metric may be written for (answer, references) or (answer, example).

    >>> example = Example(["red"], question="Which colour?", meta={"level": "easy"})
    >>> example[0], example.answers, example.question, example.meta["level"], len(example.fields)
    ('red', ('red',), 'Which colour?', 'easy', 0)
    """

    question: str
    meta: Mapping[str, str]
    fields: Mapping[str, str]

    def __new__(
        cls,
        answers: Sequence[str],
        *,
        question: str = "",
        meta: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> Example:
        example = super().__new__(cls, answers)
        example.question = question
        example.meta = meta or {}
        example.fields = fields or {}
        return example

    @property
    def answers(self) -> tuple[str, ...]:
        """The reference answers, repeated as often as they were given."""
        return tuple(self)


Metric = Callable[[str, Example], float]
"""(answer, example) -> [0, 1]; most look at the references alone, which an example is a sequence of."""


@dataclass(frozen=True)
class MetricOptions:
    """What a task says about its metric: settings of [task], and the references that rare words are counted in."""

    tolerance: float = 0.0
    """Numbers that differ by at most so much are equal (number)."""
    database: str = ""
    """A SQLite file, or a folder that `meta.database` names one in (sql_execution)."""
    folder: str = ""
    """Where a relative `meta.database` lies, where `database` is no folder."""
    references: tuple[tuple[str, ...], ...] = field(default=(), repr=False, hash=False)
    """Those of all items, in which rare words are counted (cider)."""
    judge: Callable[[str, Example], bool] | None = field(default=None, repr=False)
    """Says whether an answer is right (judge)."""


class ConfiguredMetric:
    """A metric that is built with the options of its task."""

    def __init__(self, options: MetricOptions) -> None:
        self.options = options

    def __call__(self, answer: str, example: Sequence[str]) -> float:
        """What the answer is worth, in [0, 1]."""
        raise NotImplementedError

    def agree(self, first: str, second: str, example: Example) -> bool | None:  # noqa: ARG002 for those that run answers
        """Whether two answers say the same; None where their normal forms decide."""
        return None

    def problem(self, example: Example) -> str:  # noqa: ARG002 for those that run references
        """What keeps an example from being judged at all, for its reader; "" where nothing does."""
        return ""


def best_match(
    judge: Callable[[str, str], float],
    answer: str,
    references: Sequence[str],
    name: str,
) -> float:
    """What an answer is worth beside the best of its references; `judge` compares it with one of them.

    >>> best_match(str.__eq__, "red", ["blue", "red"], "equality")
    1.0
    """
    require_references(references, name)
    return float(max(judge(answer, reference) for reference in references))


def require_references(references: Sequence[str], name: str) -> None:
    """NotMeasured where there is nothing to compare with."""
    if not references:
        raise NotMeasured(
            f"{name} needs at least one reference answer, and this item has none"
        )
