"""What commands share at the keyboard: progress on stderr, a run opened from its folder, the table of an evaluation."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leverplus.cli.command import Table
from leverplus.data.rundir import lock_folder
from leverplus.errors import plain
from leverplus.evaluate.names import MEAN_SHOTS, facts_of
from leverplus.evaluate.record import EvaluationRecord
from leverplus.run.run import Run, load_run

SECONDS = 15
"""How often a line of progress is written where stderr is no terminal."""


class Bars:
    """Progress bars on stderr, one a piece of work; plain lines where stderr is no terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        self.live = console.is_terminal
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.tasks: dict[str, Any] = {}
        self.said = time.monotonic()

    def __enter__(self) -> Bars:
        if self.live:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """Called as work goes on."""
        if self.live:
            if what not in self.tasks:
                self.tasks[what] = self.progress.add_task(what, total=total)
            self.progress.update(self.tasks[what], completed=done, total=total)
            if done >= total:
                self.progress.remove_task(self.tasks.pop(what))
        elif time.monotonic() - self.said > SECONDS:
            self.said = time.monotonic()
            self.say(f"{what}: {done:,} of {total:,}")

    def say(self, line: str) -> None:
        if self.live:
            self.progress.console.print(plain(line), highlight=False, markup=False)
        else:
            print(plain(line), file=sys.stderr, flush=True)


@contextmanager
def opened(
    folder: Path,
    store: Path | None,
    *,
    lock: bool = True,
    **options: Any,
) -> Iterator[Run]:
    """The run in a folder, with its progress shown, and locked against another command that writes there."""
    with Bars() as bars:
        run = load_run(folder, store, bars.say, bars.show, **options)
        if not lock:
            yield run
            return
        with lock_folder(folder):
            yield run


def results_table(report: EvaluationRecord) -> Table:
    """The arms of an evaluation by shots, in percent."""
    closed = report.gap_closed
    found: set[int] = set()
    for own in report.arms.values():
        found.update(own.shots)
    shots = sorted(found)
    rows, notes = [], set()
    for arm, own in report.arms.items():
        name = own.title or facts_of(arm).title
        if own.calls_per_question == 0:
            name += " (no model)"
            notes.add(
                "(no model): the answer is taken from labels, the model is not asked"
            )
        elif own.calls_per_question > 1:
            name += f" ({own.calls_per_question} calls)"
        cells = [name]
        for n in shots:
            cells.append(f"{100 * own.shots[n]:.1f}" if n in own.shots else "")
        # without demonstrations nothing is averaged
        averaged = own.mean is not None and set(own.shots) != {0}
        cells.append(f"{100 * own.accuracy:.1f}" if averaged else "")
        share = closed.get(arm, {}).get("mean")
        rows.append([*cells, "" if share is None else f"{100 * share:.0f} %"])
    if closed:
        notes.add(
            "gap closed: 0 % is random, 100 % is the greedy oracle, which knows the answers"
        )
    averaged_shots = [str(n) for n in shots if n in MEAN_SHOTS]
    means = ""
    if len(averaged_shots) > 1:
        means = f"; mean: over {', '.join(averaged_shots)}"
    shown = f"shots: how many demonstrations are shown{means}"
    return Table(
        f"accuracy on {report.n:,} {report.split} items, % by number of shots",
        ["who chooses", *map(str, shots), "mean", "gap closed"],
        rows,
        "\n".join([shown, *sorted(notes)]),
    )


def conclusions(report: EvaluationRecord) -> Iterator[str]:
    """What the figures say: what is missing, the verdict, and last what to use."""
    from leverplus.evaluate.verdict import verdict

    for note in report.notes:
        yield f"note: {note}"
    yield verdict(report)
    if report.advice is not None and report.advice.why:
        yield f"Advice: {report.advice.why}"
