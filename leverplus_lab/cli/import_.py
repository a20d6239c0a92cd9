"""`lever import`: says what a file of the earlier Lever-Plus code is, what is wrong with it, and takes it over."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from leverplus.cli.command import Outcome
from leverplus.cli.stored import load_task
from leverplus.errors import LeverError
from leverplus_lab.legacy.groups import item_numbers
from leverplus_lab.legacy.imports import import_file as read_file


def import_file(
    file: Path,
    *,
    into: Path | None = None,
    task: str | None = None,
    set_: Sequence[str] = (),
) -> Outcome:
    """Takes over a file of the earlier Lever-Plus code.

    FILE: beam, RL or metrics JSON, or a .pt or .ckpt checkpoint
    --into DIR: write it there; without it the file is only described
    --task TASK: give items the ids they have in this task (okvqa, vqav2)
    --set KEY=VALUE ...: a value of [task], such as folder=data/okvqa
    """
    names = None
    if task:
        loaded = load_task(task, set_)
        names = item_numbers([*loaded.items("train"), *loaded.items("dev")])
        if not names:
            raise LeverError(
                f"task {task} does not number its items as the earlier code did; leave --task out"
            )
    result = read_file(file, into, names)
    lines = [f"{file}: {result.found}", *(f"  {note}" for note in result.notes)]
    for path in result.written:
        lines.append(f"written: {path}")
    if not result.written:
        lines.append(f"nothing was written; --into DIR takes {file} over")
    return Outcome(dataclasses.asdict(result), lines)
