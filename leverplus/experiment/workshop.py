"""Where the runs of a larger experiment live, and how one of them is made or taken up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leverplus import rundir
from leverplus.recipe.recipe import Recipe

if TYPE_CHECKING:
    from leverplus.evaluation.runs import EvaluatedRun
    from leverplus.experiment.run import Run


@dataclass(frozen=True)
class Workshop:
    """A folder of runs that share one store; `say` and `progress` tell the user how far they are.

    What runs of the same task read alike, the items and their vectors, is read once and kept in `first`.
    """

    folder: Path
    store: Path
    say: Callable[[str], None] = lambda _: None
    progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None
    first: dict[object, Run] = field(default_factory=dict)

    def open(self, recipe: Recipe, source: Path, name: str, seed: int) -> Run:
        """The run of a recipe and a seed in `NAME-seedN`, new or taken up; another one in its place is refused."""
        from leverplus.experiment.opening import open_run

        folder = self.folder / f"{name}-seed{seed}"
        first = self.first.get((recipe.task, recipe.embed))
        run = open_run(
            recipe,
            source,
            folder,
            seed=seed,
            store_path=self.store,
            say=self.say,
            progress=self.progress,
            shared=first.parts if first else None,
        )
        return self.first.setdefault((recipe.task, recipe.embed), run) if first is None else run


def evaluate_once(run: Run) -> dict[str, Any]:
    """What the run's selector does on test: read from its folder, or trained, measured and examined now."""
    from leverplus.experiment.evaluate import evaluate_run
    from leverplus.experiment.monitor import examine_run
    from leverplus.experiment.train import train_run
    from leverplus.rundir import read_json

    done, findings = run.folder / rundir.EVAL, run.folder / rundir.FINDINGS
    if not done.is_file():
        evaluate_run(run, train_run(run), advise=False)
    if not findings.is_file() or findings.stat().st_mtime_ns < done.stat().st_mtime_ns:  # as training left them
        examine_run(run)
    return read_json(done)


def read_back(run: Run) -> EvaluatedRun:
    """The evaluated run, with its predictions item by item."""
    from leverplus.evaluation.runs import read_evaluated

    return read_evaluated(run.folder, lambda split: {item.id for item in run.task.items(split)})


def seed_count(text: str) -> int:
    """How many seeds an argument asks for: 1, 2, ...; a ValueError is wrong usage."""
    count = int(text)
    if count < 1:
        raise ValueError(f"{count} seeds are none")
    return count
