"""Finds out whose log a file or folder is and reads it into a record."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from leverplus.doctor.logs.console import read_console
from leverplus.doctor.logs.events import read_events
from leverplus.doctor.logs.mlflow import read_mlruns
from leverplus.doctor.logs.names import LogLine, Runs
from leverplus.doctor.logs.series import series_from
from leverplus.doctor.logs.tabular import lines_of, read_checkpoints, read_csv, read_state
from leverplus.doctor.records import Record, Series
from leverplus.doctor.runfolder import read_log_lines
from leverplus.errors import DataError

FORMS = "docs/doctor.md lists what is read"


def read_log_file(path: Path, chosen: Mapping[str, str]) -> Record:
    """The record of one file that is a table of metrics, an event file or a trainer_state.json."""
    return record_of(runs_of_file(path, chosen.values()), str(path), chosen)


def read_log_folder(folder: Path, chosen: Mapping[str, str]) -> Record | None:
    """The record of a folder that another library wrote; None where nothing in it is known."""
    runs = _runs(folder)
    if not runs:  # perhaps a folder of runs
        for sub in sorted(path for path in folder.iterdir() if path.is_dir()):
            for label, lines in _runs(sub).items():
                runs[f"{sub.name}/{label}".rstrip("/")] = lines
    return record_of(runs, str(folder), chosen) if runs else None


def is_log_file(path: Path) -> bool:
    """Whether the name alone says that a file is a log of another library."""
    return "tfevents" in path.name or path.suffix in (".csv", ".tsv") or path.name == "trainer_state.json"


def runs_of_file(path: Path, named: Collection[str] = ()) -> Runs:
    """The runs of one file by label; only a table may hold several."""
    if path.suffix in (".csv", ".tsv") and "tfevents" not in path.name:
        return read_csv(path)
    return {"": _lines_of_file(path, named)}


def _lines_of_file(path: Path, named: Collection[str]) -> list[LogLine]:
    if "tfevents" in path.name:
        return read_events([path])
    if path.suffix == ".jsonl":
        return lines_of(read_log_lines(path))
    if path.name == "trainer_state.json":
        return read_state(path)
    return read_console(read_log_text(path), named)


def read_log_text(path: Path) -> str:
    """The text of a file; a log in another encoding than UTF-8 is refused with the command that changes it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not text in UTF-8 ({error.reason}); if it is text, say its encoding: "
            f"`iconv -f GB18030 -t UTF-8 {path} > utf8.txt`, then `lever doctor utf8.txt`"
        ) from error


def record_of(runs: Runs, source: str, chosen: Mapping[str, str]) -> Record:
    """The record of the lines of one or several runs."""
    series: list[Series] = []
    read_as: dict[str, str] = {}
    refused: dict[str, str] = {}
    for label, lines in runs.items():
        found, reading = series_from(lines, label, chosen)
        read_as |= dict(reading.names)
        refused |= dict(reading.refused)
        if found is not None:
            series.append(found)
    if not series:
        logged = sorted({name for lines in runs.values() for line in lines for name in line.values})
        what = f"it logs {', '.join(logged[:20])}" if logged else "it holds no numbers"
        raise DataError(f"{source}: no metric was recognised; {what}. Say what is what: --map reward=NAME,kl=NAME")
    return Record(source=source, series=tuple(series), read_as=read_as)


def _runs(folder: Path) -> Runs:
    """The runs whose files lie in this folder, by label."""
    if (folder / "trainer_state.json").is_file() or any(folder.glob("checkpoint-*/trainer_state.json")):
        return {"": read_checkpoints(folder)}
    events: dict[Path, list[Path]] = {}
    for path in sorted(folder.glob("*tfevents*")) or sorted(folder.rglob("*tfevents*")):
        events.setdefault(path.parent, []).append(path)
    if events:
        found = {_label(own, folder): read_events(_in_time(paths)) for own, paths in events.items()}
        return {label: lines for label, lines in found.items() if lines}
    tracked = read_mlruns(folder) or _wandb(folder)
    if tracked:
        return tracked
    named = [folder / "progress.csv"] if (folder / "progress.csv").is_file() else []
    loose = named or [path for path in sorted(folder.iterdir()) if path.suffix in (".csv", ".jsonl", ".log", ".out")]
    runs = {}
    for path in loose:
        for label, lines in runs_of_file(path).items():
            runs[f"{path.stem} {label}".strip() if len(loose) > 1 else label] = lines
    return {label: lines for label, lines in runs.items() if lines}


def _label(own: Path, folder: Path) -> str:
    return "" if own == folder else str(own.relative_to(folder))


def _in_time(paths: Sequence[Path]) -> list[Path]:
    """Event files in the order they were opened: their names hold the second."""
    return sorted(paths, key=lambda path: (re.findall(r"tfevents\.(\d+)", path.name) or ["0"], path.name))


def _wandb(folder: Path) -> Runs:
    """wandb/(offline-)run-*/files: the history where it was kept, else what the run printed, else its summary."""
    homes = sorted(path.parent for path in folder.rglob("wandb-summary.json"))
    runs: Runs = {}
    for home in homes:
        history, printed = home / "wandb-history.jsonl", home / "output.log"
        lines = lines_of(read_log_lines(history)) if history.is_file() else []
        if not lines and printed.is_file():
            lines = read_console(read_log_text(printed))
        lines = lines or lines_of(read_log_lines(home / "wandb-summary.json"))
        runs["" if len(homes) == 1 else home.parent.name] = lines
    if not runs and any(folder.rglob("*.wandb")):
        raise DataError(
            f"{folder} holds a run of Weights & Biases in its binary form only; export its history as CSV or JSON "
            "lines, then `lever doctor history.csv`"
        )
    return runs
