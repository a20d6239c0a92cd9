"""The scorer: what was measured once is never asked again, and every answer is committed before the next is asked for.

A call is one prompt (query, ordered demonstrations). Calls are counted as distinct prompts asked for, whether or not
the store already held them, apart for training (with dev selection) and for evaluation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from leverplus.backends.base import Backend, Reply, Request
from leverplus.engine.base import Engine
from leverplus.errors import ScoringError
from leverplus.metrics import edit_similarity, metric_named, normalise_answer, postprocess_named, token_f1
from leverplus.store.db import ScoreStore
from leverplus.store.keys import Context, item_digest, score_key
from leverplus.tasks.base import Task
from leverplus.types import Demos, Item, ItemId, Reference, Score

Prompt = tuple[ItemId, Demos]
Progress = Callable[[str, int, int], None]
"""(what, done, total), called as scoring goes on."""

CHUNK = 512
"""Prompts asked and committed together: what a crash can cost at most."""

TRAINING, EVALUATION = "training", "evaluation"


@dataclass
class Meter:
    """Distinct prompts asked for, by purpose, and what the model itself had to do."""

    asked: dict[str, set[bytes]] = field(default_factory=lambda: {TRAINING: set(), EVALUATION: set()})
    fresh: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def calls(self, purpose: str) -> int:
        return len(self.asked[purpose])


@dataclass
class Scorer:
    """Scores of prompts for one task and one frozen model, from a store or measured now."""

    task: Task
    backend: Backend
    store: ScoreStore
    engine: Engine
    meter: Meter = field(default_factory=Meter)
    progress: Progress | None = None
    chunk: int = CHUNK

    @cached_property
    def context(self) -> Context:
        return Context.of(
            dict(self.backend.fingerprint()),
            task=self.task.name,
            task_version=self.task.version,
            metric=self.task.metric,
            postprocess=self.task.postprocess,
        )

    @cached_property
    def _digests(self) -> dict[tuple[ItemId, str], bytes]:
        return {}

    def digest(self, item: Item, role: str) -> bytes:
        known = self._digests.get((item.id, role))
        if known is None:
            picture = self.task.image_digest(item)
            known = item_digest(item, picture, role="query" if role == "query" else "demo")
            self._digests[item.id, role] = known
        return known

    def key(self, prompt: Prompt) -> bytes:
        query, demos = prompt
        if len(set(demos)) != len(demos):
            raise ScoringError(f"query {query}: a demonstration occurs twice in {', '.join(demos)}")
        if query in demos:
            raise ScoringError(f"query {query} is among its own demonstrations")
        digests = [self.digest(self.task.item(demo), "demo") for demo in demos]
        return score_key(self.context.digest, self.digest(self.task.item(query), "query"), digests)

    def score(self, prompts: Sequence[Prompt], purpose: str = TRAINING, what: str = "scoring") -> list[Score]:
        """The scores of prompts, in order; what the store does not hold is measured and committed chunk by chunk."""
        keys = [self.key(prompt) for prompt in prompts]
        self.meter.asked[purpose].update(keys)
        known = self.store.get(keys)
        wanted = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in known}
        if wanted:
            known |= self._measure(wanted, what)
        return [known[key] for key in keys]

    def _measure(self, wanted: dict[bytes, Prompt], what: str) -> dict[bytes, Score]:
        ordered = sorted(wanted, key=lambda key: (len(wanted[key][1]), wanted[key][1], wanted[key][0]))
        chunks = [ordered[start : start + self.chunk] for start in range(0, len(ordered), self.chunk)]
        requests = [[self._request(wanted[key]) for key in chunk] for chunk in chunks]
        found: dict[bytes, Score] = {}
        self._tell(what, 0, len(ordered))
        for number, replies, seconds in self.engine.run(requests):
            share = seconds / max(1, len(replies))
            scores = [
                self.judge(request, reply, share) for request, reply in zip(requests[number], replies, strict=True)
            ]
            records = list(zip(chunks[number], scores, strict=True))
            self.store.put(self.context, records)
            found.update(records)
            self.meter.fresh += len(scores)
            self.meter.tokens += sum(score.tokens for score in scores)
            self.meter.seconds += seconds
            self._tell(what, len(found), len(ordered))
        if len(found) != len(ordered):
            raise ScoringError(f"{len(ordered) - len(found)} of {len(ordered)} prompts were not answered; run it again")
        return found

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)

    def _request(self, prompt: Prompt) -> Request:
        query = self.task.item(prompt[0])
        return Request(query, tuple(self.task.item(demo) for demo in prompt[1]), tuple(reference_counts(query)))

    def judge(self, request: Request, reply: Reply, seconds: float) -> Score:
        """A score from a reply: the answer cut out, the official metric, the references weighed."""
        query = request.query
        answer = postprocess_named(self.task.postprocess)(reply.raw)
        accuracy = metric_named(self.task.metric)(answer, query.answers)
        counts = reference_counts(query)
        logprobs = reply.logprobs if reply.logprobs is not None else [None] * len(counts)
        return Score(
            query=query.id,
            demos=tuple(demo.id for demo in request.demos),
            raw=reply.raw,
            answer=answer,
            accuracy=accuracy,
            correct=accuracy > 0,
            references=tuple(
                Reference(text, count, logprob) for (text, count), logprob in zip(counts.items(), logprobs, strict=True)
            ),
            token_f1=token_f1(answer, query.answers),
            edit_similarity=edit_similarity(answer, query.answers),
            tokens=reply.tokens,
            seconds=seconds,
        )


def reference_counts(item: Item) -> dict[str, int]:
    """Distinct normalised references of an item with how often they were given; those that normalise to nothing are
    left out."""
    counts = Counter(normalise_answer(answer) for answer in item.answers)
    counts.pop("", None)
    if not counts:
        raise ScoringError(f"item {item.id} has no usable reference answer, so nothing can be scored on it")
    return dict(counts)
