"""What MLflow keeps of a training: the folder mlruns, or the SQLite file that newer versions write instead."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from leverplus.doctor.logs.console import printed_number
from leverplus.doctor.logs.names import LogLine, Runs, finite
from leverplus.errors import DataError

Measured = Iterable[tuple[float, str, float | None]]


def read_mlruns(folder: Path) -> Runs:
    """mlruns/EXPERIMENT/RUN/metrics/NAME: lines of time, value and step."""
    homes = [folder / "metrics"] if (folder / "metrics").is_dir() else sorted(folder.rglob("metrics"))
    runs: Runs = {}
    for home in homes:
        if not home.is_dir() or not (home.parent / "meta.yaml").is_file():
            continue  # some other folder called metrics
        lines = _by_step(_in_files(home))
        if lines:
            runs["" if len(homes) == 1 else home.parent.name] = lines
    return runs


def _in_files(home: Path) -> Measured:
    for path in sorted(own for own in home.rglob("*") if own.is_file()):
        metric = path.relative_to(home).as_posix()  # a name may hold slashes, which are folders here
        for row in path.read_text(encoding="utf-8").splitlines():
            cells = row.split()  # time, value, step
            if len(cells) >= 3:
                yield float(cells[2]), metric, printed_number(cells[1])


def is_mlflow(path: Path) -> bool:
    """Whether an SQLite file is one of MLflow's, by its tables; a damaged one is left to the reader of stores."""
    try:
        with closing(_opened(path)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError:
        return False
    return {"metrics", "runs", "experiments"} <= tables


def read_database(path: Path) -> Runs:
    """The trainings of an mlflow.db, named after their runs."""
    with closing(_opened(path)) as database:
        rows = database.execute(
            "SELECT m.run_uuid, coalesce(r.name, m.run_uuid), m.step, m.key, m.value, m.is_nan FROM metrics AS m "
            "JOIN runs AS r ON r.run_uuid = m.run_uuid ORDER BY m.run_uuid, m.timestamp, m.step"
        ).fetchall()
    found: dict[tuple[str, str], list[tuple[float, str, float | None]]] = {}
    for run, name, step, metric, value, unknown in rows:
        found.setdefault((run, name), []).append((float(step), metric, None if unknown else finite(value)))
    if not found:
        raise DataError(f"{path} is a database of MLflow that holds no metric yet; log some, then try again")
    names = [name for _, name in found]
    labels = {key: key[1] if names.count(key[1]) == 1 else key[0] for key in found}
    return {"" if len(found) == 1 else labels[key]: _by_step(measured) for key, measured in found.items()}


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _by_step(measured: Measured) -> list[LogLine]:
    """A line a step, in the order of the steps."""
    steps: dict[float, dict[str, float | None]] = {}
    for step, metric, value in measured:
        steps.setdefault(step, {})[metric] = value
    return [LogLine({"step": step, **steps[step]}) for step in sorted(steps)]
