"""The engine that runs on a Ray cluster: model copies in actors, one chunk each at a time, results to one writer.

Only the caller writes to the store. A chunk whose worker died, or does not answer in time, is asked again on a live
one, so every chunk is yielded once and a lost worker costs at most its chunk. Actors restart by themselves where the
cluster has room for them; one that cannot start again is simply not used. Actor tasks are never retried by Ray itself:
a task bound to an actor that finds no node would wait for ever.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leverplus.backends.base import Answered, Backend, Request, Streams
from leverplus.engine.base import answered_chunk, chunk_starts
from leverplus.errors import LeverError, ScoringError

PATIENCE = 300.0
"""Seconds without any live worker after which the engine gives up; what was committed stays."""

HUNG_AFTER = 1800.0
"""Seconds a worker may take for a chunk."""

HUNG_CHUNK = 3
"""A chunk on which so many workers hang is the trouble itself."""


@dataclass(frozen=True)
class RayBatch:
    """What a worker made of a chunk: the replies, what a server charged for them, and why it stopped before the end."""

    answered: list[Answered]
    charged: Mapping[str, float]
    problem: LeverError | None = None


class RayWorker:
    """Lives in an actor: one copy of the model."""

    def __init__(self, factory: Callable[[], Backend]) -> None:
        self.backend = factory()

    def ready(self) -> tuple[dict[str, str], str, int]:
        """The fingerprint of this copy, the node it lives on and its process."""
        import os

        import ray

        return dict(self.backend.fingerprint()), str(ray.get_runtime_context().get_node_id()), os.getpid()

    def answer(self, requests: Sequence[Request], start: int) -> RayBatch:
        """Answer the chunk that begins at `start`; where replies are paid for one by one, a failure drops none."""
        before = self._usage()
        answered: list[Answered] = []
        try:
            if isinstance(self.backend, Streams):
                for part in self.backend.stream(requests):
                    answered += [one._replace(place=start + one.place) for one in part]
            else:
                began = time.perf_counter()
                replies = self.backend.answer(requests)
                answered = answered_chunk(start, len(requests), replies, time.perf_counter() - began)
        except LeverError as error:
            return RayBatch(answered, self._charged_since(before), error)
        return RayBatch(answered, self._charged_since(before))

    def _usage(self) -> dict[str, float]:
        usage = getattr(self.backend, "usage", None)
        return {} if usage is None else dict(usage())

    def _charged_since(self, before: Mapping[str, float]) -> dict[str, float]:
        return {name: value - before[name] for name, value in self._usage().items()}


@dataclass
class _Asked:
    """A chunk that an actor works on, and when it has to be done."""

    start: int
    actor: Any
    deadline: float


@dataclass
class _Work:
    """Chunks that wait, free actors, what is asked by task, actors that have to show themselves, chunks that hung."""

    waiting: deque[int]
    free: list[Any] = field(default_factory=list)
    asked: dict[Any, _Asked] = field(default_factory=dict)
    absent: dict[Any, Any] = field(default_factory=dict)
    hung: Counter[int] = field(default_factory=Counter)


class RayEngine:
    """Asks copies of a backend on a cluster. `fingerprint` is what every copy must have: else scores would be mixed.

    `workers` copies, each with a GPU where the cluster has any, else with a CPU; 0: as many as there are. Connects to
    the cluster of RAY_ADDRESS, or starts one on this machine. `repeated` counts chunks asked again after a loss.
    `hung_after` bounds the seconds of a chunk, `most` its prompts (0: as the caller says); `charged` is told what
    workers paid to a server.
    """

    def __init__(
        self,
        factory: Callable[[], Backend],
        fingerprint: Mapping[str, str],
        *,
        workers: int = 0,
        patience: float = PATIENCE,
        hung_after: float = HUNG_AFTER,
        most: int = 0,
        charged: Callable[[Mapping[str, float]], None] = lambda _values: None,
    ) -> None:
        self.factory, self.fingerprint = factory, dict(fingerprint)
        self.workers, self.patience, self.hung_after = workers, patience, hung_after
        self.most, self.charged = most, charged
        self.repeated = 0
        self._actors: list[Any] = []

    def run(self, requests: Sequence[Request], chunk: int) -> Generator[list[Answered], None, None]:
        if not requests:
            return
        size = min(chunk, self.most or chunk)
        starts = chunk_starts(requests, size)
        work = _Work(deque(starts))
        for actor in self._started():
            self._expect(work, actor)
        for _ in starts:
            batch = None
            while batch is None:
                task = self._next_task(work)
                if task is None:
                    self._give_up_hung(work)
                elif task in work.absent:
                    self._admit(work, task)
                else:
                    batch = self._collect(work, task)
                while work.free and work.waiting:
                    actor, start = work.free.pop(), work.waiting.popleft()
                    asked = actor.answer.remote(requests[start : start + size], start)
                    work.asked[asked] = _Asked(start, actor, time.monotonic() + self.hung_after)
            if batch.charged:
                self.charged(batch.charged)
            if batch.answered:
                yield batch.answered
            if batch.problem is not None:
                raise batch.problem

    def places(self) -> list[tuple[str, int]]:
        """(node, process) of every worker, once all of them are there."""
        return [(node, process) for _, node, process in _ray().get([a.ready.remote() for a in self._started()])]

    def close(self) -> None:
        """Give the workers back to the cluster."""
        for actor in self._actors:
            _ray().kill(actor)
        self._actors = []

    def _started(self) -> list[Any]:
        ray = _ray()
        if not self._actors:
            if not ray.is_initialized():
                ray.init(include_dashboard=False, log_to_driver=False, logging_level="warning")
            resources = ray.cluster_resources()
            gpus = int(resources.get("GPU", 0))
            count = self.workers or gpus or int(resources.get("CPU", 1))
            share = {"num_gpus": 1, "num_cpus": 0} if gpus else {"num_cpus": 1}
            actor = ray.remote(RayWorker).options(
                **share, scheduling_strategy="SPREAD", max_restarts=-1, max_task_retries=0
            )
            self._actors = [actor.remote(self.factory) for _ in range(count)]
        return list(self._actors)

    def _expect(self, work: _Work, actor: Any) -> None:
        """Ask an actor to show itself; where it has to start again, that may take any time and holds up nobody."""
        work.absent[actor.ready.options(max_task_retries=-1).remote()] = actor

    def _next_task(self, work: _Work) -> Any:
        """A task that is done; None when a worker took too long. When nothing is asked, somebody must show up."""
        pending = [*work.asked, *work.absent]
        limit = self.patience
        if work.asked:
            limit = max(0.0, min(asked.deadline for asked in work.asked.values()) - time.monotonic())
        ready, _ = _ray().wait(pending, num_returns=1, timeout=limit) if pending else ([], [])
        if not ready and not work.asked:
            raise ScoringError(
                f"no worker of the Ray cluster is alive and {len(work.waiting)} chunks were not answered; what was "
                "answered is in the store: look at `ray status`, then run the same command again"
            )
        return ready[0] if ready else None

    def _give_up_hung(self, work: _Work) -> None:
        """Start workers anew that took too long, and ask others for their chunks."""
        now = time.monotonic()
        for task, asked in [(task, asked) for task, asked in work.asked.items() if asked.deadline <= now]:
            del work.asked[task]
            work.hung[asked.start] += 1
            if work.hung[asked.start] == HUNG_CHUNK:
                raise ScoringError(
                    f"{HUNG_CHUNK} workers of the Ray cluster did not answer the same prompts within "
                    f"score.worker_timeout = {self.hung_after:g} s; what was answered is in the store: raise it, or "
                    "lower score.chunk, then run the same command again"
                )
            _ray().kill(asked.actor, no_restart=False)
            self.repeated += 1
            work.waiting.appendleft(asked.start)
            self._expect(work, asked.actor)

    def _admit(self, work: _Work, task: Any) -> None:
        """Give work to an actor that shows itself; one that cannot even be built is left out."""
        ray, actor = _ray(), work.absent.pop(task)
        try:
            fingerprint, node, _ = ray.get(task)
        except ray.exceptions.RayActorError as error:
            self._actors.remove(actor)
            if not self._actors:
                raise ScoringError(f"no worker could load the model on the Ray cluster: {error}") from error
            return
        if fingerprint != self.fingerprint:
            raise ScoringError(
                f"the model on node {node} is not the one on this machine ({fingerprint} instead of "
                f"{self.fingerprint}); install the same versions and weights on every node"
            )
        work.free.append(actor)

    def _collect(self, work: _Work, task: Any) -> RayBatch | None:
        """The answer of a chunk; None when its worker died, and then the chunk waits again."""
        ray = _ray()
        asked = work.asked.pop(task)
        try:
            batch: RayBatch = ray.get(task)
        except ray.exceptions.RayActorError:
            self.repeated += 1
            work.waiting.appendleft(asked.start)
            self._expect(work, asked.actor)
            return None
        except ray.exceptions.RayTaskError as error:
            raise _as_lever_error(error) from error
        work.free.append(asked.actor)
        return batch


def _as_lever_error(error: Any) -> LeverError:
    """What a backend raised in a worker, as it would have been raised here."""
    cause = error.cause
    if isinstance(cause, LeverError):
        return cause
    return ScoringError(f"a worker failed with {type(cause).__name__}: {cause}")


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ScoringError(
            "score.engine = 'ray' needs Ray, which is not installed; type `pip install 'ray>=2.50'`, or set "
            "score.engine = 'local'"
        ) from error
    return ray
