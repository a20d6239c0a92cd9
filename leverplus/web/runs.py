"""Reads run folders back: what a page shows of one, and the list of all. What is damaged becomes a sentence."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from leverplus.data import rundir
from leverplus.data.rundir import read_json, read_log
from leverplus.errors import DataError, LeverError, MissingFile
from leverplus.evaluate.predictions import Results, read_predictions
from leverplus.evaluate.record import (
    ComparisonRow,
    EvaluationRecord,
    record_of,
)
from leverplus.evaluate.verdict import headline, verdict

Made = TypeVar("Made")
DAMAGE = (
    *(OSError, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(ArithmeticError, RecursionError, LeverError),
)
"""What reading a file can raise that holds anything at all."""
MARKS = (
    *(rundir.MANIFEST, rundir.RESOLVED, rundir.EVAL, rundir.PREDICTIONS, rundir.LOG),
    rundir.FINDINGS,
)
"""A folder with one of these is a run, perhaps a half-written one."""
FINDING = {"code": "", "severity": "info", "title": "", "cause": "", "try": ""}
"""Fields that a finding may leave out, and what stands for them."""


@dataclass
class RunFiles:
    """The readable parts of a run folder; None or empty where there is nothing, with a sentence in `missing`."""

    folder: Path
    missing: dict[str, str] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    record: EvaluationRecord | None = None
    predictions: Results | None = None
    log: list[dict[str, Any]] = field(default_factory=list)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each stage learnt from, in the order of the log."""
    findings: list[dict[str, Any]] | None = None

    def read(
        self, name: str, command: str, read: Callable[[Path], Made]
    ) -> Made | None:
        """What a file holds; None, with a sentence in `missing`, where there is none or it cannot be read."""
        try:
            return read(self.folder / name)
        except (FileNotFoundError, MissingFile):
            self.missing[name] = (
                f"There is no {name} in this run folder; `{command}` makes it."
            )
        except DAMAGE as error:
            why = str(error)[:200] or type(error).__name__
            self.missing[name] = (
                f"{name} cannot be read ({why}); `{command}` makes it again."
            )
        return None


def read_run(folder: Path, *, with_predictions: bool = True) -> RunFiles:
    """Read what is there; see `RunFiles.missing` for what is not. Predictions may be large and can be left out."""
    files = RunFiles(folder)
    files.manifest = files.read(rundir.MANIFEST, "lever run", read_json) or {}
    files.record = files.read(rundir.EVAL, "lever eval", _record)
    if with_predictions:
        name = rundir.PREDICTIONS
        files.predictions = files.read(name, "lever eval", read_predictions)
    files.log = files.read(rundir.LOG, "lever train", _log) or []
    files.findings = files.read(rundir.FINDINGS, "lever doctor", _findings)
    known: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("groups-*.json")):
        found = files.read(path.name, "lever train", _groups)
        if found is not None:
            known[path.stem.removeprefix("groups-")] = found
    stages = dict.fromkeys(str(line.get("stage")) for line in files.log)
    files.groups = {
        stage: known[stage] for stage in {**stages, **known} if stage in known
    }
    results = files.predictions
    record = files.record
    if results and record and len(results.items) != record.n:
        files.missing[rundir.PREDICTIONS] = (
            f"{rundir.PREDICTIONS} and {rundir.EVAL} are of different evaluations; `lever eval` makes both again."
        )
        files.predictions = None
    return files


def _record(path: Path) -> EvaluationRecord:
    return record_of(read_json(path))


def _log(path: Path) -> list[dict[str, Any]]:
    return read_log(path)[0]


def _findings(path: Path) -> list[dict[str, Any]]:
    return [{**FINDING, **entry} for entry in read_json(path)["findings"]]


def _groups(path: Path) -> dict[str, Any]:
    found = read_json(path)
    for kind in ("rewards", "spread"):
        counts = found[kind]["counts"]
        edges = found[kind]["edges"]
        if not counts or len(edges) != len(counts) + 1:
            raise DataError(f"{kind} is no histogram")
    return found


def measured_effects(files: RunFiles) -> dict[str, Any] | None:
    """The effects of demonstrations that a run measured, of the stage that saw the most answers; None without any."""
    known = []
    for own in files.groups.values():
        if own.get("effects"):
            known.append(own["effects"])
    return max(known, key=lambda own: int(own["answers"]), default=None)


@dataclass(frozen=True)
class RunSummary:
    """One line of the list of runs: what it found, and its headline; of a damaged one why it cannot be read."""

    name: str
    recipe: str
    seed: str
    record: EvaluationRecord | None
    row: ComparisonRow | None
    verdict: str
    damaged: bool

    def matches(self, text: str, state: str, wanted: str) -> bool:
        """Whether every word of `text` is somewhere in the line, and the state is the one wanted ("": any)."""
        line = f"{self.name} {self.recipe} seed {self.seed} {self.verdict} {state}"
        line = line.lower()
        for word in text.lower().split():
            if word not in line:
                return False
        return wanted in ("", state)


def summarise(name: str, folder: Path) -> RunSummary:
    files = read_run(folder, with_predictions=False)
    damage = " ".join(said for said in files.missing.values() if "cannot" in said)
    record = files.record
    said = damage
    if damage:
        record = None
    elif record is not None:
        said = verdict(record)
    manifest = files.manifest
    recipe = str(manifest.get("recipe", ""))
    seed = str(manifest.get("seed", ""))
    row = headline(record)
    return RunSummary(name, recipe, seed, record, row, said, bool(damage))


class RunsFolder:
    """The runs directly inside a folder; a run folder itself is a folder of one."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise MissingFile(
                f"there is no folder {root}; type `lever run --out {root / 'world'}` to make a first run"
            )
        self.root = root.resolve()
        self.single = bool(stamp(self.root))
        self._known: dict[str, tuple[Any, RunSummary]] = {}

    def names(self) -> list[str]:
        if self.single:
            return [self.root.name]
        found = []
        for entry in sorted(self.root.iterdir()):
            if not entry.name.startswith(".") and stamp(entry):
                found.append(entry.name)
        return found

    def folder(self, name: str) -> Path:
        """The folder of a run in the list; any other name, a path among them, is refused."""
        if name not in self.names():
            raise MissingFile(f"there is no run called '{name[:80]}' in {self.root}")
        if self.single:
            return self.root
        return self.root / name

    def summary(self, name: str) -> RunSummary:
        """The summary of a run, read again only when its files have changed."""
        folder = self.folder(name)
        now = stamp(folder)
        if name not in self._known or self._known[name][0] != now:
            self._known[name] = now, summarise(name, folder)
        return self._known[name][1]

    def state(self, name: str) -> str:
        """damaged, at work (a process holds its lock), finished (it has results), else stopped."""
        summary = self.summary(name)
        if summary.damaged:
            return "damaged"
        if at_work(self.folder(name)):
            return "at work"
        if summary.record:
            return "finished"
        return "stopped"


def stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """The files of a run that are there, with time and size; () where a folder is no run or cannot be looked into."""
    found = []
    for mark in MARKS:
        try:
            stat = (folder / mark).stat()
        except OSError:
            continue
        found.append((mark, stat.st_mtime_ns, stat.st_size))
    return tuple(found)


def at_work(folder: Path) -> bool:
    """Whether a process works on a run: it holds the run's lock."""
    try:
        with (folder / rundir.LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
