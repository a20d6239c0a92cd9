"""The engine that runs on a Ray cluster: model copies in actors, one chunk each at a time, results to one writer.

Only the caller writes to the store. A chunk whose worker died is asked again on a live one, so every chunk is yielded
once and a lost worker costs at most its chunk. Actors restart by themselves where the cluster has room for them; one
that cannot start again is simply not used. Actor tasks are never retried by Ray itself: a task bound to an actor that
finds no node would wait for ever.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leverplus.backends.base import Backend, Reply, Request
from leverplus.errors import LeverError, ScoringError

PATIENCE = 300.0
"""Seconds without any live worker after which the engine gives up; what was committed stays."""


class Worker:
    """Lives in an actor: one copy of the model."""

    def __init__(self, factory: Callable[[], Backend]) -> None:
        self.backend = factory()

    def ready(self) -> tuple[dict[str, str], str, int]:
        """The fingerprint of this copy, the node it lives on and its process."""
        import os

        import ray

        return dict(self.backend.fingerprint()), str(ray.get_runtime_context().get_node_id()), os.getpid()

    def answer(self, requests: Sequence[Request]) -> tuple[list[Reply], float]:
        started = time.perf_counter()
        replies = self.backend.answer(requests)
        return replies, time.perf_counter() - started


@dataclass
class _Work:
    """Chunks that wait, free actors, what is asked (task -> chunk, actor), actors that have to show themselves."""

    waiting: deque[int]
    free: list[Any] = field(default_factory=list)
    asked: dict[Any, tuple[int, Any]] = field(default_factory=dict)
    absent: dict[Any, Any] = field(default_factory=dict)


class RayEngine:
    """Asks copies of a backend on a cluster. `fingerprint` is what every copy must have: else scores would be mixed.

    `workers` copies, each with a GPU where the cluster has any, else with a CPU; 0: as many as there are. Connects to
    the cluster of RAY_ADDRESS, or starts one on this machine. `repeated` counts chunks asked again after a loss.
    """

    def __init__(
        self,
        factory: Callable[[], Backend],
        fingerprint: Mapping[str, str],
        *,
        workers: int = 0,
        patience: float = PATIENCE,
    ) -> None:
        self.factory, self.fingerprint = factory, dict(fingerprint)
        self.workers, self.patience = workers, patience
        self.repeated = 0
        self._actors: list[Any] = []

    def run(self, chunks: Sequence[Sequence[Request]]) -> Iterator[tuple[int, list[Reply], float]]:
        if not chunks:
            return
        work = _Work(deque(range(len(chunks))))
        for actor in self._started():
            self._expect(work, actor)
        for _ in chunks:
            finished = None
            while finished is None:
                task = self._next_task(work)
                if task in work.absent:
                    self._admit(work, task)
                else:
                    finished = self._collect(work, task)
                while work.free and work.waiting:
                    actor, number = work.free.pop(), work.waiting.popleft()
                    work.asked[actor.answer.remote(chunks[number])] = (number, actor)
            yield finished

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
            actor = ray.remote(Worker).options(
                **share, scheduling_strategy="SPREAD", max_restarts=-1, max_task_retries=0
            )
            self._actors = [actor.remote(self.factory) for _ in range(count)]
        return list(self._actors)

    def _expect(self, work: _Work, actor: Any) -> None:
        """Ask an actor to show itself; where it has to start again, that may take any time and holds up nobody."""
        work.absent[actor.ready.options(max_task_retries=-1).remote()] = actor

    def _next_task(self, work: _Work) -> Any:
        """A task that is done. A long answer is no failure; when nothing is asked, somebody must show up in time."""
        pending = [*work.asked, *work.absent]
        limit = None if work.asked else self.patience
        ready, _ = _ray().wait(pending, num_returns=1, timeout=limit) if pending else ([], [])
        if not ready:
            raise ScoringError(
                f"no worker of the Ray cluster is alive and {len(work.waiting)} chunks were not answered; what was "
                "answered is in the store: look at `ray status`, then run the same command again"
            )
        return ready[0]

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

    def _collect(self, work: _Work, task: Any) -> tuple[int, list[Reply], float] | None:
        """The answer of a chunk; None when its worker died, and then the chunk waits again."""
        ray = _ray()
        number, actor = work.asked.pop(task)
        try:
            replies, seconds = ray.get(task)
        except ray.exceptions.RayActorError:
            self.repeated += 1
            work.waiting.appendleft(number)
            self._expect(work, actor)
            return None
        except ray.exceptions.RayTaskError as error:
            raise _as_lever_error(error) from error
        work.free.append(actor)
        return number, replies, seconds


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
