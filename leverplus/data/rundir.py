"""A run folder: the name of every file in it, the one atomic write, one reader for each kind of file, and its lock.

No other module writes one of these names as a text; `tests/test_rundir.py` looks.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from leverplus.data.parsing import parse_own_json
from leverplus.errors import DataError, LeverError, MissingFile
from leverplus.version import __version__

RECIPE = "recipe.toml"  # the recipe as it was given
RESOLVED = "resolved.toml"  # every value of it
MANIFEST = "run.json"  # seed, versions of packages, commit, hashes, calls
LOG = "log.jsonl"  # one line per epoch
CHECKPOINTS = "checkpoints"  # a folder per checkpoint
WEIGHTS = "model.safetensors"  # of a checkpoint
CONFIG = "config.json"  # of a checkpoint: class, settings, widths of the vectors
STATE = "state"  # what a stage under way goes on from, gone when it is done
ACTIVE = "acquired"  # what rounds of active learning asked for, by the word of 0.1
CALLS = "calls.txt"  # the prompts that training asked for, one key per line
PAID = "paid.jsonl"  # what a server was asked and what that cost
PILOT = "pilot.json"  # what some hundred calls before training said, and the lists for everybody
PROBE = "probe.json"  # what was measured before and between stages
PREDICTIONS = "predictions.parquet"  # one row per item, arm and number of shots
EVAL = "eval.json"
FINDINGS = "findings.json"
REPORT = "report.html"
SINKS = "sinks"  # what MLflow, Weights & Biases and TensorBoard were given
PROGRESS = "progress.json"  # how far the work is
LOCK = "run.lock"


def of_split(name: str, split: str) -> str:
    """The name of EVAL or PREDICTIONS for a split: that of test has none in it (`eval.json`, `eval-dev.json`)."""
    if split == "test":
        return name
    stem, dot, ending = name.partition(".")
    return f"{stem}-{split}{dot}{ending}"


def started_from(run: Path, name: str) -> Path | None:
    """The folder a run was started from, where it has this relative path and the current folder has not."""
    if not name or Path(name).expanduser().is_absolute() or Path(name).exists():
        return None
    manifest = run / MANIFEST
    if not manifest.is_file():
        return None
    home = read_json(manifest).get("started_in")
    if isinstance(home, str) and (Path(home) / name).exists():
        return Path(home)
    return None


def moved_paths(run: Path, section: Any, keys: Sequence[str]) -> dict[str, Any]:
    """Relative paths of a section that are not here, but in the folder where the run was started from."""
    moved = {}
    for key in keys:
        path = getattr(section, key)
        if home := started_from(run, path):
            moved[key] = str(home / path)
    return moved


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a file; an error says what may make it."""
    again = "delete it and run the command that makes it again"
    try:
        value = parse_own_json(path.read_bytes())
    except FileNotFoundError as error:
        raise MissingFile(
            f"{path} is not there; is {path.parent} a run folder? `lever run` makes one, `lever eval` evaluates it"
        ) from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is damaged ({error}); {again}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} holds no JSON object; {again}")
    return value


def read_log(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """The lines of a log and the numbers of those that are no JSON object, such as a last one that a kill cut short."""
    lines: list[dict[str, Any]] = []
    damaged: list[int] = []
    # utf-8-sig: an editor may have put a byte order mark in front
    content = path.read_text(encoding="utf-8-sig", errors="replace")
    for number, text in enumerate(content.splitlines(), start=1):
        try:
            line = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            damaged.append(number)
        elif text.strip():
            lines.append(line)
    return lines, damaged


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file at once."""
    with write_atomically(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """A file beside `path` to write into, which takes its place whole; what fails leaves nothing and is a sentence."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with disk_sentence(path):
            yield part
            part.replace(path)
    except BaseException:
        with suppress(
            OSError
        ):  # on a disk that can only be read there is nothing to take away
            part.unlink(missing_ok=True)
        raise


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into that takes its place only when everything was written; a full disk is one sentence."""
    place = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    old = place.with_suffix(".old")
    shutil.rmtree(place, ignore_errors=True)
    try:
        with disk_sentence(folder):
            place.mkdir(parents=True)
            yield place
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    with disk_sentence(folder):
        if folder.exists():
            os.replace(folder, old)
        os.replace(place, folder)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def disk_sentence(path: Path) -> Iterator[None]:
    """Turn what a full or read-only disk raises inside into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise LeverError(
            f"cannot write {path} ({error.strerror or error}); make room, or make {path.parent} writable, then type "
            "the same command to go on"
        ) from error


_LEFT_OVER = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)(?P<end>|\.new|\.old)")
"""How `write_atomically`, `staged_folder` and their like name what is not finished."""


def clear_leftovers(folder: Path) -> None:
    """Remove what killed processes left unfinished in a run folder, and put back what one had just moved away."""
    for path in sorted(folder.glob("**/.*")):
        left = _LEFT_OVER.fullmatch(path.name)
        if left is None or _is_alive(int(left["pid"])) or not path.exists():
            continue
        whole = path.with_name(left["name"])
        is_new = left["end"] == ".new" and path.with_suffix(".old").exists()
        if is_new and not whole.exists():
            # it was killed after the old folder was moved away: the new one is whole
            path.replace(whole)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    if pid == os.getpid():
        return False  # this process has just begun its work here, so the name is that of an earlier one
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents for their owner only; one that is there already keeps its mode.

    Stores, runs and bundles hold questions, pictures and answers of whoever made them, which other users of a machine
    have no business reading unless the owner says so with `chmod`.
    """
    for missing in reversed((folder, *folder.parents)):
        if not missing.is_dir():
            missing.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """One process at a time works on a run folder; another one is told by which. A killed one leaves nothing behind:
    the lock is the system's, and the file only says whose it is.
    """
    path = folder / LOCK
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise LeverError(
            f"cannot write to {folder} ({error.strerror}); make it writable, or make room"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            other = file.read().strip() or "unknown"
            raise LeverError(
                f"{folder} is being worked on by another process (pid {other}); wait until it has ended, or choose "
                "another folder with --out DIR"
            ) from error
        file.truncate(0)
        with disk_sentence(path):
            file.write(str(os.getpid()))
            file.flush()
        clear_leftovers(folder)
        yield


BEAT_SECONDS = 5.0


class Heartbeat:
    """Says in `progress.json` how far the work on a run is, at most every few seconds: who looks on sees it go on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: float | None = None
        self.written: float | None = None

    def beat(self, what: str, done: int, total: int) -> None:
        """`seconds` is the time since the beat before: how long the next one may take."""
        now = time.monotonic()
        seconds = 0.0 if self.heard is None else round(now - self.heard, 3)
        self.heard = now
        is_due = self.written is None or now - self.written >= BEAT_SECONDS
        # no run folder: the arms of a benchmark, `lever world ladder`
        if is_due and (self.folder / MANIFEST).is_file():
            self.written = now
            state = {"what": what, "done": done, "total": total, "seconds": seconds}
            write_json(self.folder / PROGRESS, state)


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """The versions of the packages that compute."""
    found = {"leverplus": __version__}
    for name in ("torch", "numpy", "scipy", "pyarrow", "safetensors"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def commit() -> str | None:
    """The commit of the source tree, where there is one."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return None
    words = ["git", "-C", str(here), "rev-parse", "HEAD"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


SHIPPED = "tables:"
"""What the name of a file begins with that travels in the package."""


def shipped(name: str) -> Path:
    """The path of a file; `tables:NAME` is one that travels in the package."""
    if name.startswith(SHIPPED):
        return Path(__file__).parents[1] / "tables" / name.removeprefix(SHIPPED)
    return Path(name).expanduser()
