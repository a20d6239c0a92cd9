"""The engine that runs on a Ray cluster: model copies in actors, one chunk each at a time, results to one writer.

Only the caller writes to the store. A chunk whose worker died, or does not answer in time, is asked again on a live
one, so every chunk is yielded once and a lost worker costs at most its chunk. Actors restart by themselves where the
cluster has room for them; one that cannot start again is simply not used. Actor tasks are never retried by Ray itself:
a task bound to an actor that finds no node would wait for ever.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leverplus.backends.base import Answered, Backend, Request, Streams
from leverplus.engine.base import answered_chunk, chunk_starts
from leverplus.engine.head import EVERY, HeadWatch
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
        self._told: dict[str, float] = {}
        self.backend = factory()

    def ready(self) -> tuple[dict[str, str], str, int]:
        """The fingerprint of this copy, the node it lives on and its process."""
        import ray

        return dict(self.backend.fingerprint()), str(ray.get_runtime_context().get_node_id()), os.getpid()

    def answer(self, requests: Sequence[Request], start: int) -> RayBatch:
        """Answer the chunk that begins at `start`; where replies are paid for one by one, a failure drops none."""
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
            return RayBatch(answered, self._newly_charged(), error)
        return RayBatch(answered, self._newly_charged())

    def _newly_charged(self) -> dict[str, float]:
        """What a server charged since this was called last; the first time also what building the backend cost."""
        usage = dict(getattr(self.backend, "usage", dict)())
        charged = {name: value - self._told.get(name, 0) for name, value in usage.items()}
        self._told = usage
        return charged


@dataclass
class _Asked:
    """A chunk that an actor works on, and when it has to be done."""

    start: int
    requests: Sequence[Request]
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
    workers paid to a server, `lost` which requests were with a worker that never said what it paid.
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
        lost: Callable[[Sequence[Request]], None] = lambda _requests: None,
    ) -> None:
        self.factory, self.fingerprint = factory, dict(fingerprint)
        self.workers, self.patience, self.hung_after = workers, patience, hung_after
        self.most, self.charged, self.lost = most, charged, lost
        self.repeated = 0
        self._actors: list[Any] = []
        self._head: HeadWatch | None = None

    def run(self, requests: Sequence[Request], chunk: int) -> Generator[list[Answered], None, None]:
        if not requests:
            return
        size = min(chunk, self.most or chunk)
        work = _Work(deque(chunk_starts(requests, size)))
        for actor in self._started():
            self._expect(work, actor)
        problem: LeverError | None = None
        try:
            while work.waiting or work.asked:
                batch = self._step(work)
                if batch is not None:
                    problem = problem or batch.problem
                    if batch.charged:
                        self.charged(batch.charged)
                if problem is not None:  # what is under way is waited for: it may be paid
                    work.waiting.clear()
                while work.free and work.waiting:
                    actor, start = work.free.pop(), work.waiting.popleft()
                    part = requests[start : start + size]
                    task = actor.answer.remote(part, start)
                    work.asked[task] = _Asked(start, part, actor, time.monotonic() + self.hung_after)
                if batch is not None and batch.answered:
                    yield batch.answered
        finally:
            for asked in work.asked.values():  # none but when this ends before its time
                self.lost(asked.requests)
        if problem is not None:
            raise problem

    def _step(self, work: _Work) -> RayBatch | None:
        """Wait until something happens; the answer of a chunk where it was that."""
        task = self._next_task(work)
        if task is None:
            self._give_up_hung(work)
        elif task in work.absent:
            self._admit(work, task)
        else:
            return self._collect(work, task)
        return None

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
                _connect(ray)
            self._head = HeadWatch(ray.get_runtime_context().gcs_address)
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
        limit = time.monotonic() + self.patience
        if work.asked:
            limit = min(asked.deadline for asked in work.asked.values())
        ready = self._wait([*work.asked, *work.absent], limit)
        if not ready and not work.asked:
            raise ScoringError(
                f"no worker of the Ray cluster is alive and {len(work.waiting)} chunks were not answered; what was "
                "answered is in the store: look at `ray status`, then run the same command again"
            )
        return ready[0] if ready else None

    def _wait(self, pending: Sequence[Any], limit: float) -> list[Any]:
        """The first task that is done before the clock says `limit`; none when there is none, or none is pending."""
        while pending:
            assert self._head is not None  # `_started` came first
            self._head.look()
            left = max(0.0, limit - time.monotonic())
            ready, _ = _ray().wait(pending, num_returns=1, timeout=min(left, EVERY))
            if ready or left <= EVERY:
                return list(ready)
        return []

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
            self._ask_again(work, asked)

    def _ask_again(self, work: _Work, asked: _Asked) -> None:
        """Put the chunk of a lost worker first in the queue; the worker may come back."""
        self.repeated += 1
        self.lost(asked.requests)
        work.waiting.appendleft(asked.start)
        self._expect(work, asked.actor)

    def _admit(self, work: _Work, task: Any) -> None:
        """Give work to an actor that shows itself; one that cannot even be built is left out."""
        ray, actor = _ray(), work.absent.pop(task)
        try:
            fingerprint, node, _ = ray.get(task)
        except ray.exceptions.RayActorError as error:
            self._actors.remove(actor)
            if not self._actors and error.actor_init_failed:
                raise ScoringError(f"no worker could load the model on the Ray cluster: {error}") from error
            if not self._actors:  # Ray takes all workers of a process away when the node it is connected to is lost
                raise ScoringError(
                    "the Ray cluster has taken all workers away, as it does when the node of this process is lost; "
                    "what was answered is in the store: look at `ray status`, start what is missing with `ray start`, "
                    "then run the same command again"
                ) from error
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
            self._ask_again(work, asked)
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


def _connect(ray: Any) -> None:
    """Connect to the cluster of RAY_ADDRESS, to one on this machine, or start one here."""
    # Ray's own remarks on every lost worker would bury the sentence that says what to type
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        address = os.environ.get("RAY_ADDRESS", "")
        where = f"the Ray cluster at RAY_ADDRESS={address}" if address else "a Ray cluster on this machine"
        reason = str(error).strip().partition("\n")[0]
        raise ScoringError(
            f"cannot connect to {where} ({reason}); type `ray status` to see whether it runs and `ray start --head` to "
            "start one, then run the same command again"
        ) from error


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ScoringError(
            "score.engine = 'ray' needs Ray, which is not installed; type `pip install 'ray>=2.50'`, or set "
            "score.engine = 'local'"
        ) from error
    return ray
