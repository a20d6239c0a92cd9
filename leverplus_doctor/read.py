"""Finds out what a target is (run folder, log, store, RL data, report, another library's log) and reads it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from leverplus.catalog import LEGACY, load
from leverplus.data import rundir
from leverplus.data.parsing import parse_json, parse_toml
from leverplus.errors import DataError, MissingFile
from leverplus.evaluate.predictions import predictions_file, read_predictions
from leverplus.evaluate.record import read_record
from leverplus.learn.runlog import CONTEXT
from leverplus_doctor.logs.console import read_console
from leverplus_doctor.logs.files import (
    lines_of,
    read_mlflow,
    read_objects,
    read_text,
    runs_of_file,
    runs_of_folder,
    runs_of_json,
)
from leverplus_doctor.logs.names import Runs, finite, series_from
from leverplus_doctor.quality import read_store
from leverplus_doctor.records import (
    Epoch,
    GroupStats,
    PickCounts,
    Probe,
    Record,
    Series,
)

READ = (
    "the doctor reads a run folder, a score store, RL data, an eval.json, a training log of this or another library, "
    "or a report in text"
)
SQLITE = b"SQLite format 3\x00"
BINARY = (b"PAR1", b"PK\x03\x04", b"\x89PNG", b"\xff\xd8\xff", b"\x1f\x8b", b"%PDF")
"""How files begin that hold no text."""

Names = Mapping[str, str]
"""Which logged name is which metric, as the user says."""


def read_target(path: Path, chosen: Names | None = None) -> Record:
    """The record of a run folder, a log of this or another library, a score store, an RL-data JSON, or a report.

    `chosen` says which logged name is which metric.
    """
    names = chosen or {}
    if path.is_dir():
        runs = {} if is_run(path) else runs_of_folder(path)
        return _record_of(runs, path, names) if runs else read_run(path)
    if not path.is_file():
        raise MissingFile(
            f"there is no file or folder {path}; give a run folder, a store, RL data or a training log"
        )
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(SQLITE):
        tracked = read_mlflow(path)
        if tracked is not None:
            return _record_of(tracked, path, names)
        return Record(source=str(path), groups=read_store(path))
    if start.startswith(BINARY):
        raise DataError(f"{path} is neither text nor a store; {READ}")
    if not start.strip() and not path.read_bytes().strip():
        raise DataError(f"{path} is empty; {READ}")
    if "tfevents" in path.name or path.suffix in (".csv", ".tsv"):
        return _record_of(runs_of_file(path), path, names)
    if path.suffix == ".jsonl":
        return _read_json_lines(path, names)
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    # a dict that Python printed is no JSON
    if start[:1] in (b"{", b"[") and not start.startswith(b"{'"):
        return _read_json(path, names)
    return _read_text(path, names)


def _record_of(runs: Runs, source: Path, chosen: Names) -> Record:
    """The record of the lines of one or several runs."""
    series: list[Series] = []
    read_as: dict[str, str] = {}
    logged: set[str] = set()
    for label, lines in runs.items():
        found, names = series_from(lines, label, chosen)
        read_as |= names
        for line in lines:
            logged.update(line.values)
        if found is not None:
            series.append(found)
    if not series:
        what = "it holds no numbers"
        if logged:
            what = f"it logs {', '.join(sorted(logged)[:20])}"
        raise DataError(
            f"{source}: no metric was recognised; {what}. Say what is what: --map reward=NAME,kl=NAME"
        )
    return Record(source=str(source), series=tuple(series), read_as=read_as)


def _read_text(path: Path, chosen: Names) -> Record:
    """A report, the console of a training, or both: whichever reading gives more."""
    text = read_text(path)
    lines = read_console(text, chosen.values())
    counted = series_from(lines, "", chosen)[0] if lines else None
    known: Record = load(LEGACY, "report", "reader")(text)
    if counted is not None and len(counted.epochs) >= 2 and _is_log(counted, known):
        record = _record_of({"": lines}, path, chosen)
        return replace(record, published=known.published)
    known = replace(known, source=str(path))
    checked: Record = load(LEGACY, "checked_report", "reader")(known)
    return checked


def _is_log(counted: Series, known: Record) -> bool:
    """Whether a text is a log rather than a report: it gives more lines as one, or as many with no fewer numbers.

    A report, which compares results and speaks of several trainings, knows better which line belongs to which.
    """
    told = sum(len(series.epochs) for series in known.series)
    if len(counted.epochs) != told:
        return len(counted.epochs) > told
    results = known.published
    if results.arms or results.gains or results.choices or results.live:
        return False
    numbers = sum(map(_count_numbers, known.series))
    return len(known.series) <= 1 and _count_numbers(counted) >= numbers


def _count_numbers(series: Series) -> int:
    return sum(len(line.values) for line in series.epochs)


def _read_json_lines(path: Path, chosen: Names) -> Record:
    """JSON lines: our own log has stages, that of another library has not; a logger may wrap what was printed."""
    rows = read_objects(path)
    lines = lines_of(rows)
    measured: set[float | None] = set()
    for line in lines:
        measured.update(line.values.values())
    if measured - {None}:
        if not chosen and any("stage" in row for row in rows):
            return Record(source=str(path), series=series_of(rows, {}))
        return _record_of({"": lines}, path, chosen)
    said = []
    for row in rows:
        for key in ("msg", "message", "event", "text"):
            said.append(str(row.get(key, "")))
    printed = read_console("\n".join(said), chosen.values())
    if not printed:
        raise DataError(
            f"{path}: no line holds a number that a training would log; {READ}"
        )
    return _record_of({"": printed}, path, chosen)


def _read_json(path: Path, chosen: Names) -> Record:
    """An eval.json, RL data, or a training that some library wrote as JSON."""
    try:
        values = parse_json(path.read_bytes())
    except json.JSONDecodeError as error:
        return _read_broken_json(path, chosen, error)
    runs = runs_of_json(values)
    if runs:
        return _record_of(runs, path, chosen)
    if not isinstance(values, dict):
        raise DataError(
            f"{path} holds a JSON {type(values).__name__} that is no training; {READ}"
        )
    try:
        if "arms" in values and "comparisons" in values:
            return Record(source=str(path), report=read_record(path))
        groups = load(LEGACY, "group_stats", "reader")(values, str(path))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise DataError(
            f"{path} is not RL data of a form this version knows ({error}); {READ}"
        ) from error
    return Record(source=str(path), groups=groups)


def _read_broken_json(path: Path, chosen: Names, error: Exception) -> Record:
    """A run log under another name (a JSON object a line), or a text that begins with a bracket."""
    try:
        read_objects(path)
    except DataError:
        if path.suffix != ".json" and read_console(read_text(path), chosen.values()):
            return _read_text(path, chosen)
    else:
        return _read_json_lines(path, chosen)
    raise DataError(f"{path} is not a JSON file, or was cut off ({error})") from error


@dataclass(frozen=True)
class Measured:
    """What was measured before and between stages, as probe.json holds it."""

    probe: Probe = field(default_factory=Probe)
    groups: GroupStats | None = None


def is_run(folder: Path) -> bool:
    """Whether a folder is a run of this package."""
    resolved = folder / rundir.RESOLVED
    return resolved.is_file() or (folder / rundir.LOG).is_file()


def read_run(folder: Path) -> Record:
    """The record of a run, finished or under way."""
    if not is_run(folder):
        raise MissingFile(
            f"{folder} is not a run folder (no resolved.toml, no log.jsonl); `lever run` makes one"
        )
    resolved = folder / rundir.RESOLVED
    log = folder / rundir.LOG
    settings: dict[str, Any] = {}
    if resolved.is_file():
        settings = flat_settings(parse_toml(resolved.read_bytes()))
    lines = read_objects(log) if log.is_file() else []
    manifest = folder / rundir.MANIFEST
    known = rundir.read_json(manifest) if manifest.is_file() else {}
    measured = read_probe(folder)
    return Record(
        source=str(folder),
        settings=settings,
        series=series_of(lines, settings),
        groups=measured.groups,
        probe=measured.probe,
        report=read_record(folder / rundir.EVAL),
        picks=tuple(read_picks(folder / rundir.PREDICTIONS)),
        seed=known.get("seed"),
        manifest=manifest.is_file(),
    )


def read_probe(folder: Path) -> Measured:
    """What probe.json holds; nothing where it is absent."""
    path = folder / rundir.PROBE
    if not path.is_file():
        return Measured()
    try:
        return TypeAdapter(Measured).validate_python(rundir.read_json(path))
    except ValidationError as error:
        raise DataError(
            f"{path} is not of a form this version knows ({error.errors()[0]['msg']}); delete it"
        ) from error


def flat_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings as `section.key`."""
    flat = {}
    for section, table in values.items():
        if isinstance(table, Mapping):
            for key, value in table.items():
                flat[f"{section}.{key}"] = value
    return flat


def series_of(
    lines: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]
) -> tuple[Series, ...]:
    """The lines of a run log by stage, in the order the stages ran."""
    stages: dict[str, list[Epoch]] = {}
    for line in lines:
        values = {}
        for name, value in line.items():
            if name not in (*CONTEXT, "time"):
                values[name.removeprefix("train/")] = finite(value)
        epochs = stages.setdefault(str(line.get("stage", "train")), [])
        epochs.append(Epoch(line.get("epoch"), values))
    trained = []
    for stage, epochs in stages.items():
        own = {}  # the settings of this stage without its name
        for key, value in settings.items():
            section, _, name = key.partition(".")
            if section == stage:
                own[name] = value
        series = Series(stage, tuple(epochs), settings=own, exact=True)
        trained.append(series)
    return tuple(trained)


def read_picks(path: Path) -> list[PickCounts]:
    """What every arm chose, by number of shots."""
    if not predictions_file(path).is_file():
        return []
    chosen: dict[tuple[str, int], list[Sequence[str]]] = {}
    for arm, shots, draw in read_predictions(path):
        if shots > 0:
            lists = chosen.setdefault((arm, shots), [])
            for prediction in draw:
                lists.append(prediction.demos)
    return [picks_of(*key, lists) for key, lists in chosen.items()]


def picks_of(arm: str, shots: int, lists: Sequence[Sequence[str]]) -> PickCounts:
    """How varied the choices of an arm are."""
    counts: Counter[str] = Counter()
    lengths: Counter[int] = Counter()
    for demos in lists:
        counts.update(demos)
        lengths[len(demos)] += 1
    picks = counts.total()
    items = len(lists)
    common = [count / picks for _, count in counts.most_common(10)]
    return PickCounts(
        arm=arm,
        shots=shots,
        items=items,
        distinct=len(counts),
        top1=max(common, default=0.0),
        top10=sum(common),
        length=picks / items,
        same=max(lengths.values()) / items,
    )
