"""Evidence that answers are weighed where they should be, from a model that need not know its task: models copy.

A question is shown as a demonstration with an answer, then asked again. Every pretrained model then finds the shown
answer likelier than if another one had been shown. With answers weighed at the wrong place, a prompt that is cut or
shuffled, or a mask that hides the demonstrations, it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from leverplus.backends.base import Backend, Reply, Request
from leverplus.types import Item, ItemId

TOLD = 12
"""Questions that are shown with an answer and asked again: once with the right one, once with a wrong one."""

ENDS, LEAST_ENDS = 8, 2
"""Questions that are shown with a longer answer, to see whether the end of an answer is weighed; in so many it must
show. SmolLM2 has 7 of 9 and more; with a mask that looks ahead 1 of 9."""

LEAST_MOVED = 0.75
"""The share of questions whose margin must move the right way. SmolLM2 has 1.0; 0.67 with the query asked first."""

FEWEST = 4
"""So many prompts at least, before a share or a standard error says anything."""

DISAGREE = 8
"""One answer in so many may be written although another is weighed likelier: two were equally likely."""


UNLIKELY, UNLIKELY_LETTER = 10.0, 0.5
"""Nats, for an answer and for each of its letters, beyond which nobody would have written it greedily. SmolLM2 has 2
to 8 for what it writes, and 22 to 38 for the same with tokens in another order or one place off."""

Margins = npt.NDArray[np.float64]


@runtime_checkable
class KnowsFewAnswers(Protocol):
    """A backend that weighs only answers of its own language, so that none can be made longer."""

    fixed_answers: bool


@dataclass(frozen=True)
class Copying:
    """What showing an answer does. None where it was not measured: no log-probabilities, or nothing to count.

    `effect`: by how many nats the shown answer gains on the other one, right shown against wrong shown; `error` its
    standard error. `copied`: the share of prompts after which the model wrote the shown answer. `agreement`: of the
    answers it wrote that are one of the two, the share that is also weighed likelier.
    """

    effect: float | None
    error: float | None
    copied: float
    agreement: float | None


def check_copying(
    backend: Backend, requests: Sequence[Request], tolerance: float, problems: list[str]
) -> Copying | None:
    """Show answers and ask again; what is wrong goes to `problems`."""
    chosen = list(requests[:TOLD])
    told = [showing(request, reference) for request in chosen for reference in request.references]
    replies = backend.answer(told)
    if len(replies) != len(told):
        return None  # said already
    shown = [reference for request in chosen for reference in request.references]
    copied = float(np.mean([answer.casefold() in r.raw.casefold() for answer, r in zip(shown, replies, strict=True)]))
    if copied == 0.0 and len(told) >= FEWEST:
        problems.append(
            f"none of {len(told)} answers that were shown beside the very question is written again: demonstrations do "
            "not reach the model, or it is not asked where an answer stands (check the prompt template)"
        )
    if replies[0].logprobs is None:
        return Copying(None, None, copied, None)
    moved = _moved(replies)
    effect = float(moved.mean())
    error = float(moved.std(ddof=1) / math.sqrt(len(moved))) if len(moved) > 1 else 0.0
    least = max(tolerance, 2.0 * error if len(moved) >= FEWEST else 0.0)
    if not effect > least or np.mean(moved > 0.0) < LEAST_MOVED:
        problems.append(
            f"an answer shown beside the very question gains {effect:.2f} +- {error:.2f} nats on another answer, in "
            f"{int((moved > 0.0).sum())} of {len(moved)} prompts; every model that reads its prompt repeats what it is "
            "shown, so answers are not weighed where they should be (check the prompt template, the attention mask and "
            "the place of the answer)"
        )
    agreement = _agreement(told, replies, problems)
    _check_ends(backend, chosen[:ENDS], tolerance, problems)
    return Copying(effect, error, copied, agreement)


def showing(request: Request, answer: str) -> Request:
    """The request with its own question as the first demonstration, shown with that answer."""
    return replace(request, demos=(_answered(request.query, answer), *request.demos))


def _answered(query: Item, answer: str) -> Item:
    return replace(query, id=ItemId(f"{query.id}={answer}"), answers=(answer,))


def _moved(replies: Sequence[Reply]) -> Margins:
    """For every question: what showing its right answer instead of the wrong one moves right over wrong (nats)."""
    margins = np.array([right - wrong for right, wrong in (reply.logprobs or () for reply in replies)])
    moved: Margins = margins[0::2] - margins[1::2]
    return moved


def _agreement(told: Sequence[Request], replies: Sequence[Reply], problems: list[str]) -> float | None:
    """What the model writes itself, word by word, is what it finds likelier, and likely at all."""
    agree, written_logprobs, expected = [], [], []
    for request, reply in zip(told, replies, strict=True):
        written, (right, wrong) = reply.raw.strip(), reply.logprobs or ()
        if written in request.references:
            first = written == request.references[0]
            agree.append((right > wrong) == first)
            written_logprobs.append(right if first else wrong)
            expected.append(-UNLIKELY - UNLIKELY_LETTER * len(written))
    if len(agree) < FEWEST:
        return None
    if agree.count(False) > len(agree) // DISAGREE:
        problems.append(
            f"of {len(agree)} answers that the model wrote itself, {agree.count(False)} are weighed less likely than "
            "another one: answers are not weighed where the model writes them"
        )
    elif np.mean(written_logprobs) < np.mean(expected):
        problems.append(
            f"{len(agree)} answers that the model wrote itself are weighed at {np.mean(written_logprobs):.1f} nats on "
            "average, as if it would never write them: answers are not weighed where the model writes them"
        )
    return float(np.mean(agree))


def _check_ends(backend: Backend, requests: Sequence[Request], tolerance: float, problems: list[str]) -> None:
    """A longer answer that is shown can be likelier than its own beginning, if the end of an answer is weighed.

    Without the end marker it never can: whoever says "new york" has said "new".
    """
    if len(requests) < FEWEST or (isinstance(backend, KnowsFewAnswers) and backend.fixed_answers):
        return
    asked = []
    for request in requests:
        longer = " ".join(request.references)
        example = _answered(request.query, longer)
        again = replace(example, id=ItemId(f"{example.id}="))
        asked.append(Request(request.query, (example, again), (request.references[0], longer)))
    pairs = [reply.logprobs or (0.0, 0.0) for reply in backend.answer(asked)]
    found = sum(longer - shorter > tolerance for shorter, longer in pairs)
    if found < LEAST_ENDS:
        problems.append(
            f"in {found} of {len(pairs)} prompts a shown answer is likelier than its own first words: what ends an "
            "answer is not weighed (check the end of the prompt template)"
        )
