"""Evidence that answers are weighed where they should be, from a model that need not know its task: models copy.

A question is shown as a demonstration with an answer, then asked again. Every pretrained model then finds the shown
answer likelier than if another one had been shown. With answers weighed at the wrong place, a prompt that is cut or
shuffled, or a mask that hides the demonstrations, it does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from leverplus.backends.base import Backend, Reply, Request
from leverplus.types import Item, ItemId

TOLD = 16
"""Questions that are shown with an answer and asked again: once with the right one, once with a wrong one. Every second
one has one further demonstration. Not more: they drown the copy (SST-2 with SmolLM2: 2.7 nats with none, 1.9 with one,
0.0 with three), and a model that believes them instead is no wrong wiring."""

ENDS, LEAST_ENDS = 8, 2
"""Questions that are shown with a longer answer, to see whether the end of an answer is weighed; in so many it must
show. SmolLM2 has 7 of 9 and more; without the end marker, or with its prompt shuffled, none."""

USUALLY_MOVED, FALSE_REFUSALS = 0.9, 0.01
"""A backend is refused where so few margins move towards the shown answer that one wired right, in which at least 9 in
10 move, has so few less than once in 100."""

FEWEST = 4
"""So many prompts at least, before a share or a standard error says anything."""

DISAGREE, CLEARLY = 8, 2.0
"""One answer in so many, and one at least, may be written although another is weighed likelier by so many nats: what is
written greedily, token by token, need not be the likeliest answer as a whole."""

UNLIKELY, UNLIKELY_LETTER = 10.0, 0.5
"""Nats, for an answer and for each of its letters, beyond which nobody would have written it greedily. SmolLM2 has 2
to 8 for what it writes, and 22 to 38 for the same with tokens in another order or one place off."""


@runtime_checkable
class KnowsFewAnswers(Protocol):
    """A backend that weighs only answers of its own language, so that none can be made longer."""

    fixed_answers: bool


@dataclass(frozen=True)
class Copying:
    """What showing an answer does. None where it was not measured: no log-probabilities, or nothing to count.

    `effect`: by how many nats the shown answer gains on the other one, right shown against wrong shown; `error` its
    standard error; `moved` the share of questions in which it gains at all. `copied`: the share of prompts after which
    the model wrote the shown answer. `agreement`: of the answers it wrote that are one of the two, the share that is
    not weighed clearly less likely. `ends`: the share of prompts in which a shown answer is likelier than its own first
    words.
    """

    effect: float | None
    error: float | None
    moved: float | None
    copied: float
    agreement: float | None
    ends: float | None


def check_copying(
    backend: Backend, requests: Sequence[Request], tolerance: float, problems: list[str], *, labels: bool = False
) -> Copying | None:
    """Show answers and ask again; what is wrong goes to `problems`. `labels`: answers are weighed, never written."""
    chosen = list(_with_few_demos(requests[:TOLD]))
    told = [with_own_answer(request, reference) for request in chosen for reference in request.references]
    replies = backend.answer(told)
    if len(replies) != len(told):
        return None  # said already
    shown = [reference for request in chosen for reference in request.references]
    copied = float(np.mean([answer.casefold() in r.raw.casefold() for answer, r in zip(shown, replies, strict=True)]))
    if copied == 0.0 and len(told) >= FEWEST and not (labels and _only_weighed(shown, replies)):
        problems.append(
            f"none of {len(told)} answers that were shown beside the very question is written again: demonstrations do "
            "not reach the model, or it is not asked where an answer stands (check the prompt template)"
        )
    if replies[0].logprobs is None:
        return Copying(None, None, None, copied, None, None)
    effect, error, moved = _effect(replies, tolerance, problems)
    agreement = _agreement(told, replies, problems)
    ends = _check_ends(backend, chosen[:ENDS], tolerance, problems)
    return Copying(effect, error, moved, copied, agreement, ends)


def _with_few_demos(requests: Sequence[Request]) -> Iterator[Request]:
    """The requests with no demonstration and with one of another question, in turns."""
    known = max((request.demos for request in requests), key=len, default=())
    for place, request in enumerate(requests):
        asked = (request.query.question, request.query.image_id)
        others = [demo for demo in known if (demo.question, demo.image_id) != asked]
        yield replace(request, demos=tuple(others[: place % 2]), choose=False)


def _only_weighed(shown: Sequence[str], replies: Sequence[Reply]) -> bool:
    """Whether a model that repeats nothing still finds the shown answers likely, and writes something in their place.

    So does one that begins with other words, or whose `max_new_tokens` are too few. One that is asked at the wrong
    place ends at once, or finds nothing likely there.
    """
    logprobs = [reply.logprobs[place % 2] for place, reply in enumerate(replies) if reply.logprobs is not None]
    return bool(logprobs) and _likely(shown, logprobs) and any(reply.raw.strip() for reply in replies)


def _likely(answers: Sequence[str], logprobs: Sequence[float]) -> bool:
    """Whether a model might write these answers; on average over them."""
    limits = [-UNLIKELY - UNLIKELY_LETTER * len(answer) for answer in answers]
    return bool(np.mean(logprobs) >= np.mean(limits))


def with_own_answer(request: Request, answer: str) -> Request:
    """The request with its own question as the first demonstration, shown with that answer."""
    return replace(request, demos=(_answered(request.query, answer), *request.demos))


def _answered(query: Item, answer: str) -> Item:
    return replace(query, id=ItemId(f"{query.id}={answer}"), answers=(answer,))


def _effect(replies: Sequence[Reply], tolerance: float, problems: list[str]) -> tuple[float, float, float]:
    """What showing the right answer instead of the wrong one moves right over wrong: mean, its error, share above 0."""
    margins = np.array([right - wrong for right, wrong in (reply.logprobs or () for reply in replies)])
    gains = margins[0::2] - margins[1::2]  # (questions,), nats
    effect, moved = float(gains.mean()), int((gains > 0.0).sum())
    error = float(gains.std(ddof=1) / math.sqrt(len(gains))) if len(gains) > 1 else 0.0
    least = max(tolerance, 2.0 * error if len(gains) >= FEWEST else 0.0)
    if not effect > least or _at_most(moved, len(gains)) < FALSE_REFUSALS:
        problems.append(
            f"an answer shown beside the very question gains {effect:.2f} +- {error:.2f} nats on another answer, in "
            f"{moved} of {len(gains)} questions; every model that reads its prompt repeats what it is "
            "shown, so answers are not weighed where they should be (check the prompt template, the attention mask and "
            "the place of the answer)"
        )
    return effect, error, moved / len(gains)


def _at_most(moved: int, questions: int) -> float:
    """The probability that at most so many questions move although each does with probability USUALLY_MOVED."""
    chances = (
        math.comb(questions, count) * USUALLY_MOVED**count * (1.0 - USUALLY_MOVED) ** (questions - count)
        for count in range(moved + 1)
    )
    return sum(chances)


def _agreement(told: Sequence[Request], replies: Sequence[Reply], problems: list[str]) -> float | None:
    """What the model writes itself, word by word, is what it finds likelier, and likely at all."""
    agree, answers, logprobs = [], [], []
    for request, reply in zip(told, replies, strict=True):
        written, (right, wrong) = reply.raw.strip(), reply.logprobs or ()
        if written in request.references:
            own, other = (right, wrong) if written == request.references[0] else (wrong, right)
            agree.append(own > other - CLEARLY)
            answers.append(written)
            logprobs.append(own)
    if len(agree) < FEWEST:
        return None
    if agree.count(False) > max(1, len(agree) // DISAGREE):
        problems.append(
            f"of {len(agree)} answers that the model wrote itself, {agree.count(False)} are weighed clearly less "
            "likely than another one: answers are not weighed where the model writes them"
        )
    elif not _likely(answers, logprobs):
        problems.append(
            f"{len(agree)} answers that the model wrote itself are weighed at {np.mean(logprobs):.1f} nats on "
            "average, as if it would never write them: answers are not weighed where the model writes them"
        )
    return float(np.mean(agree))


def _check_ends(backend: Backend, requests: Sequence[Request], tolerance: float, problems: list[str]) -> float | None:
    """A longer answer that is shown can be likelier than its own beginning, if the end of an answer is weighed.

    Without the end marker it never can: whoever says "new york" has said "new".
    """
    if len(requests) < FEWEST or (isinstance(backend, KnowsFewAnswers) and backend.fixed_answers):
        return None
    asked = []
    for request in requests:
        longer = " ".join(request.references)
        example = _answered(request.query, longer)
        again = replace(example, id=ItemId(f"{example.id}="))
        asked.append(Request(request.query, (example, again), (request.references[0], longer), choose=True))
    pairs = [reply.logprobs or (0.0, 0.0) for reply in backend.answer(asked)]
    found = sum(longer - shorter > tolerance for shorter, longer in pairs)
    if found < LEAST_ENDS:
        problems.append(
            f"in {found} of {len(pairs)} prompts a shown answer is likelier than its own first words: what ends an "
            "answer is not weighed (check the end of the prompt template)"
        )
    return found / len(pairs)
