"""The scorer: what was measured once is never asked again, and every answer is committed when it comes.

A call is one prompt (query, ordered demonstrations). Calls are counted as distinct prompts asked for, whether or not
the store already held them, apart for training (with dev selection) and for evaluation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import NamedTuple

from leverplus.backends.base import Answered, Backend, Recorded, Reply, Request
from leverplus.engine.base import Engine
from leverplus.errors import ScoringError
from leverplus.metrics import edit_similarity, metric_named, normalise_answer, postprocess_named, token_f1
from leverplus.store.db import ScoreStore
from leverplus.store.keys import Context, Role, item_digest, score_key
from leverplus.store.records import StoredRow, seal
from leverplus.tasks.base import HasLabels, Task
from leverplus.types import Demos, Item, ItemId, Reference, Score

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

    asked: dict[str, set[bytes]] = field(default_factory=lambda: {TRAINING: set(), EVALUATION: set(), ADVICE: set()})
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
            metric=self.task.metric,
            postprocess=self.task.postprocess,
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
                reference_counts(item)
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
            raise ScoringError(f"query {query}: a demonstration occurs twice in {', '.join(demos)}; show it once")
        if query in demos:
            raise ScoringError(f"query {query} is among its own demonstrations; take it out of the sequence")
        digests = [self.digest(demo, "demo") for demo in demos]
        return score_key(self.context.digest, self.digest(query, "query"), digests)

    def score(self, prompts: Sequence[Prompt], purpose: str = TRAINING, what: str = "scoring") -> list[Score]:
        """The scores of prompts, in order; what the store does not hold is measured and committed as it comes."""
        keys = [self.key(prompt) for prompt in prompts]
        self.meter.count(purpose, keys)
        if isinstance(self.backend, Recorded):
            return self.backend.scores(prompts)
        known = self.store.get(keys)
        wanted = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in known}
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
        ordered = sorted(wanted, key=lambda key: (len(wanted[key][1]), wanted[key][1], wanted[key][0]))
        requests = [self.request(wanted[key]) for key in ordered]
        found: dict[bytes, Score] = {}
        self._tell(what, 0, len(ordered))
        # closed at once when something fails here: what is under way at a server is waited for, not left to a collector
        try:
            with closing(self.engine.run(requests, self.chunk)) as coming:
                for answered in coming:
                    found.update(self._commit(ordered, requests, answered))
                    self._tell(what, len(found), len(ordered))
        except BaseException:
            self._tell(what, len(found), len(ordered))  # what was spent on others meanwhile is noted
            raise
        if len(found) != len(ordered):
            raise ScoringError(f"{len(ordered) - len(found)} of {len(ordered)} prompts were not answered; run it again")
        return found

    def _commit(
        self, keys: Sequence[bytes], requests: Sequence[Request], answered: Sequence[Answered]
    ) -> list[tuple[bytes, Score]]:
        """Store what came in one transaction; a reply that must not be stored raises after all others are stored."""
        records: list[tuple[bytes, Score]] = []
        rows: list[StoredRow] = []
        problem: ScoringError | None = None
        for place, reply, seconds in answered:
            try:
                score = self.judge(requests[place], reply, seconds)
                rows.append(seal(self.context.digest, keys[place], score))
                records.append((keys[place], score))
            except ScoringError as error:
                problem = problem or error
        self.store.put_rows(self.context, rows)
        self.meter.fresh += len(records)
        self.meter.unlabelled += sum(not score.answer for _, score in records) if self.labels else 0
        self.meter.tokens += sum(score.tokens for _, score in records)
        self.meter.seconds += sum(score.seconds for _, score in records)
        if problem is not None:
            raise problem
        return records

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Every label of a classification task, normalised; empty where answers are free."""
        known = self.task.labels if isinstance(self.task, HasLabels) else ()
        return tuple(dict.fromkeys(normalise_answer(label) or label.strip() for label in known))

    def weighed(self, query: Item) -> Mapping[str, int]:
        """The answers whose log-probabilities are wanted: all labels, or the query's references, with their counts."""
        counts = reference_counts(query)
        if not self.labels:
            return counts
        strange = [answer for answer in counts if answer not in self.labels]
        if strange:
            raise ScoringError(f"item {query.id} has the label '{strange[0]}'; known: {', '.join(self.labels)}")
        return {label: counts.get(label, 0) for label in self.labels}

    def request(self, prompt: Prompt) -> Request:
        """What the backend is asked for a prompt."""
        query = self.task.item(prompt[0])
        demos = tuple(self.task.item(demo) for demo in prompt[1])
        return Request(query, demos, tuple(self.weighed(query)), choose=bool(self.labels))

    def judge(self, request: Request, reply: Reply, seconds: float) -> Score:
        """A score from a reply: the answer cut out, the official metric, the references weighed.

        Among labels the likeliest is the answer, whatever the model would have written.
        """
        query = request.query
        raw, counts = reply.raw, self.weighed(query)
        if self.labels and reply.logprobs is not None:
            raw = self.labels[max(range(len(reply.logprobs)), key=reply.logprobs.__getitem__)]
        verdict = _verdict(self.task.postprocess, self.task.metric, raw, query.answers)
        logprobs = reply.logprobs if reply.logprobs is not None else [None] * len(counts)
        if len(logprobs) != len(counts):
            raise ScoringError(f"query {query.id}: {len(counts)} references but {len(logprobs)} log-probabilities")
        return Score(
            query=query.id,
            demos=tuple(demo.id for demo in request.demos),
            raw=raw,
            answer=verdict.answer,
            accuracy=verdict.accuracy,
            correct=verdict.accuracy > 0,
            references=tuple(
                Reference(text, count, logprob) for (text, count), logprob in zip(counts.items(), logprobs, strict=True)
            ),
            token_f1=verdict.token_f1,
            edit_similarity=verdict.edit_similarity,
            tokens=reply.tokens,
            seconds=seconds,
        )


class _Verdict(NamedTuple):
    answer: str
    accuracy: float
    token_f1: float
    edit_similarity: float


@lru_cache(maxsize=1 << 16)
def _verdict(postprocess: str, metric: str, raw: str, answers: tuple[str, ...]) -> _Verdict:
    """What raw text is worth against the annotators' answers; a query's candidates often get the same text."""
    answer = postprocess_named(postprocess)(raw)
    # nothing is never right: to the official metric "" is the same as "A", an article that normalises to nothing
    accuracy = metric_named(metric)(answer, answers) if answer else 0.0
    return _Verdict(answer, accuracy, token_f1(answer, answers), edit_similarity(answer, answers))


def reference_counts(item: Item) -> Mapping[str, int]:
    """Distinct normalised references of an item with how often they were given; those that normalise to nothing are
    left out, unless there are no others: then they stand as they are, as the label "A" does, which is an article."""
    counts = _reference_counts(item.answers)
    if not counts:
        raise ScoringError(
            f"item {item.id} has no usable reference answer, so nothing can be scored on it; "
            "task.skip_empty = true leaves such items out, `lever task check` finds them"
        )
    return counts


@lru_cache(maxsize=1 << 16)
def _reference_counts(answers: tuple[str, ...]) -> Mapping[str, int]:
    counts = Counter(normalise_answer(answer) for answer in answers)
    counts.pop("", None)
    return MappingProxyType(dict(counts or Counter(answer.strip() for answer in answers if answer.strip())))


def prefixes_of(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Every leading run of every prompt's demonstrations, the bare query and the prompt itself included, each once."""
    runs = ((query, demos[:length]) for query, demos in prompts for length in range(len(demos) + 1))
    return list(dict.fromkeys(runs))


def info_score(score: Score, without: Score) -> float:
    """InfoScore, the gain of one demonstration: the probability of the truth with it, less that without it.

    `without` is the stored score of the same query without the first or the last demonstration, whichever was added.
    """
    if without.query != score.query or without.demos not in (score.demos[:-1], score.demos[1:]) or not score.demos:
        raise ScoringError(
            f"the gain of a demonstration for query {score.query} with ({', '.join(score.demos)}) needs the score "
            f"without its last or first one, not that of query {without.query} with ({', '.join(without.demos)})"
        )
    return score.gt_prob - without.gt_prob
