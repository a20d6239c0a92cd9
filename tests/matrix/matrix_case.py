"""One case of the matrix: a drawn task and a drawn recipe, run by the command users type, and what is demanded of it.

Either the run ends with an eval.json that its reader accepts, and typed again it asks nothing and gives the same bytes;
or it is refused with a message that names the key or file to change. Never a traceback, a warning or a lost evaluation.
"""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from matrix_models import Asked
from matrix_recipes import Values, draw_recipe
from matrix_tasks import DrawnTask, draw_task

from leverplus.learn.settings import SECTIONS
from leverplus.run.recipe import PLAIN

KEY = re.compile(
    rf"\b({'|'.join([*PLAIN, 'select', *SECTIONS])})\.[a-z_0-9]+|\[({'|'.join(SECTIONS)})\]"
)
"""How a message names a key of a recipe."""

NAMES = re.compile(
    r"\bdata\.jsonl\b|\bp\d+\.(png|jpg)\b|\bsplit (train|dev|test)\b|--[a-z-]+\b"
)
"""How a message names a file of the case, a split of it, or an option to type."""


HANGS = 1800
"""Seconds after which a process is taken to hang; on a crowded machine one case took more than 300."""


@dataclass
class Case:
    """A drawn case, before it is run."""

    seed: int
    folder: Path
    task: DrawnTask
    values: Values

    @property
    def recipe(self) -> Path:
        return self.folder / "drawn.toml"

    def command(self) -> list[str]:
        paths = [
            "--out",
            str(self.folder / "run"),
            "--store",
            str(self.folder / "scores.db"),
        ]
        return ["run", str(self.recipe), *paths, "--seed", str(self.seed % 3)]

    def describe(self) -> str:
        """The recipe and the data, for somebody who wants to see what was tried."""
        rows = "\n".join(json.dumps(row) for row in self.task.rows)
        return f"# {self.task.kind}: {', '.join(self.task.traits)}\n{tomli_w.dumps(self.values)}\n# data.jsonl\n{rows}"


@dataclass
class Outcome:
    """What a case came to: `evaluated`, `refused`, or `failed` with the reason."""

    seed: int
    end: str
    message: str = ""
    seconds: float = 0.0
    asked: int = 0
    notes: list[str] = field(default_factory=list)


def draw_case(seed: int, folder: Path, models: Mapping[str, str]) -> Case:
    """The case of a seed; the same seed gives the same case."""
    rng = random.Random(seed)
    task = draw_task(rng, folder)
    return write_case(seed, folder, task, draw_recipe(rng, task, models))


def write_case(seed: int, folder: Path, task: DrawnTask, values: Values) -> Case:
    """A case whose recipe is written into its folder, where the data is."""
    folder.mkdir(parents=True, exist_ok=True)
    case = Case(seed, folder, task, values)
    case.recipe.write_text(tomli_w.dumps(case.values), encoding="utf-8")
    return case


def run_case(case: Case, asked: Asked, *, subprocesses: bool = False) -> Outcome:
    """Run a case and judge it; the folder is left as it is."""
    started = time.monotonic()
    before = asked.count
    typed = _type_outside if subprocesses else _type
    code, shown = typed(case.command())
    outcome = _judge(case, code, shown)
    outcome.asked = asked.count - before
    if outcome.end == "evaluated":
        _judge_again(case, asked, outcome, typed)
    if outcome.end == "evaluated":
        _judge_after(case, outcome)
    outcome.seconds = time.monotonic() - started
    return outcome


def _type(arguments: list[str]) -> tuple[int | None, str]:
    """Run `lever` in this process: its exit code and what it said; None and the stack where it broke."""
    from leverplus.cli.main import main

    out = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(out), redirect_stderr(out):
        warnings.simplefilter("error")
        try:
            return main(arguments), out.getvalue()
        except SystemExit as stop:
            return int(stop.code or 0), out.getvalue()
        except Exception:
            return None, f"{out.getvalue()}\n{traceback.format_exc()}"


def _type_outside(arguments: list[str]) -> tuple[int | None, str]:
    """Run `lever` as a process of its own."""
    words = [sys.executable, "-W", "error", "-m", "leverplus.cli.main", *arguments]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=HANGS, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"not done after {HANGS} s"
    text = done.stdout + done.stderr
    return (None if "Traceback" in text else done.returncode), text


def _judge(case: Case, code: int | None, shown: str) -> Outcome:
    if code is None or "Traceback" in shown:
        return Outcome(case.seed, "failed", f"a traceback\n{shown}")
    if re.search(
        r"\bwarning:|Warning\b",
        shown.replace("warning after", "").replace("warning before", ""),
    ):
        return Outcome(case.seed, "failed", f"a warning\n{shown}")
    if code == 0:
        return _judge_evaluated(case, shown)
    message = shown[shown.rfind("lever: ") :].strip()
    if code not in (1, 2) or not message.startswith("lever: "):
        return Outcome(case.seed, "failed", f"exit {code} without a sentence\n{shown}")
    if (case.folder / "run" / "predictions.parquet").is_file():
        return Outcome(
            case.seed,
            "failed",
            f"lost evaluation: the arms were answered, then\n{message}",
        )
    if not KEY.search(message) and not NAMES.search(message):
        return Outcome(
            case.seed, "failed", f"refused, but no key or file is named\n{message}"
        )
    return Outcome(case.seed, "refused", message)


def _judge_evaluated(case: Case, shown: str) -> Outcome:
    """eval.json is read as the comparison of runs reads it, and holds what it promises."""
    from leverplus.evaluate.runs import read_evaluated

    folder = case.folder / "run"
    trained = "so training is left out" not in shown  # a pilot may say so
    try:
        read_evaluated(folder, arm="learned" if trained else "random")
    except Exception:
        return Outcome(
            case.seed,
            "failed",
            f"eval.json is not accepted\n{traceback.format_exc()}\n{shown}",
        )
    written = ("report.html", "findings.json")
    problems = [
        f"{folder}/{name} is missing"
        for name in written
        if not (folder / name).is_file()
    ]
    report = json.loads((folder / "eval.json").read_text(encoding="utf-8"))
    problems += _report_problems(report, case.values["eval"]["shots"], trained)
    problems += _forecast_problems(report, shown)
    if problems:
        return Outcome(case.seed, "failed", "\n".join(problems) + f"\n{shown}")
    return Outcome(case.seed, "evaluated")


def _report_problems(
    report: Mapping[str, Any], shots: list[int], trained: bool
) -> list[str]:
    """What is wrong with the numbers of an eval.json."""
    problems = []
    if not report["n"] >= 1:
        problems.append(f"n = {report['n']}")
    for arm in ("zero_shot", "random", "learned")[: 3 if trained else 2]:
        if arm not in report["arms"]:
            problems.append(f"no arm {arm}")
    for arm, row in report["arms"].items():
        bad = [value for value in row["shots"].values() if not 0.0 <= value <= 1.0]
        if bad:
            problems.append(f"{arm}: accuracies {bad}")
    learned = report["arms"].get("learned", {"shots": {}})["shots"]
    if trained and sorted(map(int, learned)) != sorted(shots):
        problems.append(f"learned has shots {sorted(learned)}, asked for {shots}")
    if "NaN" in json.dumps(report) or "Infinity" in json.dumps(report):
        problems.append("eval.json holds NaN or Infinity")
    return problems


def _forecast_problems(report: Mapping[str, Any], shown: str) -> list[str]:
    """What was asked is never more than what was said at the start."""
    said = re.search(r"forecast: (?:at most )?([0-9,]+) calls", shown)
    if said is None:
        return ["no forecast was said"]
    forecast = int(said[1].replace(",", ""))
    asked = report["model_calls"] + report["eval_calls"] + report.get("dev_calls", 0)
    return [f"{asked} calls, and {forecast} were forecast"] if asked > forecast else []


def _judge_again(case: Case, asked: Asked, outcome: Outcome, typed: Any) -> None:
    """Typed a second time: nothing is asked, the bytes are the same."""
    path = case.folder / "run" / "eval.json"
    content, count = path.read_bytes(), asked.count
    code, shown = typed(case.command())
    if code != 0:
        outcome.end, outcome.message = "failed", f"typed again: exit {code}\n{shown}"
    elif path.read_bytes() != content:
        outcome.end, outcome.message = (
            "failed",
            f"typed again: other bytes\n{_difference(content, path.read_bytes())}",
        )
    elif asked.count != count:
        outcome.end, outcome.message = (
            "failed",
            f"typed again: {asked.count - count} prompts were asked",
        )


def _difference(first: bytes, second: bytes) -> str:
    one, other = json.loads(first), json.loads(second)
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return "\n".join(f"{key}: {one.get(key)} -> {other.get(key)}" for key in keys)[
        :2000
    ]


def _judge_after(case: Case, outcome: Outcome) -> None:
    """One more command that people type on a finished run."""
    rng = random.Random(f"after {case.seed}")
    run, store = str(case.folder / "run"), str(case.folder / "scores.db")
    commands = (
        ["eval", run, "--store", store, "--split", "dev"],
        ["eval", run, "--store", store, "--split", "dev", "--checkpoint", "all"],
        ["doctor", run],
        ["doctor", store],
        ["report", run],
        ["compare", run, "--baseline", "random"],
        ["select", run, "--question", "what is it", "-k", "1"],
        ["store", "verify", "--store", store],
    )
    command = rng.choice(commands)
    code, shown = _type(command)
    if code is None or (code and "lever: " not in shown):
        outcome.end, outcome.message = (
            "failed",
            f"lever {' '.join(command)}: exit {code}\n{shown}",
        )


def forget(case: Case) -> None:
    """Delete what a case wrote."""
    shutil.rmtree(case.folder, ignore_errors=True)
