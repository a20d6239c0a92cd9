"""Log sinks: MLflow, Weights & Biases and TensorBoard are given every line of the training log.

log.jsonl stays what counts. A sink that cannot be opened, or fails later, is left out with one note, and the training
goes on. Unless the environment names a server, everything is written below the run folder, without a network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from leverplus import rundir
from leverplus.experiment.run import Run
from leverplus.training.runlog import CONTEXT, RunLog

PROJECT = "leverplus"
"""The project or experiment that runs are listed under."""

PARAMS_AT_ONCE = 100
"""Settings in one request to MLflow, which takes no more."""

LONGEST_PARAM = 500
"""Characters of a setting's value that MLflow keeps."""

Numbers = Mapping[str, float]


class Sink(Protocol):
    """Keeps numbers by name; `epoch` counts within a stage, whose name the names begin with."""

    def write(self, numbers: Numbers, epoch: int) -> None: ...

    def close(self) -> None: ...


class LogSinks:
    """The sinks of one training, opened when the first line is there for them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.names = list(dict.fromkeys((*run.recipe.train.log_to, *run.log_to)))
        self.open: dict[str, Sink] = {}

    def write(self, line: Mapping[str, Any]) -> None:
        """Pass on a line of the log, and before the first one what an interrupted training has logged already."""
        lines: Sequence[Mapping[str, Any]] = [line]
        if self.names:
            self._open_all()
            lines = RunLog(self.run.folder / rundir.LOG).lines()  # this line is its last
        for each in lines:
            numbers, epoch = numbers_of(each)
            for name, sink in list(self.open.items()):
                self._guarded(name, partial(sink.write, numbers, epoch))

    def _open_all(self) -> None:
        for name in self.names:
            made = self._guarded(name, partial(SINKS[name], self.run))
            if made is not None:
                self.open[name] = made
        self.names = []

    def close(self) -> None:
        for name, sink in list(self.open.items()):
            self._guarded(name, sink.close)
        self.open.clear()

    def _guarded(self, name: str, work: Callable[[], Any]) -> Any:
        """Do it; where it fails, whatever the reason, say so once and leave this sink out from now on."""
        try:
            return work()
        except Exception as error:
            self.open.pop(name, None)
            self.run.say(
                f"note: {name} gets nothing of this training from here on ({_reason(name, error)}); "
                f"{rundir.LOG} has it all"
            )
            return None


def _reason(name: str, error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"it is not installed; type `pip install 'leverplus[{name}]'`"
    first = str(error).splitlines()[0][:200] if str(error) else ""
    return f"{type(error).__name__}: {first}"


def numbers_of(line: Mapping[str, Any]) -> tuple[dict[str, float], int]:
    """The numbers of a line by names that begin with its stage, and its epoch; what was not finite is left out."""
    stage = str(line.get("stage", ""))
    numbers = {
        f"{stage}/{name}": float(value)
        for name, value in line.items()
        if name not in CONTEXT and isinstance(value, (int, float))
    }
    if isinstance(line.get("lvlm_calls"), int):
        numbers[f"{stage}/lvlm_calls"] = float(line["lvlm_calls"])
    return numbers, int(line.get("epoch", 0))


def settings_of(run: Run) -> dict[str, Any]:
    """Every setting of the recipe as `section.key`, and the seed."""
    found: dict[str, Any] = {"seed": run.seed, "recipe_hash": run.recipe.hash}
    for section, values in run.recipe.values().items():
        if isinstance(values, Mapping):
            found.update({f"{section}.{key}": value for key, value in values.items()})
        else:
            found[section] = values
    return found


def _folder(run: Run) -> Path:
    place = run.folder / rundir.SINKS
    place.mkdir(exist_ok=True)
    return place


class TensorBoardSink:
    """Event files in the run folder's `sinks/tensorboard`; type `tensorboard --logdir runs`."""

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(_folder(run) / "tensorboard"))

    def write(self, numbers: Numbers, epoch: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, epoch)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class MlflowSink:
    """A run of MLflow, on the server that MLFLOW_TRACKING_URI names, else in files below `sinks/mlflow`."""

    def __init__(self, run: Run) -> None:
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            address = (_folder(run) / "mlflow").resolve().as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder of files is what offline means here
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self.client: Any = MlflowClient(tracking_uri=address)
        known = self.client.get_experiment_by_name(PROJECT)
        experiment = self.client.create_experiment(PROJECT) if known is None else known.experiment_id
        self.id = self.client.create_run(experiment, run_name=run.folder.name).info.run_id
        params = [Param(key, str(value)[:LONGEST_PARAM]) for key, value in settings_of(run).items()]
        for start in range(0, len(params), PARAMS_AT_ONCE):
            self.client.log_batch(self.id, params=params[start : start + PARAMS_AT_ONCE])

    def write(self, numbers: Numbers, epoch: int) -> None:
        for name, value in numbers.items():
            plain = re.sub(r"[^\w./ -]", "_", name)  # MLflow refuses the @ of val/reward@1
            self.client.log_metric(self.id, plain, value, step=epoch)

    def close(self) -> None:
        self.client.set_terminated(self.id)


class WandbSink:
    """A run of Weights & Biases, in files below `sinks/wandb` unless WANDB_MODE says otherwise; `wandb sync` sends."""

    def __init__(self, run: Run) -> None:
        import wandb

        self.wandb_run: Any = wandb.init(
            project=PROJECT,
            name=run.folder.name,
            dir=str(_folder(run)),
            config=settings_of(run),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )

    def write(self, numbers: Numbers, epoch: int) -> None:
        self.wandb_run.log({**numbers, "epoch": epoch})

    def close(self) -> None:
        self.wandb_run.finish()


SINKS: Mapping[str, Callable[[Run], Sink]] = {
    "mlflow": MlflowSink,
    "wandb": WandbSink,
    "tensorboard": TensorBoardSink,
}
"""By the names of `recipe.sections.LOG_SINKS`."""
