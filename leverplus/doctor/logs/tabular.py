"""Tables of metrics in files: CSV (SB3, exports of Weights & Biases), JSON lines, and the state of a Trainer."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from leverplus.doctor.logs.names import LogLine, finite, meaning
from leverplus.errors import DataError
from leverplus.parsing import parse_json

_EXPORTED = re.compile(r"^.+ - (?=\S)")
"""Weights & Biases writes `run name - metric` over the columns of an exported chart."""


def read_csv(path: Path) -> list[LogLine]:
    """The rows of a CSV (or TSV) file with a header; an empty cell was not measured."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        start = file.read(4096)
        file.seek(0)
        delimiter = max(",;\t", key=start.splitlines()[0].count) if start.strip() else ","
        rows = csv.DictReader(file, delimiter=delimiter)
        try:
            table = [{_column(name): value for name, value in row.items() if name} for row in rows]
        except csv.Error as error:
            raise DataError(f"{path} is not a CSV file ({error})") from error
    if table and _NAMES & set(table[0]) and "value" in table[0]:
        return _from_long(table, path)
    if table and set(table[0]) == {"Wall time", "Step", "Value"}:  # what TensorBoard lets download: one metric a file
        metric = path.stem.rpartition("tag-")[2]
        table = [{"Step": row["Step"], metric: row["Value"]} for row in table]
    return [LogLine(_numbers(row)) for row in table]


_NAMES = {"key", "metric", "tag", "name", "variable"}
"""Columns that name the metric of a row, in tables with a row for every measurement (MLflow, molten data frames)."""
_RUNS = ("run_id", "run_uuid", "run")


def _from_long(table: list[dict[str, Any]], path: Path) -> list[LogLine]:
    """A table with a row for every measurement: a line a step."""
    runs = {row[column] for column in _RUNS for row in table if column in row}
    if len(runs) > 1:
        raise DataError(f"{path} holds {len(runs)} runs; write a file for each, then `lever doctor RUN.csv RUN.csv`")
    named = sorted(_NAMES & set(table[0]))[0]
    steps: dict[str, dict[str, Any]] = {}
    for row in table:
        place = next((row[name] for name in ("step", "epoch", "iteration") if row.get(name)), "")
        steps.setdefault(place, {"step": place})[row[named]] = row["value"]
    return [LogLine(_numbers(row)) for row in steps.values()]


def lines_of_json(values: Any) -> list[LogLine]:
    """A JSON list of objects, or an object of columns (Keras' history); no lines where it is neither."""
    if isinstance(values, Mapping):
        columns = {name: own for name, own in values.items() if isinstance(own, list) and meaning(name) is not None}
        longest = max(map(len, columns.values()), default=0)
        values = [{name: own[n] for name, own in columns.items() if n < len(own)} for n in range(longest)]
    if not isinstance(values, list) or not all(isinstance(row, Mapping) for row in values):
        return []
    return lines_of(values) if any(meaning(name) is not None for row in values for name in _flat(row)) else []


def _column(name: str) -> str:
    return name if name.endswith(("__MIN", "__MAX")) else _EXPORTED.sub("", name)


def _numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The cells that are numbers; nan and inf are None, text and empty cells are left out."""
    values: dict[str, float | None] = {}
    for name, cell in row.items():
        text = cell.strip() if isinstance(cell, str) else cell
        if text in ("", None) or isinstance(text, (bool, list)):
            continue
        try:
            values[name] = finite(float(text.rstrip("%")) if isinstance(text, str) else text)
        except ValueError:
            continue
    return values


def lines_of(objects: Iterable[Mapping[str, Any]]) -> list[LogLine]:
    """JSON objects as lines; nested ones with their names joined by a slash (verl's file logger nests under `data`)."""
    return [LogLine(_numbers({**_flat(own), **_flat(own.get("data") or {})})) for own in objects]


def _flat(values: Any, start: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{start}{name}/")
        elif isinstance(value, (int, float, str)) or value is None:
            found[f"{start}{name}"] = float("nan") if value in ("NaN", "Infinity", "-Infinity") else value
    return found


def read_state(path: Path) -> list[LogLine]:
    """The log_history of a trainer_state.json; the summary at the end of a training is where the next one resumed."""
    try:
        history = parse_json(path.read_bytes()).get("log_history")
    except (json.JSONDecodeError, AttributeError) as error:
        raise DataError(f"{path} is not a trainer_state.json, or was cut off ({error})") from error
    if not isinstance(history, list) or not all(isinstance(entry, Mapping) for entry in history):
        raise DataError(f"{path} has no log_history; give the trainer_state.json that Trainer saves with a checkpoint")
    lines: list[LogLine] = []
    ended = False
    for entry in history:
        if "train_runtime" in entry:
            ended = True
            continue
        lines.append(LogLine(_numbers(entry), resumed=ended))
        ended = False
    return lines


def read_checkpoints(folder: Path) -> list[LogLine]:
    """The longest log among the checkpoints of a folder; a checkpoint without its optimiser marks where it was lost."""
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: _step(path.parent))
    own = folder / "trainer_state.json"
    lines = read_state(own if own.is_file() else states[-1])
    bare = {_step(path.parent) for path in states if not any(path.parent.glob("optimizer*")) and _saved(path.parent)}
    found, before = [], -1.0
    for line in lines:
        step = line.values.get("step") or 0.0
        lost = any(before <= place < step for place in bare)
        found.append(LogLine(line.values, line.resumed or lost))
        before = step
    return found


def _saved(folder: Path) -> bool:
    """Whether a checkpoint holds weights, so that somebody can have gone on from it."""
    return any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*"))


def _step(folder: Path) -> int:
    digits = folder.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0
