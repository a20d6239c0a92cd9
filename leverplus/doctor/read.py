"""Finds out what a target is (run folder, log, store, RL data, report, another library's log) and reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leverplus import rundir
from leverplus.catalog import LEGACY, load
from leverplus.doctor.logs.console import read_console
from leverplus.doctor.logs.find import is_log_file, read_log_file, read_log_folder, read_log_text, record_of
from leverplus.doctor.logs.names import meaning
from leverplus.doctor.logs.series import series_from
from leverplus.doctor.logs.tabular import lines_of, lines_of_json, measurements_of_json, read_state
from leverplus.doctor.quality import Watch
from leverplus.doctor.records import Record, Series
from leverplus.doctor.runfolder import read_log_lines, read_run, series_of
from leverplus.errors import DataError, MissingFile
from leverplus.parsing import parse_json

SQLITE = b"SQLite format 3\x00"
MARK = b"\xef\xbb\xbf"
READ = (
    "the doctor reads a run folder, a score store, RL data, an eval.json, a training log of this or another library, "
    "or a report in text"
)
BINARY = {
    b"PAR1": "a Parquet file; `lever store merge` takes exported scores over",
    b"PK\x03\x04": "a zip archive or a checkpoint; `lever import` reads checkpoints of the earlier code",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"\x1f\x8b": "packed with gzip; unpack it",
    b"GGUF": "a model",
    b"%PDF": "a PDF; save its text",
}
"""Files that are no training, by their first bytes."""


def read_targets(paths: Sequence[Path], watch: Watch | None = None, chosen: Mapping[str, str] | None = None) -> Record:
    """One record of one or several targets; of several the trainings are kept, each named after its target."""
    records = [read_target(path, watch, chosen) for path in paths]
    if len(records) == 1:
        return records[0]
    series = []
    for name, record in zip(_short_names(paths), records, strict=True):
        for own in record.series:
            series.append(replace(own, label=f"{name} {own.label}".strip()))
    if not series:
        raise DataError(
            "several targets are compared by their trainings, and none of these holds one; give them singly"
        )
    read_as = {ours: name for record in records for ours, name in record.read_as.items()}
    return Record(source=", ".join(map(str, paths)), series=tuple(series), read_as=read_as)


def _short_names(paths: Sequence[Path]) -> list[str]:
    """What tells the targets apart: their own names, or else the names of their folders."""
    names = [path.stem for path in paths]
    return names if len(set(names)) == len(names) else [path.parent.name or str(path) for path in paths]


def read_target(path: Path, watch: Watch | None = None, chosen: Mapping[str, str] | None = None) -> Record:
    """The record of a run folder, a log of this or another library, a score store, an RL-data JSON, or a report.

    `watch` sees every query of a store or an RL file with its members. `chosen` says which logged name is which metric.
    """
    chosen = chosen or {}
    if path.is_dir():
        return _read_folder(path, chosen)
    if not path.is_file():
        raise MissingFile(f"there is no file or folder {path}; give a run folder, a store, RL data or a training log")
    with path.open("rb") as file:
        start = file.read(len(SQLITE))
    if start == SQLITE:
        return _read_database(path, watch, chosen)
    refuse_strangers(path, start)
    if is_log_file(path):
        return read_log_file(path, chosen)
    if path.suffix == ".jsonl":
        return _read_log(path, chosen)
    first = _first_signs(path)
    if first[:1] in (b"{", b"[") and first != b"{'":  # a dict that Python printed is no JSON
        return _read_json(path, watch, chosen)
    return _read_text(path, chosen)


def _read_database(path: Path, watch: Watch | None, chosen: Mapping[str, str]) -> Record:
    """A score store, or what MLflow wrote."""
    from leverplus.doctor.logs.mlflow import is_mlflow, read_database
    from leverplus.doctor.storefile import read_store

    return record_of(read_database(path), str(path), chosen) if is_mlflow(path) else read_store(path, watch)


def _first_signs(path: Path) -> bytes:
    """The first two bytes of a file that are no blanks; a table may begin with many of them."""
    with path.open("rb") as file:
        return file.read(4096).removeprefix(MARK).lstrip()[:2]


def is_run(path: Path) -> bool:
    """Whether a folder is a run of this package."""
    return (path / rundir.RESOLVED).is_file() or (path / rundir.LOG).is_file()


def _read_folder(path: Path, chosen: Mapping[str, str]) -> Record:
    found = None if is_run(path) else read_log_folder(path, chosen)
    return read_run(path) if found is None else found


def _read_text(path: Path, chosen: Mapping[str, str]) -> Record:
    """What a text prints: a report, the console of a training, or both; the one that gives more is believed."""
    text = read_log_text(path)
    printed = read_console(text, chosen.values())
    counted = series_from(printed, "", chosen)[0] if printed else None
    known: Record = load(LEGACY, "report", "reader")(text)
    if counted is not None and len(counted.epochs) >= 2 and _is_log(counted, known):
        own = record_of({"": printed}, str(path), chosen)
        return replace(own, published=known.published)
    checked: Record = load(LEGACY, "checked_report", "reader")(replace(known, source=str(path)))
    return checked


def _is_log(counted: Series, known: Record) -> bool:
    """Whether a text is a log rather than a report: it gives more lines as one, or as many with no fewer numbers.

    A report, which compares results and speaks of several trainings, knows better which line belongs to which.
    """
    lines = sum(len(series.epochs) for series in known.series)
    if len(counted.epochs) > lines:
        return True
    told = known.published
    compares = told is not None and (told.arms or told.gains or told.choices or told.live)
    if compares or len(known.series) > 1:
        return False
    numbers = sum(len(line.values) for series in known.series for line in series.epochs)
    return len(counted.epochs) == lines and sum(len(line.values) for line in counted.epochs) >= numbers


def refuse_strangers(path: Path, start: bytes) -> None:
    """Say what a file is that the doctor does not read, by its first bytes."""
    if not start.strip() and not path.read_bytes().strip():
        raise DataError(f"{path} is empty; {READ}")
    for magic, kind in BINARY.items():
        if start.startswith(magic):
            raise DataError(f"{path} is {kind}; {READ}")


def _read_log(path: Path, chosen: Mapping[str, str]) -> Record:
    """JSON lines: our own log has stages, that of another library has not."""
    lines = read_log_lines(path)
    _refuse_data_set(path, lines)
    if not any(value is not None for line in lines_of(lines) for value in line.values.values()):
        said = "\n".join(
            str(line[name]) for line in lines for name in ("msg", "message", "event", "text") if name in line
        )
        if printed := read_console(said, chosen.values()):  # a logger that wraps what is printed
            return record_of({"": printed}, str(path), chosen)
        raise DataError(f"{path}: no line holds a number that a training would log; {READ}")
    if chosen or not any("stage" in line for line in lines):
        return record_of({"": lines_of(lines)}, str(path), chosen)
    return Record(source=str(path), series=series_of(lines, {}))


def _refuse_data_set(path: Path, rows: Sequence[Any]) -> None:
    """A file of questions or texts with labels is no training: say how to look at it."""
    records = [row for row in rows if isinstance(row, Mapping)]
    if records and all({"text", "label"} <= row.keys() for row in records):
        task = "labels"
    elif records and all("question" in row and "epoch" not in row for row in records):
        task = "jsonl"
    else:
        return
    raise DataError(
        f"{path} is a data set of {len(records):,} items, not a training; type `lever task check {task} "
        f"--set file={path}`"
    )


def _read_json(path: Path, watch: Watch | None, chosen: Mapping[str, str]) -> Record:
    """An eval.json, a trainer_state.json, a summary of Weights & Biases, or RL data."""
    try:
        values = parse_json(path.read_bytes())
    except json.JSONDecodeError as error:
        if (found := _log_of_objects(path, chosen)) is not None:
            return found
        if path.suffix != ".json" and read_console(read_log_text(path), chosen.values()):
            return _read_text(path, chosen)
        raise DataError(f"{path} is not a JSON file, or was cut off ({error})") from error
    if isinstance(values, list):
        _refuse_data_set(path, values)
    if not (isinstance(values, Mapping) and isinstance(values.get("log_history"), list)):
        if measured := measurements_of_json(values):
            return record_of(measured, str(path), chosen)
        lines = lines_of_json(values)
        if len(lines) > 1:
            return record_of({"": lines}, str(path), chosen)
    if not isinstance(values, Mapping):
        raise DataError(f"{path} holds a JSON {type(values).__name__}, not an object; {READ}")
    if isinstance(values.get("log_history"), list):
        return record_of({"": read_state(path)}, str(path), chosen)
    if any(isinstance(value, float) and meaning(name) for name, value in values.items()):
        return record_of({"": lines_of([values])}, str(path), chosen)
    if "arms" in values and "comparisons" in values:
        if not _is_report(values):
            raise DataError(f"{path} is not of the form of an eval.json; `lever eval` makes it again")
        return Record(source=str(path), report=dict(values))
    try:
        return Record(source=str(path), groups=load(LEGACY, "group_stats", "reader")(values, str(path), watch))
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise DataError(f"{path} is not RL data of a form this version knows ({error}); {READ}") from error


def _log_of_objects(path: Path, chosen: Mapping[str, str]) -> Record | None:
    """A run log under another name: a JSON object a line; None where it is not that."""
    try:
        read_log_lines(path)
    except DataError:
        return None
    return _read_log(path, chosen)


def _is_report(values: Mapping[str, Any]) -> bool:
    """Whether arms and comparisons are what an evaluation writes."""
    arms, rows = values["arms"], values["comparisons"]
    if not isinstance(arms, dict) or not isinstance(rows, list):
        return False
    shown = all(isinstance(arm, dict) and isinstance(arm.get("shots"), dict) for arm in arms.values())
    return shown and all(isinstance(row, dict) for row in rows)
