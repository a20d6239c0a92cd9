"""Doing jobs in several processes, the important ones first, until all are done or the time is up.

Every process takes one job at a time and stays in its world where it can, because what a world needs is built once a
process. A job that fails is reported with its sentence; the others go on. A process that dies takes only its job along.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from leverplus.errors import LeverError
from leverplus.lab.jobs import Job, Record
from leverplus.lab.methods import place_in_order

Work = Callable[[Job], dict[str, Record]]
"""What does a job; it is sent to the processes, so it is a function of a module or a `functools.partial` of one."""
Done = Callable[[Job, dict[str, Record], float], None]
Failed = Callable[[Job, str], None]
MARGIN = 1.15
"""By how much a job may take longer than the ones it is judged by."""


def urgency(job: Job) -> int:
    """Smaller is earlier: arms without training, which every share of the gap needs, then by the order of methods."""
    return -1 if job.method is None else place_in_order(job.name, job.budget)


@dataclass
class JobPace:
    """How long jobs take, from those that are done."""

    taken: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def add(self, job: Job, seconds: float) -> None:
        self.taken.setdefault((job.name, job.budget), []).append(seconds)

    def expected(self, job: Job) -> float:
        """Seconds that a job will take: the longest of its kind, else of its method in proportion to the calls.

        0 where nothing like it was done: it is started, and stopped when the time is up.
        """
        own = self.taken.get((job.name, job.budget))
        if own:
            return max(own)
        others = [(budget, max(taken)) for (name, budget), taken in self.taken.items() if name == job.name and budget]
        if not others:
            return 0.0
        budget, seconds = min(others, key=lambda other: abs(other[0] - job.budget))
        return seconds * job.budget / budget


@dataclass(eq=False)
class PoolWorker:
    """A process that does one job at a time."""

    process: BaseProcess
    link: Connection
    job: Job | None = None
    world: int | None = None
    started: float = 0.0


def run_jobs(
    jobs: Sequence[Job], work: Work, *, processes: int, deadline: float | None, done: Done, failed: Failed
) -> list[Job]:
    """Do jobs and report each; the jobs that were left out because the time (`time.monotonic()`) was up."""
    waiting = sorted(jobs, key=urgency)
    if processes == 1 and deadline is None:
        for job in waiting:
            _do_here(job, work, done, failed)
        return []
    workers = [_hire(work) for _ in range(min(processes, len(waiting)))]
    pace = JobPace()
    try:
        while True:
            gone = [worker for worker in workers if worker.job is None and waiting and not worker.process.is_alive()]
            workers = [_hire(work) if worker in gone else worker for worker in workers]
            for worker in workers:
                if worker.job is None and (wanted := _next(waiting, worker, pace, deadline)) is not None:
                    _give(worker, wanted)
            busy = [worker for worker in workers if worker.job is not None]
            left = None if deadline is None else deadline - time.monotonic()
            if not busy or (left is not None and left <= 0):
                return [*(worker.job for worker in busy if worker.job is not None), *waiting]
            for link in wait([worker.link for worker in busy], timeout=left):
                _collect(next(worker for worker in busy if worker.link is link), pace, done, failed)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()


def _do_here(job: Job, work: Work, done: Done, failed: Failed) -> None:
    started = time.monotonic()
    try:
        records = work(job)
    except LeverError as error:
        failed(job, str(error))
    else:
        done(job, records, time.monotonic() - started)


def _next(waiting: list[Job], worker: PoolWorker, pace: JobPace, deadline: float | None) -> Job | None:
    """The next job for a worker, taken from those waiting: of the most urgent that still fit, one in its world."""
    now = time.monotonic()
    fitting = [job for job in waiting if deadline is None or now + MARGIN * pace.expected(job) < deadline]
    if not fitting:
        return None
    first = [job for job in fitting if urgency(job) == urgency(fitting[0])]
    job = next((job for job in first if job.world == worker.world), first[0])
    waiting.remove(job)
    return job


def _give(worker: PoolWorker, job: Job) -> None:
    worker.job, worker.world, worker.started = job, job.world, time.monotonic()
    worker.link.send(job)


def _collect(worker: PoolWorker, pace: JobPace, done: Done, failed: Failed) -> None:
    job, worker.job = worker.job, None
    assert job is not None
    try:
        records, why = worker.link.recv()
    except (EOFError, ConnectionError):
        worker.process.join()
        failed(job, f"its process died (exit code {worker.process.exitcode}); run the same command again")
        return
    if why is not None:
        failed(job, why)
        return
    seconds = time.monotonic() - worker.started
    pace.add(job, seconds)
    done(job, records, seconds)


def _hire(work: Work) -> PoolWorker:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, work), daemon=True)
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # read when the process loads its libraries
    try:
        process.start()
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
    there.close()
    return PoolWorker(process, here)


def _leave_with_parent() -> None:
    """End this process when the one who hired it is gone, even if it was killed: nobody would collect the job."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _serve(link: Connection, work: Work) -> None:
    """The life of a process: a job comes, its records or the reason why there are none go back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who hired it ends it
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    while True:
        try:
            job: Job = link.recv()
        except EOFError:
            return
        answer: tuple[Any, str | None]
        try:
            answer = work(job), None
        except Exception as error:  # whatever it is, the others go on and the reason is told
            answer = None, str(error) if isinstance(error, LeverError) else f"{type(error).__name__}: {error}"
        link.send(answer)
