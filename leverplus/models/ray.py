"""The engine that runs on a Ray cluster: model copies in actors, one chunk each at a time, results to one writer.

Only the caller writes to the store. A chunk whose worker died, or does not answer in time, is asked again on a live
one, so every chunk is yielded once and a lost worker costs at most its chunk. Actors restart by themselves where the
cluster has room for them; one that cannot start again is simply not used. Actor tasks are never retried by Ray itself:
a task bound to an actor that finds no node would wait for ever.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leverplus.errors import LeverError, ScoringError, first_line, install_command
from leverplus.models.base import Answered, Backend, LocalEngine, Request

PATIENCE = 300.0  # seconds without any live worker after which the engine gives up; what was committed stays
HUNG_AFTER = 1800.0  # seconds a worker may take for a chunk
HUNG_CHUNK = 3  # give up on a chunk after this many timeouts
SILENT = 30.0  # seconds without a head of the cluster after which scoring stops; Ray ends the process after 60
EVERY = (
    2.0  # seconds between two looks at the head, and the longest that one look may take
)
RESUME = "what was answered is in the store"


@dataclass(frozen=True)
class RayBatch:
    """What a worker made of a chunk: the replies, and why it stopped before the end."""

    answered: list[Answered]
    problem: LeverError | None = None


class RayWorker:
    """Lives in an actor: one copy of the model."""

    def __init__(self, factory: Callable[[], Backend]) -> None:
        self.backend = factory()

    def ready(self) -> tuple[dict[str, str], str, int]:
        """The fingerprint of this copy, the node it lives on and its process."""
        import ray

        return (
            dict(self.backend.fingerprint()),
            str(ray.get_runtime_context().get_node_id()),
            os.getpid(),
        )

    def answer(self, requests: Sequence[Request], start: int) -> RayBatch:
        """Answer the chunk that begins at `start`; where replies come one by one, a failure drops none."""
        answered: list[Answered] = []
        problem = None
        try:
            for part in LocalEngine(self.backend).run(requests, len(requests)):
                answered += [one._replace(place=start + one.place) for one in part]
        except LeverError as error:
            problem = error
        return RayBatch(answered, problem)


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
    `hung_after` bounds the seconds of a chunk.
    """

    def __init__(
        self,
        factory: Callable[[], Backend],
        fingerprint: Mapping[str, str],
        *,
        workers: int = 0,
        patience: float = PATIENCE,
        hung_after: float = HUNG_AFTER,
    ) -> None:
        self.factory, self.fingerprint = factory, dict(fingerprint)
        self.workers = workers
        self.patience = patience
        self.hung_after = hung_after
        self.repeated = 0
        self._actors: list[Any] = []
        self._head: HeadWatch | None = None

    def run(
        self, requests: Sequence[Request], chunk: int
    ) -> Generator[list[Answered], None, None]:
        if not requests:
            return
        work = _Work(deque(range(0, len(requests), chunk)))
        for actor in self._started():
            self._expect(work, actor)
        problem: LeverError | None = None
        while work.waiting or work.asked:
            batch = self._step(work)
            if batch is not None:
                problem = problem or batch.problem
            if problem is not None:  # what is under way is waited for
                work.waiting.clear()
            while work.free and work.waiting:
                actor = work.free.pop()
                start = work.waiting.popleft()
                task = actor.answer.remote(requests[start : start + chunk], start)
                limit = time.monotonic() + self.hung_after
                work.asked[task] = _Asked(start, actor, limit)
            if batch is not None and batch.answered:
                yield batch.answered
        if problem is not None:
            raise problem

    def _step(self, work: _Work) -> RayBatch | None:
        """Wait until something happens; the answer of a chunk where it was that."""
        limit = time.monotonic() + self.patience
        if work.asked:
            limit = min(asked.deadline for asked in work.asked.values())
        task = self._wait([*work.asked, *work.absent], limit)
        if task is None and not work.asked:
            raise ScoringError(
                f"no worker of the Ray cluster is alive and {len(work.waiting)} chunks were not answered; {RESUME}: "
                "look at `ray status`, then run the same command again"
            )
        if task is None:
            self._give_up_hung(work)
        elif task in work.absent:
            self._admit(work, task)
        else:
            return self._collect(work, task)
        return None

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
                **share,
                scheduling_strategy="SPREAD",
                max_restarts=-1,
                max_task_retries=0,
            )
            self._actors = [actor.remote(self.factory) for _ in range(count)]
        return list(self._actors)

    def _expect(self, work: _Work, actor: Any) -> None:
        """Ask an actor to show itself; where it has to start again, that may take any time and holds up nobody."""
        work.absent[actor.ready.options(max_task_retries=-1).remote()] = actor

    def _wait(self, pending: Sequence[Any], limit: float) -> Any:
        """The first task that is done before the clock says `limit`; None where there is none, or none is pending."""
        while pending:
            assert self._head is not None  # `_started` came first
            self._head.look()
            left = max(0.0, limit - time.monotonic())
            ready, _ = _ray().wait(pending, num_returns=1, timeout=min(left, EVERY))
            if ready:
                return ready[0]
            if left <= EVERY:
                break
        return None

    def _give_up_hung(self, work: _Work) -> None:
        """Start workers anew that took too long, and ask others for their chunks."""
        now = time.monotonic()
        for task, asked in list(work.asked.items()):
            if asked.deadline > now:
                continue
            del work.asked[task]
            work.hung[asked.start] += 1
            if work.hung[asked.start] == HUNG_CHUNK:
                raise ScoringError(
                    f"{HUNG_CHUNK} workers of the Ray cluster did not answer the same prompts within "
                    f"score.worker_timeout = {self.hung_after:g} s; {RESUME}: raise it, or lower score.chunk, then run "
                    "the same command again"
                )
            _ray().kill(asked.actor, no_restart=False)
            self._ask_again(work, asked)

    def _ask_again(self, work: _Work, asked: _Asked) -> None:
        """Put the chunk of a lost worker first in the queue; the worker may come back."""
        self.repeated += 1
        work.waiting.appendleft(asked.start)
        self._expect(work, asked.actor)

    def _admit(self, work: _Work, task: Any) -> None:
        """Give work to an actor that shows itself; one that cannot even be built is left out."""
        ray = _ray()
        actor = work.absent.pop(task)
        try:
            fingerprint, node, _ = ray.get(task)
        except ray.exceptions.RayActorError as error:
            self._actors.remove(actor)
            if self._actors:
                return
            if error.actor_init_failed:
                raise ScoringError(
                    f"no worker could load the model on the Ray cluster: {error}"
                ) from error
            raise ScoringError(  # Ray takes all workers of a process away when the node it is connected to is lost
                "the Ray cluster has taken all workers away, as it does when the node of this process is lost; "
                f"{RESUME}: start what is missing with `ray start` (see `ray status`), then run the same command again"
            ) from error
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
            raise ScoringError(
                f"a worker failed with {type(error.cause).__name__}: {error.cause}"
            ) from error
        work.free.append(asked.actor)
        return batch


class HeadWatch:
    """Looks whether the head of a cluster (its GCS server, at host:port) still takes connections."""

    def __init__(self, address: str, silent: float = SILENT) -> None:
        self.address = address
        self.silent = silent
        self._seen = self._looked = time.monotonic()

    def look(self) -> None:
        """ScoringError when the head has not been there for too long; looks at most every two seconds."""
        now = time.monotonic()
        if now - self._looked < EVERY:
            return
        self._looked = now
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), timeout=EVERY
            ).close()
            self._seen = now
        except OSError as error:
            if now - self._seen >= self.silent:
                raise ScoringError(
                    f"the head of the Ray cluster at {self.address} has not answered for {now - self._seen:.0f} s; "
                    f"{RESUME}: start the cluster again (`ray start --head` there, `ray start --address=...` on the "
                    "others), then run the same command again"
                ) from error


def _connect(ray: Any) -> None:
    """Connect to the cluster of RAY_ADDRESS, to one on this machine, or start one here."""
    # Ray's own remarks on every lost worker would bury the sentence that says what to type
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        address = os.environ.get("RAY_ADDRESS", "")
        where = "a Ray cluster on this machine"
        if address:
            where = f"the Ray cluster at RAY_ADDRESS={address}"
        raise ScoringError(
            f"cannot connect to {where} ({first_line(error)}); type `ray status` to see whether it runs and `ray start "
            "--head` to start one, then run the same command again"
        ) from error


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ScoringError(
            f"score.engine = 'ray' needs Ray, which is not installed; type `{install_command('ray')}`, or set "
            "score.engine = 'local'"
        ) from error
    return ray
