"""Log sinks: MLflow, Weights & Biases and TensorBoard are given every line of the training log, by accelerate's trackers.

log.jsonl stays what counts. A sink that cannot be opened, or fails later, is left out with one note, and the training
goes on. Unless the environment names a server, everything is written below the run folder, without a network.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leverplus.data import rundir
from leverplus.errors import install_command
from leverplus.learn.runlog import CONTEXT, RunLog
from leverplus.run.run import Run

PROJECT = "leverplus"
"""The project or experiment that runs are listed under."""


class LogSinks:
    """The sinks of one training, opened when the first line is there for them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.trackers: dict[str, Any] = dict.fromkeys(run.recipe.train.log_to)
        self.lines = 0

    def write(self, line: Mapping[str, Any]) -> None:
        """Pass on a line of the log, and before the first one what an interrupted training has logged already."""
        lines: Sequence[Mapping[str, Any]] = [line]
        if self.trackers and not self.lines:
            self._each(lambda name, _: open_tracker(name, self.run))
            lines = RunLog(self.run.folder / rundir.LOG).lines()  # the last is this one
        for own in lines:
            self.lines += 1
            values = numbers_of(own)
            step = self.lines
            self._each(lambda _, tracker: tracker.log(values, step=step))  # noqa: B023

    def close(self) -> None:
        self._each(lambda _, tracker: tracker and tracker.finish())

    def _each(self, work: Callable[[str, Any], Any]) -> None:
        """Do it with every tracker; where it fails, for whatever reason, say so once and leave this one out."""
        for name, tracker in list(self.trackers.items()):
            try:
                self.trackers[name] = work(name, tracker) or tracker
            except Exception as error:
                del self.trackers[name]
                reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                if isinstance(error, ImportError):
                    reason = f"it is not installed; type `{install_command(name)}`"
                self.run.say(
                    f"note: {name} gets nothing of this training from here on ({reason}); {rundir.LOG} has it all"
                )


def numbers_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line by names that begin with its stage; what was not finite is left out."""
    found = {}
    for name, value in line.items():
        if name not in CONTEXT[:3] and isinstance(value, (int, float)):
            # MLflow refuses the @ of val/reward@1
            found[f"{line.get('stage', '')}/{name.replace('@', '_')}"] = float(value)
    return found


def open_tracker(name: str, run: Run) -> Any:
    """A tracker that knows every setting of the recipe, and the seed."""
    from accelerate.tracking import (
        MLflowTracker,
        TensorBoardTracker,
        WandBTracker,
    )

    place = run.folder / rundir.SINKS
    place.mkdir(exist_ok=True)
    tracker: Any
    if name == "tensorboard":
        tracker = TensorBoardTracker("tensorboard", place)
    elif name == "wandb":
        mode = os.environ.get("WANDB_MODE", "offline")
        folder = str(place)
        title = run.folder.name
        tracker = WandBTracker(PROJECT, name=title, dir=folder, mode=mode)
    else:
        uri = (place / "mlflow").resolve().as_uri()
        os.environ.setdefault("MLFLOW_TRACKING_URI", uri)
        # a folder of files is what offline means here
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        tracker = MLflowTracker(PROJECT, run_name=run.folder.name)
    tracker.start()
    settings: dict[str, Any] = {"seed": run.seed, "recipe_hash": run.recipe.hash}
    for section, values in run.recipe.values().items():
        for key, value in values.items():
            settings[f"{section}.{key}"] = str(value)
    tracker.store_init_configuration(settings)
    return tracker
