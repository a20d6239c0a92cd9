"""Asks a server from several threads: hands on each reply at once, and after a failure keeps the replies under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from queue import SimpleQueue

from leverplus.backends.api.client import RequestHalted
from leverplus.backends.base import Answered, Reply, Request

SILENT_WAIT = 1.0
"""Seconds of waiting for replies under way before the user is told."""


def in_threads(
    ask: Callable[[Request], Reply],
    requests: Sequence[Request],
    threads: int,
    halt: threading.Event,
    waiting: Callable[[int], None],
) -> Generator[list[Answered], None, None]:
    """Yield the replies that have come since the last time, until all requests are answered.

    The first failure sets `halt`: nothing further is asked, what is under way is waited for and yielded, and then the
    failure is raised. Where the caller leaves early (Ctrl-C), what is under way is waited for too: the threads have it
    in the account by then. `waiting` is called with the number of threads that are late. The threads are daemons: a
    second Ctrl-C ends them with the process.
    """
    todo, lock = iter(enumerate(requests)), threading.Lock()
    # What threads hand back: a reply, an error, or None when a thread ends.
    done: SimpleQueue[Answered | Exception | None] = SimpleQueue()

    def work() -> None:
        while not halt.is_set():
            with lock:
                place, request = next(todo, (0, None))
            if request is None:
                break
            started = time.perf_counter()
            try:
                reply = ask(request)
                done.put(Answered(place, reply, time.perf_counter() - started))
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
            came = [done.get()]  # waits for one
            while not done.empty():  # and takes what else is there
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
        # The other threads fail with Halted, which says nothing; the error that halted them comes first.
        causes = [error for error in failures if not isinstance(error, RequestHalted)]
        raise causes[0] if causes else failures[0]


def _wait_for(workers: Sequence[threading.Thread], waiting: Callable[[int], None]) -> None:
    """Wait until all threads have ended; after `SILENT_WAIT` seconds tell the caller how many are late."""
    until = time.monotonic() + SILENT_WAIT
    for thread in workers:
        thread.join(max(0.0, until - time.monotonic()))
    late = [thread for thread in workers if thread.is_alive()]
    if late:
        waiting(len(late))
    for thread in late:
        thread.join()
