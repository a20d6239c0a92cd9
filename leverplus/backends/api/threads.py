"""Several threads ask; what has come is handed on at once, and a failure ends the asking without losing anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from queue import SimpleQueue

from leverplus.backends.api.client import Halted
from leverplus.backends.base import Answered, Reply, Request

SILENT = 1.0
"""Seconds that are waited for replies under way before the user is told."""


def in_threads(
    ask: Callable[[Request], Reply],
    requests: Sequence[Request],
    threads: int,
    halt: threading.Event,
    waiting: Callable[[int], None],
) -> Generator[list[Answered], None, None]:
    """Yields what has come since the last time until all is answered.

    The first failure sets `halt`: nothing further is asked, what is under way is waited for and yielded, and then the
    failure is raised. Where the caller leaves early (Ctrl-C), what is under way is waited for too: the threads have it
    in the account by then. `waiting` is told how many threads that takes. They end with the process if it is left.
    """
    todo, lock = iter(enumerate(requests)), threading.Lock()
    done: SimpleQueue[Answered | Exception | None] = SimpleQueue()

    def work() -> None:
        while not halt.is_set():
            with lock:
                place, request = next(todo, (0, None))
            if request is None:
                break
            started = time.perf_counter()
            try:
                done.put(Answered(place, ask(request), time.perf_counter() - started))
            except Exception as error:
                halt.set()
                done.put(error)
        done.put(None)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(threads, len(requests)))]
    for thread in workers:
        thread.start()
    running, failures = len(workers), list[Exception]()
    try:
        while running:
            came = [done.get()]
            while not done.empty():
                came.append(done.get())
            running -= came.count(None)
            failures += [one for one in came if isinstance(one, Exception)]
            answered = [one for one in came if isinstance(one, Answered)]
            if answered:
                yield answered
    finally:
        halt.set()
        _wait_for(workers, waiting)
        halt.clear()
    if failures:
        raise next((error for error in failures if not isinstance(error, Halted)), failures[0])


def _wait_for(workers: Sequence[threading.Thread], waiting: Callable[[int], None]) -> None:
    until = time.monotonic() + SILENT
    for thread in workers:
        thread.join(max(0.0, until - time.monotonic()))
    late = [thread for thread in workers if thread.is_alive()]
    if late:
        waiting(len(late))
    for thread in late:
        thread.join()
