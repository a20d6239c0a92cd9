"""Before anything is scored: does the backend offer what the recipe needs, and did it pass its self-test?

A self-test that was passed is kept beside the store, by everything that could change its result, and not paid again.
One that was cut short goes on with the replies it has already paid for; one that failed is asked anew, because the user
may have mended the server meanwhile.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leverplus import catalog
from leverplus.backends.base import Backend, Reply, Request
from leverplus.errors import NotMeasured, ScoringError
from leverplus.maths.rewards import Evidence, Weights
from leverplus.scoring.scorer import Progress, Scorer
from leverplus.scoring.selftest import SHOTS, self_test
from leverplus.types import ItemId, Reference, Score

FILE = "selftests.jsonl"
TEST_VERSION = 4
"""Raised when the self-test asks or judges differently: what an older one found does not count then."""

TRAITS = ("tolerance", "unsteady", "fixed_answers", "prompt_text")
"""What a backend may say of itself to the self-test (the protocols KnowsRounding, KnowsUnsteady,
KnowsFewAnswers and ShowsPrompt)."""

ROUNDS = 6
"""About how often a self-test asks each of its prompts: together, backwards, alone, for its words, answers shown."""


def require_offered(backend: Backend, modes: Sequence[str], quality: str) -> None:
    """Refuse rewards that need log-probabilities of a backend that has none."""
    if getattr(backend, "weighs", True):
        return
    needing = [mode for mode in modes if _needs_logprobs(mode, Weights(quality=quality))]
    if needing:
        key = f'reward.mode = "{needing[0]}"' if len(modes) == 1 else f'reward.components with "{needing[0]}"'
        raise ScoringError(
            f"{key} needs log-probabilities of given answers, which this server does not offer; nothing was scored: "
            'set reward.mode = "soft_only" (and take out reward.components), or use a server that echoes prompts with '
            "log-probabilities, such as vLLM"
        )


def _needs_logprobs(mode: str, weights: Weights) -> bool:
    """Whether a reward raises when all but log-probabilities is known."""
    score = Score(ItemId("q"), (ItemId("d"),), "a", "a", 1.0, True, (Reference("a", 1, None),), 1.0, 1.0, 1, 0.0)
    reward = catalog.load(catalog.REWARDS, mode, "reward")
    try:
        reward(Evidence(score, prefix=score, log_mu=-1.0, rivals=(score, score), expected=1.0), weights)
    except NotMeasured:
        return True
    return False


@dataclass(frozen=True)
class PassedSelfTest:
    """A self-test that was passed: what it measured, and what the user should know of it ("": nothing)."""

    note: str
    found: Mapping[str, Any]


def require_trust(
    scorer: Scorer, folder: Path, *, trained: bool, progress: Progress, most: int = max(SHOTS)
) -> PassedSelfTest | None:
    """Run the self-test unless it was passed before; ScoringError when the backend fails it.

    `most` is the largest number of demonstrations that the run shows.
    None where scores of this model were believed before.
    """
    if scorer.store.count(scorer.context):
        return None
    key = hashlib.sha256(f"{scorer.context.canonical}\n{TEST_VERSION}\n{trained}".encode()).hexdigest()[:32]
    known = _passed(folder / FILE).get(key)
    if known is not None:
        return known
    watched = WatchedBackend(scorer.backend, progress)
    try:
        found = self_test(scorer.task, watched, trained=trained, most=most)
    except ScoringError:
        if not watched.failed:  # it was the judgement that failed, not the asking
            watched.judged()
        raise
    finally:
        watched.end()
    passed = PassedSelfTest(found.note, asdict(found))
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": key, **asdict(passed)}) + "\n")
    watched.judged()
    return passed


def _passed(path: Path) -> dict[str, PassedSelfTest]:
    """The self-tests that were passed; a line that a killed process left unfinished does not count."""
    if not path.is_file():
        return {}
    found: dict[str, PassedSelfTest] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and {"key", "note", "found"} <= set(row):
            found[str(row["key"])] = PassedSelfTest(str(row["note"]), row["found"])
    return found


class WatchedBackend:
    """A backend whose every reply moves a progress bar; `failed` when it was the backend that raised."""

    def __init__(self, backend: Backend, progress: Progress) -> None:
        self.backend, self.progress = backend, progress
        self.failed, self.done, self.total = False, 0, 0
        self.judged: Callable[[], None] = getattr(backend, "judged", lambda: None)
        # only what the backend has: the self-test asks who offers it
        for name in TRAITS:
            if hasattr(backend, name):
                setattr(self, name, getattr(backend, name))
        if hasattr(backend, "answer_span"):
            self.answer_span = self._answer_span
        if hasattr(backend, "heard"):
            backend.heard = self._heard

    def fingerprint(self) -> Mapping[str, str]:
        return self.backend.fingerprint()

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        if not self.total:
            self.total = ROUNDS * len(requests)
            self._heard(0)
        before = self.done
        replies: list[Reply] = self._guarded(lambda: self.backend.answer(requests))
        if self.done == before:  # a backend that answers all at once
            self._heard(len(replies))
        return replies

    def _answer_span(self, request: Request, reference: str) -> str:
        backend: Any = self.backend
        span: str = self._guarded(lambda: backend.answer_span(request, reference))
        self._heard(1)
        return span

    def end(self) -> None:
        """Take the bar away."""
        if hasattr(self.backend, "heard"):
            self.backend.heard = lambda _count: None
        self.progress("self-test", self.done, self.done)

    def _heard(self, count: int) -> None:
        self.done += count
        self.progress("self-test", self.done, max(self.total, self.done + 1))

    def _guarded(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except BaseException:
            self.failed = True
            raise
