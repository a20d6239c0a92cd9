"""The records that flow between the rooms: items, pools, scores, groups.

Tensor letters used everywhere: B queries, G members of a group, K candidates of a pool, S shots, D features.
A demonstration sequence is always in prompt order: the demonstration nearest to the query comes last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NewType

from leverplus.errors import NotMeasured

ItemId = NewType("ItemId", str)
"""Names an item of a task, for ever."""

PoolPosition = NewType("PoolPosition", int)
"""An index 0..K-1 into one pool; never an item id."""

Demos = tuple[ItemId, ...]
"""An ordered list of demonstrations in prompt order, nearest to the query last."""


@dataclass(frozen=True)
class Item:
    """One labelled question: a query when it is asked, a demonstration when it is shown with its answer.

    `image` is whatever the task needs to load the picture (a path, a key), None for text-only items.
    `image_id` groups the questions on one picture; a pool never holds another question on the query's picture.
    `answers` are the annotators' answers, repeated as often as they were given.
    """

    id: ItemId
    question: str
    answers: tuple[str, ...]
    split: str
    image: str | None = None
    image_id: str | None = None
    meta: Mapping[str, str] = field(default_factory=dict, hash=False)
    fields: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Several named inputs where there are such; `question` is their rendering."""

    @cached_property
    def answer(self) -> str:
        """The answer shown when this item is a demonstration: the most common one, ties broken by first mention."""
        if not self.answers:
            raise NotMeasured(
                f"item {self.id} has no answers, so it cannot be shown as a demonstration"
            )
        return Counter(self.answers).most_common(1)[0][0]


@dataclass(frozen=True)
class Pool:
    """The K candidates a selector may choose from for one query; distinct, without the query and its image.

    `builder` is the hash of every parameter that shaped it, so that training and test can prove they used the same.
    """

    query: ItemId
    candidates: Demos
    builder: str

    def __len__(self) -> int:
        return len(self.candidates)

    def position(self, item: ItemId) -> PoolPosition:
        return PoolPosition(self.candidates.index(item))


@dataclass(frozen=True)
class Reference:
    """A distinct reference answer (normalised), how many annotators gave it, and its log-probability (nats).

    `logprob` is the sum over the answer's tokens, end marker included; None when the backend does not offer it. Where a
    task has labels, those that nobody gave are measured too and have count 0.
    """

    answer: str
    count: int
    logprob: float | None


@dataclass(frozen=True)
class Score:
    """What the frozen model did with one prompt: (query, ordered demonstrations), measured once.

    `accuracy` is the task's official metric in [0, 1]; `correct` is accuracy > 0: one annotator in ten is enough, as in
    the earlier code, whose rewards are built on it. One score = one call: what the model did without the last
    demonstration is a score of its own, with a record of its own.
    """

    query: ItemId
    demos: Demos
    raw: str
    answer: str
    accuracy: float
    correct: bool
    references: tuple[Reference, ...]
    token_f1: float
    edit_similarity: float
    tokens: int
    seconds: float
    recorded_gt_prob: float | None = None
    """The probability of the truth as a recorded table gives it, where those of single references were not kept."""

    @property
    def relevance(self) -> float:
        return max(self.token_f1, self.edit_similarity)

    @property
    def weighed(self) -> bool:
        """Whether the log-probabilities of the references were measured, so that `gt_prob` is there."""
        if self.recorded_gt_prob is not None:
            return True
        return all(reference.logprob is not None for reference in self.references)

    @cached_property
    def gt_prob(self) -> float:
        """Sum over distinct references a of P(a | prompt) * min(count(a) / 3, 1); raises if not measured."""
        if self.recorded_gt_prob is not None:
            return self.recorded_gt_prob
        total = 0.0
        for reference in self.references:
            if reference.logprob is None:
                raise NotMeasured(
                    f"no reference log-probability was measured for query {self.query}; "
                    "use a reward that needs accuracy only, such as reward.mode = 'soft_only'"
                )
            total += math.exp(reference.logprob) * min(reference.count / 3.0, 1.0)
        return min(total, 1.0)

    @cached_property
    def choices(self) -> Mapping[str, float]:
        """The log-probability of every label, where all labels of the task were weighed; else nothing."""
        if all(reference.count for reference in self.references):
            return {}
        return {r.answer: r.logprob for r in self.references if r.logprob is not None}

    @cached_property
    def choice_prob(self) -> float:
        """The probability of the given labels among all labels of the task; raises if these were not weighed."""
        if not self.choices:
            raise NotMeasured(
                f"query {self.query}: the other labels were not weighed, so the true one has no share among them; "
                "use reward.mode = 'gt_prob', or a task with labels and a backend that offers log-probabilities"
            )
        most = max(self.choices.values())
        weights = {
            label: math.exp(logprob - most) for label, logprob in self.choices.items()
        }
        given = 0.0
        for reference in self.references:
            if reference.count:
                given += weights[reference.answer]
        return given / sum(weights.values())


@dataclass(frozen=True)
class Member:
    """One sequence of a group: where it came from and its log-probability under that source (None: no density).

    `front` says that the demonstration which was added last stands in front, as a search with `score.side = "left"`
    puts it: its gain is taken against the list without the first one.
    """

    demos: Demos
    source: str
    log_mu: float | None = None
    front: bool = False

    @property
    def before(self) -> Demos:
        """The list before the last demonstration was added."""
        if self.front:
            return self.demos[1:]
        return self.demos[:-1]


@dataclass(frozen=True)
class Group:
    """The scored sequences of one query, over one pool: what a training stage learns from."""

    query: ItemId
    pool: Pool
    members: tuple[Member, ...]
    scores: tuple[Score, ...]
