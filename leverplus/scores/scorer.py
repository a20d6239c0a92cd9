"""The scorer: what was measured once is never asked again, and every answer is committed when it comes.

A call is one prompt (query, ordered demonstrations). Calls are counted as distinct prompts asked for, whether or not
the store already held them, apart for training (with dev selection) and for evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from leverplus.data.metrics.text import edit_similarity, token_f1
from leverplus.data.tasks.base import HasLabels, Task
from leverplus.data.types import Demos, Item, ItemId, Reference, Score
from leverplus.errors import ScoringError
from leverplus.models.base import (
    Answered,
    Backend,
    Engine,
    Recorded,
    Reply,
    Request,
)
from leverplus.scores.keys import Context, Role, item_digest, score_key
from leverplus.scores.records import StoredRow, seal
from leverplus.scores.store import ScoreStore

Prompt = tuple[ItemId, Demos]
Progress = Callable[[str, int, int], None]
"""(what, done, total), called as scoring goes on."""

CHUNK = 512
"""Prompts that a model in this process is asked together: what a crash can cost at most. A server's replies are
committed one by one."""

TRAINING, EVALUATION, ADVICE = "training", "evaluation", "advice"


@dataclass
class CallMeter:
    """Distinct prompts asked for, by purpose, and what the model itself had to do."""

    asked: dict[str, set[bytes]] = field(
        default_factory=lambda: {TRAINING: set(), EVALUATION: set(), ADVICE: set()}
    )
    keep: Callable[[set[bytes]], None] = lambda _new: None
    """Told of every prompt that training asks for the first time, before it is asked."""
    fresh: int = 0
    unlabelled: int = 0
    """Empty answers to a task with labels, which a model that weighs labels never gives."""
    tokens: int = 0
    seconds: float = 0.0

    def count(self, purpose: str, keys: Iterable[bytes]) -> None:
        """Note prompts that are asked for."""
        new = set(keys) - self.asked[purpose]
        if new and purpose == TRAINING:
            self.keep(new)
        self.asked[purpose] |= new

    def calls(self, purpose: str) -> int:
        return len(self.asked[purpose])


@dataclass
class Scorer:
    """Scores of prompts for one task and one frozen model, from a store or measured now."""

    task: Task
    backend: Backend
    store: ScoreStore
    engine: Engine
    meter: CallMeter = field(default_factory=CallMeter)
    progress: Progress | None = None
    chunk: int = CHUNK

    @cached_property
    def context(self) -> Context:
        return Context.of(
            dict(self.backend.fingerprint()),
            task=self.task.name,
            task_version=self.task.version,
            metric=self.task.answers.metric,
            cut=self.task.answers.cut,
        )

    @cached_property
    def _digests(self) -> dict[tuple[ItemId, Role], bytes]:
        return {}

    def digest(self, item_id: ItemId, role: Role) -> bytes:
        """The digest of an item as it would be shown; an item that cannot be shown so is refused."""
        known = self._digests.get((item_id, role))
        if known is None:
            item = self.task.item(item_id)
            if role == "query":
                self.task.answers.weighed_references(item)
            elif not item.answers or not item.answer.strip():
                raise ScoringError(
                    f"item {item_id} has an empty answer, so it cannot be shown as a demonstration; "
                    "run `lever task check` to find such items"
                )
            known = item_digest(item, self.task.image_digest(item), role=role)
            self._digests[item_id, role] = known
        return known

    def key(self, prompt: Prompt) -> bytes:
        """The store's key of a prompt; ScoringError or DataError when it is not one that can be asked."""
        query, demos = prompt
        if len(set(demos)) != len(demos):
            raise ScoringError(
                f"query {query}: a demonstration occurs twice in {', '.join(demos)}; show it once"
            )
        if query in demos:
            raise ScoringError(
                f"query {query} is among its own demonstrations; take it out of the sequence"
            )
        digests = [self.digest(demo, "demo") for demo in demos]
        return score_key(self.context.digest, self.digest(query, "query"), digests)

    def score(
        self, prompts: Sequence[Prompt], purpose: str = TRAINING, what: str = "scoring"
    ) -> list[Score]:
        """The scores of prompts, in order; what the store does not hold is measured and committed as it comes."""
        keys = [self.key(prompt) for prompt in prompts]
        self.meter.count(purpose, keys)
        if isinstance(self.backend, Recorded):
            return self.backend.scores(prompts)
        known = self.store.get(keys)
        wanted = dict(zip(keys, prompts, strict=True))
        for key in known:
            del wanted[key]
        if wanted:
            known |= self._measure(wanted, what)
        return [known[key] for key in keys]

    def known(self, prompts: Sequence[Prompt]) -> list[Score]:
        """The scores of those prompts that were measured before; nothing is asked or counted."""
        if isinstance(self.backend, Recorded):
            return self.backend.scores(prompts)
        found = self.store.get([self.key(prompt) for prompt in prompts])
        return list(found.values())

    def _measure(self, wanted: dict[bytes, Prompt], what: str) -> dict[bytes, Score]:
        # Prompts with the same leading demonstrations stand together.
        def order(key: bytes) -> tuple[int, Demos, ItemId]:
            query, demos = wanted[key]
            return len(demos), demos, query

        keys = sorted(wanted, key=order)
        requests = [self.request(wanted[key]) for key in keys]
        found: dict[bytes, Score] = {}
        self._tell(what, 0, len(keys))
        # closed at once when something fails here: what is under way at a server is waited for, not left to a collector
        try:
            with closing(self.engine.run(requests, self.chunk)) as coming:
                for answered in coming:
                    found |= self._commit(keys, requests, answered)
                    self._tell(what, len(found), len(keys))
        except BaseException:
            # what was spent on others meanwhile is noted
            self._tell(what, len(found), len(keys))
            raise
        if len(found) != len(keys):
            raise ScoringError(
                f"{len(keys) - len(found)} of {len(keys)} prompts were not answered; run it again"
            )
        forget = getattr(self.backend, "forget", lambda: None)
        forget()
        return found

    def _commit(
        self,
        keys: Sequence[bytes],
        requests: Sequence[Request],
        answered: Sequence[Answered],
    ) -> dict[bytes, Score]:
        """Store what came in one transaction; a reply that must not be stored raises after all others are stored."""
        scores: dict[bytes, Score] = {}
        rows: list[StoredRow] = []
        problem: ScoringError | None = None
        for place, reply, seconds in answered:
            try:
                score = self.judge(requests[place], reply, seconds)
                rows.append(seal(self.context.digest, keys[place], score))
                scores[keys[place]] = score
            except ScoringError as error:
                problem = problem or error
        self.store.put_rows(self.context, rows)
        meter = self.meter
        meter.fresh += len(scores)
        for score in scores.values():
            meter.unlabelled += bool(self.labels) and not score.answer
            meter.tokens += score.tokens
            meter.seconds += score.seconds
        if problem is not None:
            raise problem
        return scores

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Every label of a classification task as it is weighed; empty where answers are free."""
        known = self.task.labels if isinstance(self.task, HasLabels) else ()
        return self.task.answers.label_texts(known)

    def weighed(self, query: Item) -> Mapping[str, int]:
        """The answers whose log-probabilities are wanted: all labels, or the query's references, with their counts."""
        counts = self.task.answers.weighed_references(query)
        if not self.labels:
            return counts
        for answer in counts:
            if answer not in self.labels:
                raise ScoringError(
                    f"item {query.id} has the label '{answer}'; known: {', '.join(self.labels)}"
                )
        return {label: counts.get(label, 0) for label in self.labels}

    def request(self, prompt: Prompt) -> Request:
        """What the backend is asked for a prompt."""
        query = self.task.item(prompt[0])
        demos = tuple(self.task.item(demo) for demo in prompt[1])
        return Request(
            query, demos, tuple(self.weighed(query)), choose=bool(self.labels)
        )

    def judge(self, request: Request, reply: Reply, seconds: float) -> Score:
        """A score from a reply: the answer cut out, the official metric, the references weighed.

        Among labels the likeliest is the answer, whatever the model would have written.
        """
        query = request.query
        rules = self.task.answers
        raw = reply.raw
        counts = self.weighed(query)
        logprobs: Sequence[float | None] = [None] * len(counts)
        if reply.logprobs is not None:
            logprobs = reply.logprobs
            if self.labels:
                raw = self.labels[reply.logprobs.index(max(reply.logprobs))]
        if len(logprobs) != len(counts):
            raise ScoringError(
                f"query {query.id}: {len(counts)} references but {len(logprobs)} log-probabilities"
            )
        answer = rules.cut_answer(raw)
        accuracy = rules.score(answer, query)
        words, letters = _likeness(answer, query.answers)
        return Score(
            query=query.id,
            demos=tuple(demo.id for demo in request.demos),
            raw=raw,
            answer=answer,
            accuracy=accuracy,
            correct=accuracy > 0,
            references=tuple(map(Reference, counts, counts.values(), logprobs)),
            token_f1=words,
            edit_similarity=letters,
            tokens=reply.tokens,
            seconds=seconds,
        )


@lru_cache(maxsize=1 << 16)
def _likeness(answer: str, references: tuple[str, ...]) -> tuple[float, float]:
    """Shared words and letters; a query's candidates often get the same text."""
    return token_f1(answer, references), edit_similarity(answer, references)
