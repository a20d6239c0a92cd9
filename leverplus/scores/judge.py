"""A model that judges answers: it is asked whether an answer is right, and its verdicts are kept like all scores.

An answer that equals a reference needs no judge. Anything else is right where the judge says yes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus.data.metrics.base import Example
from leverplus.data.tasks.answers import AnswerRules
from leverplus.data.types import Item, ItemId
from leverplus.models.settings import ModelSection

if TYPE_CHECKING:
    from leverplus.data.tasks.base import Task
    from leverplus.data.tasks.settings import JudgeSection
    from leverplus.scores.scorer import Scorer

SHOWN_REFERENCES = 5
"""Different reference answers that the judge is shown at most."""

_VERDICT = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)


class JudgeTask:
    """The questions to a judge: each is an item whose text shows a question, what is right, and an answer."""

    name = "judge"
    version = "1"
    answers = AnswerRules("exact", "plain")

    def __init__(self) -> None:
        self.asked: dict[ItemId, Item] = {}

    def items(self, split: str) -> Sequence[Item]:  # noqa: ARG002 nothing is known before it is asked
        return []

    def item(self, item_id: ItemId) -> Item:
        return self.asked[item_id]

    def image(self, item: Item) -> None:  # noqa: ARG002 a judge reads texts
        return None

    def image_digest(self, item: Item) -> str:  # noqa: ARG002
        return ""

    def add(self, text: str) -> ItemId:
        """The id of a question to the judge, by its text."""
        name = ItemId(f"judge-{sha256(text.encode()).hexdigest()[:24]}")
        self.asked.setdefault(name, Item(name, text, ("yes",), "test"))
        return name


class Judge:
    """Asks a judge's model; `calls` are the verdicts it was asked for, `unclear` those without a yes or no.

    One that says neither counts as a no.
    """

    def __init__(
        self,
        section: JudgeSection,
        store: Path,
        account: Path | None = None,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.section = section
        self.store = store
        self.account = account
        self.say = say
        self.task = JudgeTask()
        self.verdicts: dict[ItemId, bool] = {}
        self.unclear = 0

    def __call__(self, answer: str, example: Example) -> bool:
        """Whether the judge says that the answer is right."""
        name = self.task.add(question_to_judge(answer, example))
        if name not in self.verdicts:
            (score,) = self.scorer.score([(name, ())], what="judging")
            verdict = read_verdict(score.raw)
            self.unclear += verdict is None
            self.verdicts[name] = verdict is True
        return self.verdicts[name]

    @property
    def mark(self) -> str:
        """What tells this judge from others."""
        return f"{self.section.model} {self.section.instruction}"

    @property
    def calls(self) -> int:
        """Distinct questions that the judge was asked, whether or not its answer was kept already."""
        return len(self.verdicts)

    def usage(self) -> dict[str, Any]:
        """What was asked of the judge, and what its server was paid."""
        spent = {}
        if "scorer" in self.__dict__ and hasattr(self.scorer.backend, "usage"):
            spent = dict(self.scorer.backend.usage())
        return {"calls": self.calls, "unclear": self.unclear, **spent}

    @cached_property
    def scorer(self) -> Scorer:
        """Opened when the first answer has to be judged."""
        from leverplus.models.base import LocalEngine
        from leverplus.models.open import build_backend
        from leverplus.scores.scorer import Scorer
        from leverplus.scores.store import ScoreStore

        name, model = judge_model(self.section)
        backend = build_backend(name, self.task, model, self.account)
        self.say(f"answers are judged by {self.section.model}")
        return Scorer(self.task, backend, ScoreStore(self.store), LocalEngine(backend))


def judge_model(section: JudgeSection) -> tuple[str, ModelSection]:
    """The backend of a judge and its [model] section."""
    from leverplus.models.open import model_values

    values = model_values(section.model)
    name = str(values["backend"])
    model = {"prompt": "chat", **values["model"], "instruction": section.instruction}
    if name == "callable":
        return name, ModelSection(**model)
    model["max_new_tokens"] = section.max_new_tokens
    if name == "openai":
        model |= {
            "logprobs": "never",
            "key_env": section.key_env,
            "price_in": section.price_in,
            "price_out": section.price_out,
            "max_cost": section.max_cost,
        }
    return name, ModelSection(**model)


def question_to_judge(answer: str, example: Example) -> str:
    """What the judge reads.

    >>> print(question_to_judge("a cat", Example(["the cat"], question="What sits there?")))
    Question:
    What sits there?
    <BLANKLINE>
    Right answer:
    the cat
    <BLANKLINE>
    Answer to judge:
    a cat
    """
    right = list(dict.fromkeys(example))[:SHOWN_REFERENCES]
    named = "Right answers"
    if len(right) == 1:
        named = "Right answer"
    parts = (
        ("Question", example.question),
        (named, "\n".join(right)),
        ("Answer to judge", answer),
    )
    return "\n\n".join(f"{name}:\n{text}" for name, text in parts)


def read_verdict(raw: str) -> bool | None:
    """The first yes or no in a judge's reply; None where it says neither.

    >>> read_verdict("Yes, it is."), read_verdict("**No**"), read_verdict("Perhaps")
    (True, False, None)
    """
    found = _VERDICT.search(_THOUGHT.sub("", raw))
    if found is None:
        return None
    return found.group(1).lower() == "yes"


def with_judge(task: Task, judge: Judge) -> Task:
    """The task with its answers judged by a model."""
    rules = task.answers
    judged: Any = task
    judged.answers = replace(rules, options=replace(rules.options, judge=judge))
    return task
