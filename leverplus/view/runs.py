"""Lists a folder of runs: which there are, a summary of each, and in which state it is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leverplus import rundir
from leverplus.errors import DataError, LeverError, MissingFile
from leverplus.parsing import parse_own_json
from leverplus.report.data import RunFiles, newer_version_note, read_run_files
from leverplus.report.verdict import headline, verdict, within_noise

LIVE_SECONDS = 300
"""A run without results whose files changed in this time is shown as training, else as stopped, unless it is slow."""

MARKS = (rundir.MANIFEST, rundir.RESOLVED, rundir.EVAL, rundir.PREDICTIONS, rundir.LOG)
"""A folder with one of these is a run, perhaps a half-written one."""


@dataclass(frozen=True)
class RunSummary:
    """One line of the list of runs; None or "" where a run does not say."""

    name: str
    recipe: str
    seed: str
    n: int | None
    learned: float | None
    nearest: float | None
    nearest_arm: str
    verdict: str
    claim: str
    state: str

    def matches(self, text: str, state: str) -> bool:
        """Whether every word of `text` is somewhere in the line, and the state is the one wanted ("": any)."""
        if state and self.state != state:
            return False
        line = f"{self.name} {self.recipe} seed {self.seed} {self.verdict} {self.state}".lower()
        return all(word in line for word in text.lower().split())


class RunsFolder:
    """The runs directly inside a folder; a run folder itself is a folder of one."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise MissingFile(f"there is no folder {root}; type `lever run --out {root / 'world'}` to make a first run")
        self.root = root.resolve()
        self.single = _is_run(self.root)
        self._summaries: dict[str, tuple[tuple[int, ...], RunSummary]] = {}

    def names(self) -> list[str]:
        if self.single:
            return [self.root.name]
        entries = [entry for entry in self.root.iterdir() if not entry.name.startswith(".")]
        return sorted(entry.name for entry in entries if _is_run(entry))

    def folder(self, name: str) -> Path:
        """The folder of a run in the list; any other name, a path among them, is refused."""
        if name not in self.names():
            raise MissingFile(f"there is no run called '{name[:80]}' in {self.root}")
        return self.root if self.single else self.root / name

    def summaries(self) -> list[RunSummary]:
        return [self.summary(name) for name in self.names()]

    def summary(self, name: str) -> RunSummary:
        """The summary of a run, read again only when its files have changed."""
        folder = self.folder(name)
        stamp = tuple(_mtime(folder / mark) for mark in MARKS)
        known = self._summaries.get(name)
        if known is None or known[0] != stamp:
            known = self._summaries[name] = stamp, _summary(name, folder)
        found = known[1]
        if found.state == "damaged":
            return found
        return replace(found, state=state_of(folder, finished=found.n is not None))  # it changes with the clock too


def read_files(folder: Path) -> RunFiles:
    """What a run folder holds besides its predictions; DataError with one sentence where it cannot be read."""
    with _damage_as_sentence(folder):
        return read_run_files(folder, with_predictions=False)


@contextmanager
def _damage_as_sentence(folder: Path) -> Iterator[None]:
    """Turn any error over a run's files, which may hold anything, into a sentence: other runs must still be listed."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError) as e:
        raise DataError(
            f"{folder.name} is damaged ({type(e).__name__}: {str(e)[:200]}); `lever doctor {folder}` says more, and "
            "the command that made the file makes it again"
        ) from e


def _summary(name: str, folder: Path) -> RunSummary:
    """The summary of a run; that of a damaged one says why in place of its verdict."""
    try:
        with _damage_as_sentence(folder):
            return summarise_run(name, read_files(folder))
    except LeverError as error:
        return RunSummary(name, "", "", None, None, None, "", str(error), "", "damaged")


def summarise_run(name: str, files: RunFiles) -> RunSummary:
    """The summary of a run from its files, without its state, which `state_of` gives."""
    results, manifest = files.results, files.manifest
    row = headline(results) if results else None
    nearest = str(row["baseline"]) if row else ""
    claim = ""
    if row is not None and not newer_version_note(manifest):
        claim = "above" if row["diff"] > 0 else "below"
        if within_noise(row):
            claim = "within noise"
    return RunSummary(
        name=name,
        recipe=str(manifest.get("recipe", "")),
        seed=str(manifest.get("seed", "")),
        n=results["n"] if results else None,
        learned=_mean(results, "learned"),
        nearest=_mean(results, nearest),
        nearest_arm=nearest,
        verdict=newer_version_note(manifest) or (verdict(results) if results else ""),
        claim=claim,
        state="",
    )


def state_of(folder: Path, *, finished: bool) -> str:
    """finished: it has results. training: it has none yet and its files changed lately. stopped: neither.

    Where one piece of work takes long, as a chunk of prompts to a large model does, three times that long is lately.
    """
    if finished:
        return "finished"
    latest = max(_mtime(folder / name) for name in (*MARKS, rundir.PROGRESS, rundir.CHECKPOINTS, rundir.ACTIVE))
    lately = max(LIVE_SECONDS, 3 * _pace(folder / rundir.PROGRESS))
    return "training" if time.time_ns() - latest < lately * 1_000_000_000 else "stopped"


def _pace(path: Path) -> float:
    """Seconds that the last piece of work took; 0 where the run does not say."""
    try:
        seconds = parse_own_json(path.read_bytes())["seconds"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0
    return float(seconds) if isinstance(seconds, (int, float)) else 0.0


def _mean(results: Mapping[str, Any] | None, arm: str) -> float | None:
    value = results["arms"].get(arm, {}).get("mean") if results else None
    return float(value) if isinstance(value, (int, float)) else None


def _is_run(folder: Path) -> bool:
    try:
        return folder.is_dir() and any((folder / mark).is_file() for mark in MARKS)
    except OSError:
        return False  # a folder that may not be looked into


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
