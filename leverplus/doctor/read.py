"""Finds out what a target is (run folder, log, store, RL data, report) and reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    if path.suffix == ".jsonl":
        return Record(source=str(path), series=series_of(read_lines(path), {}))
    if start.lstrip()[:1] == b"{":
        return _read_json(path, watch)
    return read_report(path)


def _read_json(path: Path, watch: Watch | None) -> Record:
    """An eval.json, or RL data."""
    try:
        values = parse_json(path.read_bytes())
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not a JSON file, or was cut off ({error})") from error
    if "arms" in values and "comparisons" in values:
        if not _is_report(values):
            raise DataError(f"{path} is not of the form of an eval.json; `lever eval` makes it again")
        return Record(source=str(path), report=values)
    return Record(source=str(path), groups=rl_group_stats(values, str(path), watch))


def _is_report(values: Mapping[str, Any]) -> bool:
    """Whether arms and comparisons are what an evaluation writes."""
    arms, rows = values["arms"], values["comparisons"]
    if not isinstance(arms, dict) or not isinstance(rows, list):
        return False
    shown = all(isinstance(arm, dict) and isinstance(arm.get("shots"), dict) for arm in arms.values())
    return shown and all(isinstance(row, dict) for row in rows)
