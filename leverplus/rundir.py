"""A run folder: the name of every file in it, the one atomic write, one reader for each kind of file, and its lock.

No other module writes one of these names as a text; `tests/test_rundir.py` looks.
"""

from __future__ import annotations

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

from leverplus.errors import DataError, LeverError, MissingFile
from leverplus.parsing import parse_own_json
from leverplus.renamed import first_name, stage_today
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
    stem, dot, ending = name.partition(".")
    return name if split == "test" else f"{stem}-{split}{dot}{ending}"


def stage_folder(parent: Path, name: str) -> Path:
    """The folder of a stage or of one of its epochs in CHECKPOINTS or STATE; it keeps a first name that it has."""
    former = parent / first_name(name)
    return former if former.is_dir() else parent / name


def started_from(run: Path, name: str) -> Path | None:
    """The folder a run was started from, where it has this relative path and the current folder has not."""
    if not name or Path(name).expanduser().is_absolute() or Path(name).exists():
        return None
    manifest = run / MANIFEST
    home = read_json(manifest).get("started_in") if manifest.is_file() else None
    return Path(home) if isinstance(home, str) and (Path(home) / name).exists() else None


def moved_paths(run: Path, section: Any, keys: Sequence[str]) -> dict[str, Any]:
    """Relative paths of a section that are not here, but in the folder where the run was started from."""
    homes = {key: started_from(run, getattr(section, key)) for key in keys}
    return {key: str(home / getattr(section, key)) for key, home in homes.items() if home is not None}


def read_json(path: Path, command: str | None = None) -> dict[str, Any]:
    """The JSON object of a file; an error names `command`, which makes the file again, where the caller knows it."""
    missing = f"is {path.parent} a run folder? `lever run` makes one"
    again = "delete it and run the command that makes it again"
    if command is not None:
        missing = f"type `{command}` if it is a run folder"
        again = f"type `{command}` to make it again"
    try:
        value = parse_own_json(path.read_bytes())
    except FileNotFoundError as error:
        raise MissingFile(f"{path} is not there; {missing}") from error
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
    for number, text in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if isinstance(line, dict):
            if isinstance(line.get("stage"), str):
                line["stage"] = stage_today(line["stage"])
            lines.append(line)
        else:
            damaged.append(number)
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
        with suppress(OSError):  # on a disk that can only be read there is nothing to take away
            part.unlink(missing_ok=True)
        raise


class staged_folder:
    """A folder to write into that takes its place only when everything was written; a full disk is one sentence."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = folder.with_name(f".{folder.name}.{os.getpid()}.new")

    def __enter__(self) -> Path:
        shutil.rmtree(self.place, ignore_errors=True)
        with disk_sentence(self.folder):
            self.place.mkdir(parents=True)
        return self.place

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _trace: object) -> None:
        with disk_sentence(self.folder):
            if value is not None:
                shutil.rmtree(self.place, ignore_errors=True)
                if isinstance(value, OSError):
                    raise value
                return
            old = self.folder.with_name(f".{self.folder.name}.{os.getpid()}.old")
            if self.folder.exists():
                os.replace(self.folder, old)
            os.replace(self.place, self.folder)
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
        found = _LEFT_OVER.fullmatch(path.name)
        if found is None or _alive(int(found["pid"])) or not path.exists():
            continue
        whole = path.with_name(found["name"])
        if found["end"] == ".new" and not whole.exists() and path.with_name(f"{path.name[:-4]}.old").exists():
            path.replace(whole)  # it was killed after the old folder was moved away: the new one is whole
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    if pid == os.getpid():
        return False  # this process has just begun its work here, so the name is that of an earlier one
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents for their owner only; one that is there already keeps its mode.

    Stores, runs and bundles hold questions, pictures and answers of whoever made them, which other users of a machine
    have no business reading unless the owner says so with `chmod`.
    """
    if not folder.is_dir():
        if folder.parent != folder:
            make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """One process at a time works on a run folder; another one is told by which. A killed one leaves nothing behind:
    the lock is the system's, and the file only says whose it is.
    """
    import fcntl

    path = folder / LOCK
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise LeverError(f"cannot write to {folder} ({error.strerror}); make it writable, or make room") from error
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
        seconds = 0.0 if self.heard is None else now - self.heard
        self.heard = now
        if self.written is None or now - self.written >= BEAT_SECONDS:
            self.written = now
            if not (self.folder / MANIFEST).is_file():  # no run folder: the arms of a benchmark, `lever world ladder`
                return
            write_json(
                self.folder / PROGRESS, {"what": what, "done": done, "total": total, "seconds": round(seconds, 3)}
            )


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """The versions of the packages that compute."""
    names = ("torch", "numpy", "scipy", "pyarrow", "safetensors")
    installed = {name for name in names if next(iter(metadata.distributions(name=name)), None) is not None}
    return {"leverplus": __version__} | {name: metadata.version(name) for name in names if name in installed}


def commit() -> str | None:
    """The commit of the source tree, where there is one."""
    here = Path(__file__).resolve().parent.parent
    if not (here / ".git").exists():
        return None
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


SHIPPED = "tables:"
"""What the name of a file begins with that travels in the package."""


def shipped(name: str) -> Path:
    """The path of a file; `tables:NAME` is one that travels in the package."""
    if name.startswith(SHIPPED):
        return Path(__file__).parent / "tables" / name.removeprefix(SHIPPED)
    return Path(name).expanduser()
