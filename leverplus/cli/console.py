"""What commands on runs share: a run opened from its folder, the table of an evaluation and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leverplus.cli.command import Bars, Table
from leverplus.data.rundir import lock_folder
from leverplus.evaluate.names import MEAN_SHOTS, facts_of
from leverplus.evaluate.record import EvaluationRecord
from leverplus.run.run import Run, load_run


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
    rows = []
    notes = set()
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
