"""What any backend must pass before its scores are believed: the right words, batches, pictures and places.

It proves the wiring, not that the model knows the task: not knowing it is what demonstrations are for, and becomes a
note. The calls of a self-test are not stored and not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np

from leverplus.backends.base import Backend, Reply, Request
from leverplus.errors import ScoringError
from leverplus.scoring.copying import Copying, check_copying
from leverplus.scoring.scorer import reference_counts
from leverplus.tasks.base import HasLabels, Task
from leverplus.types import Item, ItemId

SHOTS = (0, 1, 3)

TOLERANCE = 1e-3
"""How far float32 may move a log-probability (nats) from batch to batch."""

FEW_ITEMS = 8
"""Where dev has fewer questions, some of train are asked too."""

TIES, WRITTEN_TIES = 8, 4
"""Coarser numbers may decide one comparison in so many otherwise in another batch: two words were equally likely. The
second is for backends that only write, where each of several words may be the one: of 64 comparisons, llama.cpp with
SmolLM2 (Q4_1) had 2 to 5 different ones, and a server that mixes up two labels has half."""

NO_ANSWER = "something else entirely"
"""A wrong answer for tasks whose items all have the same one."""

LOOK_AT = (
    "what to look at: model.template, model.prompt, model.max_new_tokens (long enough for an answer?), task.images; "
    "random weights need model.untrained = true"
)


@runtime_checkable
class ShowsSpan(Protocol):
    """A backend that can show which words it weighs: the text of the tokens whose log-probabilities are summed."""

    def answer_span(self, request: Request, reference: str) -> str: ...


@runtime_checkable
class ShowsPrompt(Protocol):
    """A backend that can show the text of a whole prompt, up to where the answer begins."""

    def prompt_text(self, request: Request) -> str: ...


@runtime_checkable
class KnowsRounding(Protocol):
    """A backend that says how far rounding may move a log-probability (nats) from batch to batch."""

    tolerance: float


@runtime_checkable
class KnowsUnsteady(Protocol):
    """A backend that says what to do where its answers depend on what it is asked at the same time."""

    unsteady: str


@dataclass(frozen=True)
class SelfTest:
    """What was measured. None where it does not apply: no log-probabilities, no pictures, spans not shown.

    `right_over_wrong` is the mean log-probability of an item's own answer less that of another item's answer,
    `right_error` its standard error; `picture_effect` the mean change of log-probabilities under another picture, and
    the share of changed answers where there are none. `copying` is what showing an answer does; not asked of random
    weights.
    """

    prompts: int
    batch_gap: float
    right_over_wrong: float | None
    right_error: float | None
    picture_effect: float | None
    spans_checked: int | None
    copying: Copying | None = None

    @property
    def knows_task(self) -> bool | None:
        """Whether right answers are likelier than those of other items by more than two standard errors."""
        if self.right_over_wrong is None or self.right_error is None or self.copying is None:
            return None
        return self.right_over_wrong > 2.0 * self.right_error

    @property
    def note(self) -> str:
        """What the user should know of a backend that passed; "" when there is nothing."""
        notes = []
        if self.knows_task is False:
            notes.append(
                f"note: with random demonstrations the model does not know this task (right answers are "
                f"{self.right_over_wrong:.2f} +- {self.right_error:.2f} nats likelier than those of other items); "
                "chosen ones may help"
            )
        if self.copying is not None and self.copying.copied == 0.0:
            notes.append(
                "note: the model writes none of the labels it is shown, but finds them likelier; labels are weighed, "
                "so nothing is lost (it may begin with other words, or model.max_new_tokens may be too few for a label)"
            )
        return "\n".join(notes)


def self_test(
    task: Task,
    backend: Backend,
    *,
    queries: int = 32,
    seed: int = 0,
    tolerance: float | None = None,
    trained: bool = True,
    most: int = max(SHOTS),
) -> SelfTest:
    """Measure a backend on some dev queries; ScoringError with every problem when it must not be trusted.

    No prompt shows more than `most` demonstrations, or two: a question with its own answer, and one other.
    `tolerance` is the backend's own where it rounds more than float32 does, else 0.001 nats. Random weights
    (`trained` is false) do not repeat what they are shown, so they are not asked to.
    """
    if tolerance is None:
        tolerance = backend.tolerance if isinstance(backend, KnowsRounding) else TOLERANCE
    requests = sample_requests(task, queries, seed, most)
    batch = backend.answer(requests)
    problems: list[str] = []
    check_order(backend, requests, problems)
    spans = check_spans(backend, requests, problems)
    unsteady: list[str] = []
    gap = check_batches(backend, requests, batch, tolerance, unsteady)
    problems += unsteady
    right = check_answers(requests, batch, problems)
    picture = check_pictures(backend, requests, batch, tolerance, problems, digest=task.image_digest)
    # replies that are missing or no numbers were named above; there is nothing to subtract then
    sound = len(batch) == len(requests) and (right[0] is not None or batch[0].logprobs is None)
    labels = requests[0].choose
    copying = check_copying(backend, requests, tolerance, problems, labels=labels) if trained and sound else None
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        advised = isinstance(backend, KnowsUnsteady) and problems == unsteady  # no setting of the prompt helps then
        hint = "" if advised else f"\n  {LOOK_AT}"
        raise ScoringError(f"the backend failed its self-test, so nothing was scored with it:{listed}{hint}")
    return SelfTest(len(requests), gap, *right, picture, spans, copying)


def sample_requests(task: Task, queries: int, seed: int, most: int = max(SHOTS)) -> list[Request]:
    """Dev queries with 0, 1 and 3 demonstrations, some of them shared; two references each: its own, another's.

    Where a run never shows 3, neither does this: they may not fit.

    Where dev is small, questions of train are asked too; where all answers are the same, the other one is made up.
    Labels are weighed and not written, as when they are scored.
    """
    labels = isinstance(task, HasLabels) and bool(task.labels)
    rng = np.random.default_rng([seed, 41])
    items, shown = task.items("dev"), [item for item in task.items("train") if shows_answer(item)]
    chosen = [items[int(row)] for row in rng.choice(len(items), min(queries, len(items)), replace=False)]
    order = [shown[int(row)] for row in rng.permutation(len(shown))]
    demos, rest = order[: max(SHOTS)], order[max(SHOTS) :]
    chosen += rest[: max(0, min(queries, FEW_ITEMS) - len(chosen))]
    requests = []
    for place, item in enumerate(chosen):
        wrong = _other_answer(item, [*chosen[place + 1 :], *chosen[:place], *order])
        prefix = tuple(demos[: min(most, SHOTS[place % len(SHOTS)])])
        requests.append(Request(item, prefix, (next(iter(reference_counts(item))), wrong), labels))
    return requests


def shows_answer(item: Item) -> bool:
    """Whether an item can be a demonstration; those with empty answers cannot."""
    return bool(item.answers) and bool(item.answer.strip())


def _other_answer(item: Item, others: Sequence[Item]) -> str:
    """The first answer of another item that nobody gave for this one, or one that nobody gave at all."""
    own = reference_counts(item)
    for other in others:
        if not shows_answer(other):
            continue
        for answer in reference_counts(other):
            if answer not in own:
                return answer
    return NO_ANSWER


def check_spans(backend: Backend, requests: Sequence[Request], problems: list[str]) -> int | None:
    """The words that are weighed are the words of the answer."""
    if not isinstance(backend, ShowsSpan):
        return None
    checked = 0
    for request in requests:
        for reference in request.references:
            span = backend.answer_span(request, reference)
            if span.strip() != reference:
                problems.append(f"query {request.query.id}: '{span}' would be weighed instead of '{reference}'")
                return checked
            checked += 1
    return checked


def check_order(backend: Backend, requests: Sequence[Request], problems: list[str]) -> None:
    """The demonstrations stand in their order and the query stands last.

    Read from the text of the prompt, because answers do not show it: a model copies what it is shown from behind the
    query too. A question that a chat template rewrites cannot be looked for.
    """
    if not isinstance(backend, ShowsPrompt):
        return
    for request in requests:
        text = backend.prompt_text(request)
        questions = [item.question.strip() for item in (*request.demos, request.query)]
        if not all(question in text for question in questions):
            continue
        place = 0
        for question in questions:
            found = text.find(question, place)
            if found < 0:
                problems.append(
                    f"query {request.query.id}: in its prompt '{question}' stands before a demonstration that should "
                    "come first; demonstrations go in their order, the query last"
                )
                return
            place = found + len(question)


def check_batches(
    backend: Backend, requests: Sequence[Request], batch: Sequence[Reply], tolerance: float, problems: list[str]
) -> float:
    """Alone or in a batch, in any order of prompts and of answers, a prompt gets the same reply."""
    largest = 0.0
    if len(batch) != len(requests):
        problems.append(f"{len(requests)} prompts were asked together, but {len(batch)} were answered")
        return math.inf
    turned_round = [replace(request, references=request.references[::-1]) for request in reversed(requests)]
    backwards = [
        reply if reply.logprobs is None else replace(reply, logprobs=reply.logprobs[::-1])
        for reply in reversed(backend.answer(turned_round))
    ]
    compared = 2 * len(requests)
    allowed = compared // (TIES if batch[0].logprobs is not None else WRITTEN_TIES) if tolerance > TOLERANCE else 0
    different = 0
    advice = f"; {backend.unsteady}" if isinstance(backend, KnowsUnsteady) else ""
    for request, together, turned in zip(requests, batch, backwards, strict=True):
        for reply in (backend.answer([request])[0], turned):
            gap = _gap(together, reply)
            largest = max(largest, gap)
            written = together.logprobs is None or not request.choose
            different += written and together.raw != reply.raw
            if different <= allowed and gap <= tolerance:
                continue
            said = (
                f"query {request.query.id} with {len(request.demos)} demonstrations is answered '{together.raw}' "
                f"in a batch and '{reply.raw}' otherwise"
            )
            if together.logprobs is not None:
                said += f", log-probabilities differ by {gap:.2g} (allowed {tolerance:g})"
            if different > allowed > 0:
                said += f"; so differ more than {allowed} of {compared} answers, which are allowed"
            problems.append(said + advice)
            return largest
    return largest


def check_answers(
    requests: Sequence[Request], batch: Sequence[Reply], problems: list[str]
) -> tuple[float | None, float | None]:
    """How much likelier an item's own answer is than another item's, with its standard error."""
    pairs = [reply.logprobs for reply in batch if reply.logprobs is not None]
    if not pairs:
        return None, None
    if len(pairs) != len(requests) or not np.isfinite(pairs).all() or np.max(pairs) > 0.0:
        problems.append("some log-probabilities are missing, not finite or above 0")
        return None, None
    margins = np.array([right - wrong for right, wrong in pairs])
    if len(margins) == 1:
        return float(margins[0]), None  # one question says nothing about its own noise
    return float(margins.mean()), float(margins.std(ddof=1) / math.sqrt(len(margins)))


def check_pictures(
    backend: Backend,
    requests: Sequence[Request],
    batch: Sequence[Reply],
    tolerance: float,
    problems: list[str],
    *,
    digest: Callable[[Item], str],
) -> float | None:
    """Another picture under the same question changes what the model says; None where there is only one picture."""
    shown = [pair for pair in zip(requests, batch, strict=True) if pair[0].query.image is not None]
    seen, swapped = [], []
    for (request, reply), (other, _) in pairwise([*shown, *shown[:1]]):
        query, donor = request.query, other.query
        if digest(query) == digest(donor):
            continue
        seen.append((request, reply))
        changed = replace(query, id=ItemId(f"{query.id}~{donor.id}"), image=donor.image, image_id=donor.image_id)
        swapped.append(replace(request, query=changed))
    if not swapped:
        return None
    pairs = [(reply, after) for (_, reply), after in zip(seen, backend.answer(swapped), strict=True)]
    if pairs[0][0].logprobs is None:
        effect, least = float(np.mean([before.raw != after.raw for before, after in pairs])), 0.0
    else:
        effect, least = float(np.mean([_gap(before, after) for before, after in pairs])), min(tolerance, 0.05)
    if not effect > least:
        problems.append(f"other pictures change log-probabilities by {effect:.2g} only: the model does not see them")
    return effect


def _gap(one: Reply, other: Reply) -> float:
    pairs = zip(one.logprobs or (), other.logprobs or (), strict=True)
    return max((abs(a - b) for a, b in pairs), default=0.0)
