"""Files of metrics that libraries write: CSV, JSON, TensorBoard's events, MLflow's store, the state of a Trainer."""

from __future__ import annotations

import csv
import re
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

from leverplus.data.parsing import parse_json
from leverplus.data.rundir import read_log
from leverplus.errors import DataError
from leverplus_doctor.logs.console import read_console
from leverplus_doctor.logs.names import LogLine, Runs, finite, meaning

_EXPORTED = re.compile(r"(.+) - (?=\S)(?!.*__(?:MIN|MAX)$)")
"""Weights & Biases writes `run name - metric` over the columns of an exported chart, and its range beside it."""
_COMMA = re.compile(r"\s*[+-]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))(?:[eE][+-]?\d+)?\s*")
"""A number whose comma does not mark thousands."""
_METRIC = ("key", "metric", "name", "tag", "variable")
"""Columns that name the metric of a row, in tables with a row for every measurement (MLflow, molten data frames)."""
Row = Mapping[str, Any]


def numbers(row: Row, start: str = "") -> dict[str, float | None]:
    """The cells that are numbers, those of nested objects under joined names; nan and inf are None.

    verl's file logger nests all numbers under `data`.

    >>> numbers({"step": "3", "data": {"actor": {"kl": 0.1}}, "note": "x", "loss": "nan"})
    {'step': 3.0, 'actor/kl': 0.1, 'loss': None}
    """
    values: dict[str, float | None] = {}
    for name, cell in row.items():
        if isinstance(cell, Mapping):
            inside = "" if name == "data" and not start else f"{start}{name}/"
            values |= numbers(cell, inside)
        elif isinstance(cell, str):
            try:
                number = float(cell.strip().rstrip("%"))
                values[start + name] = finite(number)
            except ValueError:
                continue
        elif isinstance(cell, (int, float)) and not isinstance(cell, bool):
            values[start + name] = finite(cell)
    return values


def lines_of(objects: Iterable[Row]) -> list[LogLine]:
    """Objects as lines of a log."""
    return [LogLine(numbers(own)) for own in objects]


def runs_of_file(path: Path) -> Runs:
    """The trainings of a file that holds nothing else, by label."""
    if "tfevents" in path.name:
        return {"": read_events([path])}
    if path.suffix in (".json", ".jsonl"):
        return {"": lines_of(read_objects(path))}
    text = read_text(path)
    if path.suffix in (".csv", ".tsv"):
        return read_csv(path, text)
    return {"": read_console(text)}


def read_text(path: Path) -> str:
    """The text of a file; a log in another encoding than UTF-8 is refused with the command that changes it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not text in UTF-8 ({error.reason}); if it is text, say its encoding: "
            f"`iconv -f GB18030 -t UTF-8 {path} > utf8.txt`, then `lever doctor utf8.txt`"
        ) from error


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The lines of a run log; a half-written last line is left out, a damaged one before it is refused."""
    lines, damaged = read_log(path)
    for number in damaged:
        if number <= len(lines) or not lines:
            raise DataError(
                f"{path}, line {number} is not JSON or is no JSON object; is this the log of a training?"
            )
    return lines


def read_csv(path: Path, text: str) -> Runs:
    """The rows of a CSV (or TSV) file with a header, by run; an empty cell was not measured."""
    rows = text.splitlines()
    while rows and rows[0].startswith("#"):
        # a remark before the header, as in SB3's monitor.csv
        del rows[0]
    delimiter = max(",;\t", key=rows[0].count) if rows else ","
    try:
        table = list(csv.DictReader(rows, delimiter=delimiter, restval=""))
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file ({error})") from error
    if delimiter != ",":
        _without_commas(table)
    names = [*table[0]] if table else []
    if "value" in names and not set(names).isdisjoint(_METRIC):
        return runs_of_measurements(table)
    if names == ["Wall time", "Step", "Value"]:
        # what TensorBoard lets download: one metric a file
        tag = _tag(path)
        table = [{"Step": row["Step"], tag: row["Value"]} for row in table]
    return _by_exported_run(table)


def _without_commas(table: Sequence[dict[str, Any]]) -> None:
    """Put points for commas where any cell is a number with a decimal comma."""
    cells: list[Any] = []
    for row in table:
        cells += row.values()
    if not any(map(_COMMA.fullmatch, map(str, cells))):
        return
    for row in table:
        for name, cell in row.items():
            row[name] = str(cell).replace(",", ".")


def _tag(path: Path) -> str:
    """The metric that TensorBoard names a file after, in which every slash became an underscore."""
    shown = path.stem.rpartition("tag-")[2]
    for place, sign in enumerate(shown):
        with_slash = f"{shown[:place]}/{shown[place + 1 :]}"
        if sign == "_" and not meaning(shown) and meaning(with_slash):
            return with_slash
    return shown


def _by_exported_run(table: Sequence[Row]) -> Runs:
    """A line a row; several runs where columns of one metric stand under several names of runs."""
    if not table:
        return {}
    columns = []  # column, name of the run ("" where it has none), metric
    seen = set()
    several = False
    for name in table[0]:
        found = _EXPORTED.match(name)
        if found is None:
            columns.append((name, "", name))
            continue
        metric = name[found.end() :]
        several = several or metric in seen
        seen.add(metric)
        columns.append((name, found.group(1), metric))
    runs: Runs = {}
    for row in table:
        cells: dict[str, dict[str, Any]] = {"": {}}
        for name, run, metric in columns:
            label = run if several else ""
            cells.setdefault(label, {})[metric] = row[name]
        shared = numbers(cells[""])
        for run, own in cells.items():
            measured = numbers(own)
            if measured and bool(run) == several:
                line = LogLine({**shared, **measured})
                runs.setdefault(run, []).append(line)
    return runs


def runs_of_measurements(table: Iterable[Row]) -> Runs:
    """A table with a row for every measurement: a line a step, by run."""
    steps: dict[str, dict[str, dict[str, Any]]] = {}
    for row in table:
        place = _first(row, "step", "epoch", "iteration")
        own = steps.setdefault(_first(row, "run_id", "run_uuid", "run"), {})
        line = own.setdefault(place, {"step": place})
        line[_first(row, *_METRIC)] = row["value"]
    if len(steps) == 1:
        steps = {"": next(iter(steps.values()))}
    runs = {}
    for run, own in steps.items():
        runs[run] = lines_of(own.values())
    return runs


def _first(row: Row, *names: str) -> str:
    """The first of these cells that is not empty."""
    for name in names:
        if row.get(name) not in (None, ""):
            return str(row[name])
    return ""


def read_mlflow(path: Path) -> Runs | None:
    """The trainings of an mlflow.db; None where an SQLite file is not MLflow's."""
    query = """SELECT coalesce(runs.name, '') || ' ' || runs.run_uuid AS run, step, key,
        CASE WHEN is_nan THEN 'nan' ELSE value END AS value
        FROM metrics JOIN runs ON runs.run_uuid = metrics.run_uuid ORDER BY step"""
    address = f"{path.resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.row_factory = sqlite3.Row
            rows = [dict(row) for row in database.execute(query)]
    except sqlite3.DatabaseError:
        return None
    if not rows:
        raise DataError(
            f"{path} is a database of MLflow that holds no metric yet; log some, then try again"
        )
    return runs_of_measurements(rows)


def runs_of_json(values: Any) -> Runs:
    """The trainings that a JSON file holds, whoever wrote it; empty where it holds none.

    A Trainer's state, a list of objects, an object of columns (Keras' history), one measurement a row (what MLflow's
    server answers), or a single object of numbers (a summary of Weights & Biases).
    """
    if isinstance(values, Mapping):
        if isinstance(values.get("log_history"), list):
            return {"": _of_state(values["log_history"])}
        known = filter(meaning, values)
        columns = {}
        summary = False
        for name in known:
            summary = summary or isinstance(values[name], float)
            if isinstance(values[name], list):
                columns[name] = values[name]
        if columns:
            rows = zip_longest(*columns.values())
            values = [dict(zip(columns, row, strict=True)) for row in rows]
        elif isinstance(values.get("metrics"), list):
            values = values["metrics"]
        elif summary:
            return {"": lines_of([values])}
    if not isinstance(values, list) or not values:
        return {}
    if not all(isinstance(row, Mapping) for row in values):
        return {}
    if all("value" in row and _first(row, *_METRIC) for row in values):
        return runs_of_measurements(values)
    lines = lines_of(values)
    names: set[str] = set()
    for line in lines:
        names.update(line.values)
    if len(lines) < 2 or not any(map(meaning, names)):
        return {}
    return {"": lines}


def _of_state(history: Sequence[Any]) -> list[LogLine]:
    """The log_history of a trainer_state.json; the summary at the end of a training is where the next one resumed."""
    lines: list[LogLine] = []
    ended = False
    for entry in history:
        if not isinstance(entry, Mapping):
            raise DataError(
                "a log_history holds something else than objects; give the trainer_state.json that Trainer saves"
            )
        if "train_runtime" not in entry:
            lines.append(LogLine(numbers(entry), ended))
        ended = "train_runtime" in entry
    return lines


def runs_of_folder(folder: Path) -> Runs:
    """The runs of a folder that another library wrote, or of the folders in it; empty where nothing is known."""
    runs = _runs_in(folder)
    if runs:
        return runs
    for sub in sorted(folder.iterdir()):
        if sub.is_dir():
            for label, lines in _runs_in(sub).items():
                runs[f"{sub.name}/{label}".rstrip("/")] = lines
    return runs


def _runs_in(folder: Path) -> Runs:
    """The runs whose files lie in this folder, by label."""
    if any(folder.glob("*trainer_state.json")) or any(
        folder.glob("checkpoint-*/trainer_state.json")
    ):
        return {"": _read_checkpoints(folder)}
    events: dict[Path, list[Path]] = {}
    files = sorted(folder.glob("*tfevents*"))
    for path in files or sorted(folder.rglob("*tfevents*")):
        events.setdefault(path.parent, []).append(path)
    runs: Runs = {}
    for home, paths in events.items():
        lines = read_events(sorted(paths, key=_opened_at))
        if lines:
            label = str(home.relative_to(folder))
            runs[label.removeprefix(".")] = lines
    runs = runs or _read_mlruns(folder) or _read_wandb(folder)
    if runs:
        return runs
    paths = [folder / "progress.csv"]
    if not paths[0].is_file():
        kinds = (".csv", ".jsonl", ".log", ".out")
        paths = [own for own in sorted(folder.iterdir()) if own.suffix in kinds]
    for path in paths:
        start = f"{path.stem} " if len(paths) > 1 else ""
        for label, lines in runs_of_file(path).items():
            if lines:
                runs[f"{start}{label}".strip()] = lines
    return runs


def _opened_at(events: Path) -> tuple[list[str], str]:
    """The second in which an event file was opened, which its name holds."""
    return re.findall(r"tfevents\.(\d+)", events.name), events.name


def _read_checkpoints(folder: Path) -> list[LogLine]:
    """The longest log among the checkpoints of a folder; a checkpoint without its optimiser marks where it was lost."""
    saved = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=_step)
    state = folder / "trainer_state.json"
    if not state.is_file():
        state = saved[-1]
    values = parse_json(state.read_bytes())
    lost = []
    for path in saved:
        home = path.parent
        weights = [*home.glob("*.safetensors"), *home.glob("pytorch_model*")]
        if weights and not any(home.glob("optimizer*")):
            lost.append(_step(path))
    lines = []
    before = -1.0
    for line in runs_of_json(values).get("", ()):
        step = line.values.get("step") or 0.0
        resumed = any(before <= place < step for place in lost)
        lines.append(LogLine(line.values, line.resumed or resumed))
        before = step
    return lines


def _step(state: Path) -> int:
    digits = state.parent.name.rpartition("-")[2]
    if not digits.isdigit():
        return 0
    return int(digits)


def _read_mlruns(folder: Path) -> Runs:
    """mlruns/EXPERIMENT/RUN/metrics/NAME: lines of time, value and step; a name may hold slashes, which are folders."""
    rows = []
    for home in sorted(folder.rglob("metrics")):
        if not (home.parent / "meta.yaml").is_file():
            continue  # some other folder called metrics
        for file in sorted(filter(Path.is_file, home.rglob("*"))):
            name = file.relative_to(home).as_posix()
            for line in read_text(file).splitlines():
                _, value, step, *_ = [*line.split(), "", "", ""]
                row = {"run": home.parent.name, "key": name}
                rows.append({**row, "value": value, "step": step})
    rows.sort(key=lambda row: float(row["step"] or 0))
    return runs_of_measurements(rows)


def _read_wandb(folder: Path) -> Runs:
    """wandb/(offline-)run-*/files: the history where it was kept, else what the run printed, else its summary."""
    homes = sorted(path.parent for path in folder.rglob("wandb-summary.json"))
    runs: Runs = {}
    for home in homes:
        lines: list[LogLine] = []
        for name in ("wandb-history.jsonl", "output.log", "wandb-summary.json"):
            path = home / name
            if not lines and path.is_file():
                lines = runs_of_file(path)[""]
        runs[home.parent.name] = lines
    if len(runs) == 1:
        return {"": lines}
    if not runs and any(folder.rglob("*.wandb")):
        raise DataError(
            f"{folder} holds a run of Weights & Biases in its binary form only; export its history as CSV or JSON "
            "lines, then `lever doctor history.csv`"
        )
    return runs


def read_events(paths: Sequence[Path]) -> list[LogLine]:
    """The scalars of the event files of one run, a line a step; a later file with the same tags is a resumption."""
    lines: list[LogLine] = []
    seen: set[str] = set()
    for path in paths:
        steps: dict[int, dict[str, float | None]] = {}
        tags = set()
        try:
            for step, tag, value in _scalars(path.read_bytes()):
                steps.setdefault(step, {})[tag] = finite(value)
                tags.add(tag)
        except (IndexError, struct.error, ValueError) as error:
            raise DataError(
                f"{path} is not a TensorBoard event file, or is damaged, or holds nothing yet"
            ) from error
        # other tags are another writer of the same run, such as the evaluation's
        resumed = bool(lines) and len(tags & seen) > len(tags) / 2
        for step in sorted(steps):
            values = {"step": float(step), **steps[step]}
            lines.append(LogLine(values, resumed))
            resumed = False
        seen |= tags
    return lines


def _scalars(data: bytes) -> Iterator[tuple[int, str, float]]:
    """(step, tag, value) of an event file, read without TensorBoard.

    A frame is length (8 bytes), its checksum (4), the message Event, its checksum (4). Of the messages only scalars are
    read: Event.step (field 2), Event.summary (5), Summary.value (1), Value.tag (1), Value.simple_value (2), and
    Value.tensor (8) with TensorProto.float_val (5), double_val (6) or tensor_content (4), as PyTorch and TensorFlow 2
    write them. A message that was cut off at the end, as by a training under way, is left out.
    """
    place = 0
    while place + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        message = data[place + 12 : place + 12 + length]
        if place + 16 + length > len(data):
            if place == 0:
                raise ValueError("the first message is not whole")
            return
        place += 16 + length
        step = 0
        for number, content in _fields(message):
            if number == 2:
                (step,) = struct.unpack("<q", content)
            if number != 5:
                continue
            for kind, entry in _fields(content):
                tag, value = _tagged(entry) if kind == 1 else ("", b"")
                if tag and value:
                    form = "<d"
                    if len(value) == 4:
                        form = "<f"
                    yield step, tag, struct.unpack(form, value)[0]


def _tagged(entry: bytes) -> tuple[str, bytes]:
    """The tag of a Summary.value and the bytes of its number, one of both empty where it is no scalar."""
    tag = ""
    value = b""
    for number, content in _fields(entry):
        if number == 1 and not tag:
            tag = content.decode("utf-8", "replace")
        elif number == 2:
            value = content
        elif number == 8:
            for kind, packed in _fields(content):
                if kind in (4, 5, 6) and len(packed) in (4, 8):
                    value = packed
    return tag, value


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a protobuf message by number; a number of any length as eight bytes."""
    place = 0

    def varint() -> int:
        """A number in groups of seven bits, the lowest first; the eighth bit says "more"."""
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            value |= (byte & 127) << shift
            place = place + 1
            shift = shift + 7
            if byte < 128:
                return value

    while place < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, (varint() & (2**64 - 1)).to_bytes(8, "little")
            continue
        size = {1: 8, 5: 4}.get(kind, len(message))
        if kind == 2:
            size = varint()
        if place + size > len(message):
            raise IndexError("a field goes beyond its message")
        yield key >> 3, message[place : place + size]
        place += size
