"""Counters of the service in Prometheus' text format, added up over all worker processes.

Every number has a fixed place in a row of doubles, and every worker its own row in one shared file, so that no two
processes write the same place. A worker that starts takes the first row nobody holds (a lock on one byte of the file,
which the system frees when its holder dies) and goes on counting where the last holder stopped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from leverplus.errors import LeverError

ROUTES = (
    *("/", "/healthz", "/readyz", "/info", "/select", "/select_many", "/demos", "/demos/{id}", "/metrics"),
    *("/openapi.json", "/assets", "/v1/chat/completions", "/v1", "other"),
)
STATUSES = (
    *("200", "202", "204", "304", "400", "401", "403", "404", "405", "408", "409", "413", "422", "429", "499"),
    *("500", "502", "503", "504", "other"),
)
"""499: the client went away before the answer."""

OUTCOMES = ("chosen", "none", "conversation", "off", "deadline", "busy", "error", "unreadable", "refused")
"""What the proxy did with a chat: demonstrations put in, the selector chose none, or why it was passed on unchanged."""

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
"""Upper ends of the histograms' buckets, in seconds."""

COUNTERS: Mapping[str, tuple[str, Mapping[str, Sequence[str]]]] = {
    "lever_requests_total": ("Requests by route and HTTP status.", {"route": ROUTES, "status": STATUSES}),
    "lever_proxy_chats_total": ("Chats that were proxied, by what was done.", {"outcome": OUTCOMES}),
    "lever_upstream_failures_total": ("Requests that the upstream did not answer.", {}),
    "lever_demonstrations_shown_total": ("Demonstrations chosen.", {}),
    "lever_reloads_total": ("Times the bundle was loaded anew.", {"result": ("loaded", "failed")}),
    "lever_request_bytes_total": ("Bytes of request bodies.", {}),
    "lever_response_bytes_total": ("Bytes of response bodies.", {}),
}
GAUGES = {
    "lever_requests_in_flight": "Requests being answered.",
    "lever_queue_waiting": "Requests that wait for a thread or have one.",
    "lever_body_bytes_held": "Bytes of request bodies in memory.",
}
HISTOGRAMS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "lever_request_seconds": ("Time from request to end of the answer.", "route", ROUTES),
    "lever_select_seconds": ("Time of one choice, waiting for a thread included.", "kind", ("api", "proxy")),
}

Place = tuple[str, tuple[str, ...]]
"""A metric and the values of its labels, in order."""


def _places() -> dict[Place, int]:
    found: list[Place] = [(name, ()) for name in GAUGES]
    for name, (_, labels) in COUNTERS.items():
        values: list[tuple[str, ...]] = [()]
        for options in labels.values():
            values = [(*own, option) for own in values for option in options]
        found += [(name, own) for own in values]
    for name, (_, _, options) in HISTOGRAMS.items():
        for option in options:
            found += [(name, (option, part)) for part in (*map(str, range(len(BOUNDS) + 1)), "sum")]
    return {place: number for number, place in enumerate(found)}


PLACES = _places()


class Metrics:
    """Counts; `path` is a file that several workers share, without it the numbers are this process's own."""

    def __init__(self, path: Path | None = None, workers: int = 1) -> None:
        self._lock = Lock()
        self._table: NDArray[np.float64] = np.zeros((1, len(PLACES)))
        self._file: int | None = None
        self._row = 0
        if path is not None:
            self._table = np.memmap(path, np.float64, "r+", shape=(workers, len(PLACES)))
            self._file = os.open(path, os.O_RDWR)
            self._row = self._claim_row(workers)
        self._own = self._table[self._row]
        self._own[: len(GAUGES)] = 0.0  # of a holder that died

    def _claim_row(self, workers: int) -> int:
        import fcntl

        assert self._file is not None
        for row in range(workers):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
            except OSError:
                continue
            return row
        raise LeverError(f"all {workers} rows of the counters are taken; is another service using the same file?")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def add(self, name: str, *labels: str, by: float = 1.0) -> None:
        with self._lock:
            self._own[PLACES[name, labels]] += by

    def observe(self, name: str, label: str, seconds: float) -> None:
        bucket = int(np.searchsorted(BOUNDS, seconds))  # the first bound that is not below it
        with self._lock:
            self._own[PLACES[name, (label, str(bucket))]] += 1.0
            self._own[PLACES[name, (label, "sum")]] += seconds

    def value(self, name: str, *labels: str) -> float:
        """The sum over all workers."""
        return float(self._table[:, PLACES[name, labels]].sum())

    def text(self, more: Mapping[str, tuple[str, float]] | None = None) -> str:
        """The page that Prometheus reads; `more` are gauges with their help that are known only now."""
        totals = self._table.sum(axis=0)
        lines: list[str] = []
        for name, help_line in GAUGES.items():
            lines += [*_head(name, help_line, "gauge"), f"{name} {_number(totals[PLACES[name, ()]])}"]
        for name, (help_line, value) in (more or {}).items():
            lines += [*_head(name, help_line, "gauge"), f"{name} {_number(value)}"]
        for name, (help_line, labels) in COUNTERS.items():
            lines += _head(name, help_line, "counter")
            own = [(place[1], number) for place, number in PLACES.items() if place[0] == name]
            for values, number in own:
                if totals[number] or not labels:  # hundreds of zeros say nothing
                    pairs = ",".join(f'{key}="{value}"' for key, value in zip(labels, values, strict=True))
                    lines.append(
                        f"{name}{{{pairs}}} {_number(totals[number])}" if pairs else f"{name} {totals[number]:.0f}"
                    )
        for name, (help_line, label, options) in HISTOGRAMS.items():
            lines += _head(name, help_line, "histogram")
            for option in options:
                lines += _histogram(name, label, option, totals)
        return "\n".join(lines) + "\n"


def make_counters(path: Path, workers: int) -> None:
    """An empty file for the counters of so many workers."""
    np.zeros((workers, len(PLACES))).tofile(path)


def _histogram(name: str, label: str, option: str, totals: NDArray[np.float64]) -> list[str]:
    counts = [totals[PLACES[name, (option, str(bucket))]] for bucket in range(len(BOUNDS) + 1)]
    if not any(counts):
        return []
    pair, running, lines = f'{label}="{option}"', 0.0, []
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
        running += count
        lines.append(f'{name}_bucket{{{pair},le="{bound}"}} {running:.0f}')
    total = totals[PLACES[name, (option, "sum")]]
    return [*lines, f"{name}_sum{{{pair}}} {total:.6f}", f"{name}_count{{{pair}}} {running:.0f}"]


def _head(name: str, help_line: str, kind: str) -> list[str]:
    return [f"# HELP {name} {help_line}", f"# TYPE {name} {kind}"]


def _number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else repr(float(value))


def route_of(path: str) -> str:
    """The route of a path, without anything that came from a client."""
    if path in ROUTES and path not in ("/v1", "/assets"):  # these two stand for what lies below them
        return path
    for start, route in (("/demos/", "/demos/{id}"), ("/v1/", "/v1"), ("/assets/", "/assets")):
        if path.startswith(start):
            return route
    return "other"
