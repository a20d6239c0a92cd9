"""Tables of metrics in files: CSV (SB3, exports of Weights & Biases), JSON lines, and the state of a Trainer."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leverplus.doctor.logs.names import LogLine, Runs, finite, meaning
from leverplus.errors import DataError
from leverplus.parsing import parse_json

_EXPORTED = re.compile(r"^.+ - (?=\S)")
"""Weights & Biases writes `run name - metric` over the columns of an exported chart."""


def read_csv(path: Path) -> Runs:
    """The rows of a CSV (or TSV) file with a header, by run; an empty cell was not measured."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        begin = 0
        while (line := file.readline()).startswith("#"):  # a remark before the header, as in SB3's monitor.csv
            begin = file.tell()
        start = line + file.read(4096)
        file.seek(begin)
        delimiter = max(",;\t", key=start.splitlines()[0].count) if start.strip() else ","
        rows = csv.DictReader(file, delimiter=delimiter)
        try:
            table = [{name: value for name, value in row.items() if name} for row in rows]
        except csv.Error as error:
            raise DataError(f"{path} is not a CSV file ({error})") from error
    if delimiter != ",":
        table = _decimal_points(table)
    if table and _NAMES & set(table[0]) and "value" in table[0]:
        return runs_of_measurements(table)
    if table and set(table[0]) == {"Wall time", "Step", "Value"}:  # what TensorBoard lets download: one metric a file
        metric = _tag(path)
        table = [{"Step": row["Step"], metric: row["Value"]} for row in table]
    return _by_prefix(table)


def _decimal_points(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells of a table whose numbers have decimal commas (0,25), as spreadsheets in half of Europe write them."""
    cells = [cell.strip() for row in table for cell in row.values() if isinstance(cell, str)]
    if not any(_COMMA.fullmatch(cell) for cell in cells):
        return table
    return [
        {name: cell.replace(",", ".") if isinstance(cell, str) else cell for name, cell in row.items()} for row in table
    ]


_COMMA = re.compile(r"[+-]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))(?:[eE][+-]?\d+)?")
"""A number whose comma does not mark thousands."""


def _tag(path: Path) -> str:
    """The metric that TensorBoard names a file after, in which every slash became an underscore."""
    shown = path.stem.rpartition("tag-")[2]
    places = [place for place, sign in enumerate(shown) if sign == "_"]
    tried = [shown, *(f"{shown[:place]}/{shown[place + 1 :]}" for place in places)]
    return next((name for name in tried if meaning(name) is not None), shown)


def _by_prefix(table: list[dict[str, Any]]) -> Runs:
    """A line a row; several runs where columns of one metric stand under several names of runs."""
    whole = [name for row in table[:1] for name in row]
    exported = [name for name in whole if _EXPORTED.match(name) and _is_value(name)]
    runs = {name: name[: -len(_column(name))].removesuffix(" - ") for name in exported}
    labels = list(dict.fromkeys(runs.values()))
    if len({_column(name) for name in exported}) == len(exported):
        labels = []  # every metric stands once: it is one run
    if len(labels) < 2:
        return {"": [LogLine(_numbers({_column(name): cell for name, cell in row.items()})) for row in table]}
    by_run: Runs = {}
    for label in labels:
        own = [name for name in whole if runs.get(name, label) == label]
        lines = [LogLine(_numbers({_column(name): row[name] for name in own})) for row in table]
        measured = {_column(name) for name in own if name in runs}
        by_run[label] = [line for line in lines if measured & set(line.values)]
    return by_run


_NAMES = {"key", "metric", "tag", "name", "variable"}
"""Columns that name the metric of a row, in tables with a row for every measurement (MLflow, molten data frames)."""
_RUNS = ("run_id", "run_uuid", "run")


def runs_of_measurements(table: Sequence[Mapping[str, Any]]) -> Runs:
    """A table with a row for every measurement: a line a step, by run."""
    named = sorted(_NAMES & set(table[0]))[0]
    steps: dict[str, dict[str, dict[str, Any]]] = {}
    for row in table:
        run = next((str(row[name]) for name in _RUNS if row.get(name)), "")
        place = next((row[name] for name in ("step", "epoch", "iteration") if row.get(name) not in (None, "")), "")
        steps.setdefault(run, {}).setdefault(str(place), {"step": place})[str(row[named])] = row["value"]
    found = {run: [LogLine(_numbers(row)) for row in own.values()] for run, own in steps.items()}
    return found if len(found) > 1 else dict(zip([""], found.values(), strict=True))


def measurements_of_json(values: Any) -> Runs:
    """What MLflow's server answers, or a list of such objects: a metric, its value and its step in each."""
    rows = values.get("metrics") if isinstance(values, Mapping) else values
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) and "value" in row for row in rows):
        return {}
    return runs_of_measurements(rows) if all(_NAMES & set(row) for row in rows) else {}


def lines_of_json(values: Any) -> list[LogLine]:
    """A JSON list of objects, or an object of columns (Keras' history); no lines where it is neither."""
    if isinstance(values, Mapping):
        columns = {name: own for name, own in values.items() if isinstance(own, list) and meaning(name) is not None}
        longest = max(map(len, columns.values()), default=0)
        values = [{name: own[n] for name, own in columns.items() if n < len(own)} for n in range(longest)]
    if not isinstance(values, list) or not all(isinstance(row, Mapping) for row in values):
        return []
    return lines_of(values) if any(meaning(name) is not None for row in values for name in _flat(row)) else []


def _is_value(name: str) -> bool:
    """Whether a column of an exported chart is the metric itself, not its smallest or largest value."""
    return not name.endswith(("__MIN", "__MAX"))


def _column(name: str) -> str:
    return _EXPORTED.sub("", name) if _is_value(name) else name


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
