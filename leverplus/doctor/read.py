"""Finds out what a target is (run folder, log, store, RL data, report) and reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leverplus.doctor.published import read_report
from leverplus.doctor.quality import Watch
from leverplus.doctor.records import Record
from leverplus.doctor.rldata import rl_group_stats
from leverplus.doctor.runfolder import read_lines, read_run, series_of
from leverplus.errors import DataError, MissingFile
from leverplus.parsing import parse_json

SQLITE = b"SQLite format 3\x00"
MARK = b"\xef\xbb\xbf"
READ = "the doctor reads a run folder, a score store, RL data, an eval.json, or a training log or report in text"
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


def read_target(path: Path, watch: Watch | None = None) -> Record:
    """The record of a run folder, a `log.jsonl`, a score store, an RL-data JSON, or a report or log in text.

    `watch` sees every query of a store or an RL file with its members.
    """
    if path.is_dir():
        return read_run(path)
    if not path.is_file():
        raise MissingFile(f"there is no file or folder {path}; give a run folder, a store, RL data or a training log")
    with path.open("rb") as file:
        start = file.read(len(SQLITE))
    if start == SQLITE:
        from leverplus.doctor.storefile import read_store

        return read_store(path, watch)
    refuse_strangers(path, start)
    if path.suffix == ".jsonl":
        return _read_log(path)
    if start.removeprefix(MARK).lstrip()[:1] in (b"{", b"["):
        return _read_json(path, watch)
    return read_report(path)


def refuse_strangers(path: Path, start: bytes) -> None:
    """Say what a file is that the doctor does not read, by its first bytes."""
    if not start.strip():
        raise DataError(f"{path} is empty; {READ}")
    for magic, kind in BINARY.items():
        if start.startswith(magic):
            raise DataError(f"{path} is {kind}; {READ}")


def _read_log(path: Path) -> Record:
    lines = read_lines(path)
    _refuse_data_set(path, lines)
    if not any(isinstance(value, (int, float)) for line in lines for value in line.values()):
        raise DataError(f"{path}: no line has a number of a training; {READ}")
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
        f"{path} is a data set of {len(records):,} items, no training; type `lever task check {task} --set file={path}`"
    )


def _read_json(path: Path, watch: Watch | None) -> Record:
    """An eval.json, or RL data."""
    try:
        values = parse_json(path.read_bytes())
    except json.JSONDecodeError as error:
        if (found := _log_of_objects(path)) is not None:
            return found
        raise DataError(f"{path} is not a JSON file, or was cut off ({error})") from error
    if isinstance(values, list):
        _refuse_data_set(path, values)
    if not isinstance(values, Mapping):
        raise DataError(f"{path} holds a JSON {type(values).__name__}, not an object; {READ}")
    if "arms" in values and "comparisons" in values:
        if not _is_report(values):
            raise DataError(f"{path} is not of the form of an eval.json; `lever eval` makes it again")
        return Record(source=str(path), report=dict(values))
    try:
        return Record(source=str(path), groups=rl_group_stats(values, str(path), watch))
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise DataError(f"{path} is not RL data of a form this version knows ({error}); {READ}") from error


def _log_of_objects(path: Path) -> Record | None:
    """A run log under another name: a JSON object a line."""
    try:
        return _read_log(path)
    except DataError as error:
        if "is a data set" in str(error):
            raise
        return None


def _is_report(values: Mapping[str, Any]) -> bool:
    """Whether arms and comparisons are what an evaluation writes."""
    arms, rows = values["arms"], values["comparisons"]
    if not isinstance(arms, dict) or not isinstance(rows, list):
        return False
    shown = all(isinstance(arm, dict) and isinstance(arm.get("shots"), dict) for arm in arms.values())
    return shown and all(isinstance(row, dict) for row in rows)
