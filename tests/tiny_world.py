"""A tiny run of the whole pipeline on the embedded world, for tests in several rooms."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leverplus.cli.main import main

TINY = (
    "pool.size=16", "score.budget=1300", "score.search=dense", "score.dev_queries=4", "score.dev_shots=[1,2]",
    "select.hidden=16", "sft.epochs=3", "eval.items=10", "eval.dev_items=4", "eval.shots=[1,2]",
    "eval.random_draws=1", "eval.exhaustive_calls=0", "eval.diagnostic_items=4",
)  # fmt: skip
"""Overrides of the recipe `world` that keep a whole run at a few seconds; scoring takes more than one chunk."""


def tiny_arguments(folder: Path, store: Path, *more: str) -> list[str]:
    """`lever run` with these sizes."""
    sets = [word for override in TINY for word in ("--set", override)]
    return ["run", "world", "--out", str(folder), "--store", str(store), *sets, *more]


@dataclass(frozen=True)
class TinyRun:
    """A finished run: its folder, its store, and what `lever run --json` printed."""

    folder: Path
    store: Path
    printed: str

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.printed)
        return report


def copy_store(source: Path, target: Path) -> Path:
    """A copy of a store that somebody may still hold open: of its file alone what lies in its log would be missing."""
    with (
        closing(sqlite3.connect(source)) as held,
        closing(sqlite3.connect(target)) as copy,
    ):
        held.backup(copy)
    return target


def run_tiny(folder: Path, store: Path, *more: str) -> TinyRun:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(tiny_arguments(folder, store, "--json", *more)) == 0
    return TinyRun(folder, store, out.getvalue())
