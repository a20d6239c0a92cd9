"""The one training loop: every stage runs here, resumes exactly and keeps a checkpoint an epoch.

All randomness (order, dropout) follows from (run seed, stage, epoch, step), so a run that was stopped and resumed ends
with the same weights as one that was not. Only the model, the optimiser, the stage's copies and a few numbers are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leverplus import catalog
from leverplus.data import rundir
from leverplus.data.settings import hashed_settings
from leverplus.errors import TrainingError
from leverplus.learn import checkpoint
from leverplus.learn.data.batch import GroupBatch, collate
from leverplus.learn.data.rows import Row, RowSource, rows_of_epoch
from leverplus.learn.distributions import (
    demonstration_effects,
    describe_rows,
    first_advantages,
    write_distributions,
)
from leverplus.learn.heldout import judge_rows, split_rows
from leverplus.learn.measures import compare_picks, relative_change, term_gradients
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.decode import greedy
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.runlog import RunLog
from leverplus.learn.seeds import derive_seed
from leverplus.learn.settings import LABEL_ONLY, StageConfig
from leverplus.learn.stages import Stage, frozen_copy
from leverplus.learn.steps import Steps

Judge = Callable[[Policy], Mapping[str, float]]
"""Held-out numbers of a policy by name, such as its reward on dev."""

PROBES = 64
"""Queries on which an epoch's change of picks and the gradients of the terms are measured."""

JUDGED = 256
"""Groups of the training on which the held-out numbers are also taken, for comparison."""


@dataclass(frozen=True)
class StageInputs:
    """What a stage needs beside the policy: its name and settings, where items and earlier policies are found,
    the run's seed, and where to write (None: nothing is written and nothing resumed).

    `judge` gives held-out numbers after every epoch; `also_log` is given every line of the log.
    """

    name: str
    config: StageConfig
    table: ItemTable
    seed: int = 0
    folder: Path | None = None
    anchors: Mapping[str, Policy] = field(default_factory=dict)
    judge: Judge | None = None
    recipe_hash: str = ""
    calls: Callable[[], int] | None = None
    also_log: Callable[[Mapping[str, Any]], None] | None = None


@dataclass(frozen=True)
class StageResult:
    """How a stage ended: epochs run, the best epoch (0 is the start) and its held-out value, metrics by epoch."""

    epochs: int
    best_epoch: int
    best_value: float | None
    history: tuple[Mapping[str, float], ...]


def run_stage(
    policy: Policy,
    source: RowSource,
    inputs: StageInputs,
) -> StageResult:
    """Train a policy in place; it ends with the weights of its best epoch, or of its last (`keep`, or no `judge`).

    The source is asked for rows at the start of every round (`inner_epochs` epochs, one where a stage has no such
    setting), and once more where a stopped stage goes on: for the rows of the round that it was stopped in.
    Checkpoints are `checkpoints/<stage>-epoch001`, ... and `checkpoints/<stage>`, what the stage hands on.
    """
    trainer = _Trainer(policy, inputs)
    trainer.resume()
    round_length = getattr(inputs.config, "inner_epochs", 1)
    rows: Sequence[Row] | None = None
    while not trainer.finished():
        into_round = trainer.epoch % round_length
        if rows is None or into_round == 0:
            rows = source.rows(policy, trainer.epoch - into_round)
        trainer.run_epoch(rows)
    trainer.restore_best()
    trainer.hand_on(inputs.name, trainer.best_epoch)
    history = tuple(trainer.history)
    return StageResult(trainer.epoch, trainer.best_epoch, trainer.best_value, history)


class _Trainer:
    """One stage under way; `epoch` counts finished epochs."""

    def __init__(
        self,
        policy: Policy,
        inputs: StageInputs,
    ) -> None:
        self.policy = policy
        self.inputs = inputs
        self.config = inputs.config
        freeze(policy, frozen_parts(policy, inputs.config))
        self.stage = self._make_stage(policy, inputs.anchors)
        self.steps = self._make_steps()
        self.log = RunLog(self._place(rundir.LOG), inputs.also_log)
        self.epoch = 0
        self.best_epoch = 0
        self.best_value: float | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.easy_weights: dict[str, Tensor] = {}
        self.easy_value = -math.inf
        self.kept_out: list[Row] = []
        self.history: list[Mapping[str, float]] = []

    def _make_stage(
        self,
        policy: Policy,
        anchors: Mapping[str, Policy],
    ) -> Stage[Any]:
        made = catalog.load(catalog.STAGES, self.inputs.name, "stage")
        stage: Stage[Any] = made(self.config, policy, anchors)
        return stage

    def _make_steps(self) -> Steps:
        inputs = self.inputs
        return Steps(
            self.policy,
            self.stage,
            inputs.table,
            name=inputs.name,
            seed=inputs.seed,
        )

    def _place(self, *names: str) -> Path | None:
        """A place in the run's folder; None where nothing is written."""
        folder = self.inputs.folder
        if folder is None:
            return None
        return folder.joinpath(*names)

    def finished(self) -> bool:
        """Whether all epochs are done, or the last `patience` of them brought nothing better."""
        if self.epoch >= self.config.epochs:
            return True
        patience = self.config.patience
        if patience == 0 or self.best_value is None:
            return False
        return self.epoch - self.best_epoch >= patience

    def run_epoch(self, rows: Sequence[Row]) -> None:
        """Learn from the rows once, measure what that did, judge, log and save."""
        config = self.config
        name = self.inputs.name
        rows, self.kept_out = split_rows(rows, config.held_out)
        kept = rows_of_epoch(rows, config, self.epoch)
        if not kept:
            raise TrainingError(
                f"stage {name}: none of {len(rows)} groups is left for epoch {self.epoch + 1}; lower "
                f"{name}.min_positive_ratio, {name}.easy_gap or {name}.easy_count"
            )
        if config.easy_best and self.epoch == config.easy_epochs > 0:
            self._begin_anew()
        self.steps.plan(len(kept), self.epoch)
        if self.epoch == 0 and self.best_value is None:
            self._judge_start()
        self.stage.begin_epoch(self.policy, self.epoch)
        probe = collate(kept[:PROBES], self.inputs.table)
        before = checkpoint.tensors_of(self.policy)
        picks = self._picks(probe)
        seed = derive_seed(self.inputs.seed, name, self.epoch, "order")
        order = shuffle_rows(kept, seed)
        if self.epoch == 0:
            self._describe(order)
        metrics = self.steps.run_epoch(order, self.epoch)
        progress = self.steps.progress(self.epoch)
        metrics |= term_gradients(self.stage, self.policy, probe, progress)
        self.stage.end_epoch(metrics)
        metrics["rows"] = float(len(kept))
        metrics["update/param_rel"] = relative_change(before, self.policy)
        metrics |= compare_picks(picks, self._picks(probe), probe)
        if self.kept_out:  # the same numbers on some of what is learnt from: the gap between both is overfitting
            judged = judge_rows(self.policy, kept[:JUDGED], self.inputs.table)
            for measure, value in judged.items():
                metrics[f"fit/{measure}"] = value
        self.epoch += 1
        self._close_epoch(metrics)

    def _describe(self, order: Sequence[Row]) -> None:
        """Write what the stage has to learn from, for the report."""
        folder = self.inputs.folder
        name = self.inputs.name
        table = self.inputs.table
        if folder is None:
            return
        size = self.config.batch_size
        found = describe_rows(order, first_advantages(self.stage, order, table, size))
        # rows of a stage that learns from labels hold how far these agree, and no answer of the model
        effects = None
        if name not in LABEL_ONLY:
            effects = demonstration_effects(order, table)
        if effects is not None:
            found["effects"] = effects
        write_distributions(folder, name, found)

    def _begin_anew(self) -> None:
        """Go on from the best easy epoch as from another training's checkpoint: fresh optimiser, fresh references."""
        checkpoint.fill_policy(self.policy, self.easy_weights, "the best easy epoch")
        self._refer_to_easy(self.easy_weights)
        taken = self.steps.taken
        self.steps = self._make_steps()
        self.steps.taken = taken

    def _refer_to_easy(self, weights: Mapping[str, Tensor]) -> None:
        """Make the stage again, as if it had been given these weights and they came from imitation."""
        anchor = frozen_copy(self.policy)
        checkpoint.fill_policy(anchor, weights, "the best easy epoch")
        self.stage = self._make_stage(anchor, {**self.inputs.anchors, "sft": anchor})

    def _picks(self, probe: GroupBatch) -> Tensor:
        """The first picks of the probe queries (B, up to 2), without dropout."""
        self.policy.eval()
        with torch.no_grad():
            encoded = self.policy.prepare(probe.features)
            smallest = int(encoded.mask.sum(-1).min())
            shots = min(2, self.policy.config.max_shots, smallest)
            return greedy(self.policy, encoded, shots).positions[:, 0]

    def _judge_start(self) -> None:
        """The policy before the first epoch counts: a stage that only harms gives back what it was given."""
        if self._judges:
            self.best_value = self._value(self._judge())
            self.best_epoch = 0
            self.best_weights = checkpoint.tensors_of(self.policy)

    @property
    def _judges(self) -> bool:
        return self.inputs.judge is not None or bool(self.kept_out)

    def _judge(self) -> dict[str, float]:
        """Held-out numbers: what the run measures on dev, and the groups that were kept out of training."""
        measured: dict[str, float] = {}
        if self.inputs.judge is not None:
            measured.update(self.inputs.judge(self.policy.eval()))
        return measured | judge_rows(self.policy, self.kept_out, self.inputs.table)

    def _value(self, held_out: Mapping[str, float]) -> float:
        """The held-out number that decides, higher is better."""
        monitor = self.config.monitor
        if monitor not in held_out:
            raise TrainingError(
                f'{self.inputs.name}.monitor = "{monitor}" is not measured; known: {", ".join(held_out)}'
            )
        if monitor == "loss":
            return -held_out[monitor]
        return held_out[monitor]

    def _close_epoch(self, metrics: dict[str, float]) -> None:
        """Judge the epoch, remember its weights if they are the best, write its line of the log and its state."""
        held_out: Mapping[str, float] = {}
        value = float(self.epoch)  # where nothing is judged, the last epoch is the best
        if self._judges:
            held_out = self._judge()
            value = self._value(held_out)
            best = self.best_value
            if best is None or value > best or self.config.keep == "last":
                self.best_value = value
                self.best_epoch = self.epoch
                self.best_weights = checkpoint.tensors_of(self.policy)
        else:
            self.best_epoch = self.epoch
        easy = self.config.easy_best and self.epoch <= self.config.easy_epochs
        if easy and value > self.easy_value:
            self.easy_value = value
            self.easy_weights = checkpoint.tensors_of(self.policy)
        context: dict[str, object] = {
            "stage": self.inputs.name,
            "epoch": self.epoch,
            "step": self.steps.taken,
        }
        if self.inputs.calls is not None:
            context["lvlm_calls"] = self.inputs.calls()
        judged = {f"val/{name}": number for name, number in held_out.items()}
        self.history.append({**metrics, **judged})
        self.log.write(context, metrics, held_out)
        self.save()

    def save(self) -> None:
        """The epoch's checkpoint, and everything needed to go on from here."""
        self.hand_on(f"{self.inputs.name}-epoch{self.epoch:03d}", self.epoch)
        folder = self._place(rundir.STATE, self.inputs.name)
        if folder is None:
            return
        parts = {
            "model": checkpoint.tensors_of(self.policy),
            "best": self.best_weights,
            "easy": self.easy_weights,
            "optimizer": checkpoint.flatten_optimizer(self.steps.optimizer),
        }
        for role, copy in self.stage.copies.items():
            parts[f"copy.{role}"] = checkpoint.tensors_of(copy)
        tensors = {}
        for part, own in parts.items():
            for key, tensor in own.items():
                tensors[f"{part}.{key}"] = tensor
        numbers = {
            "epoch": self.epoch,
            "step": self.steps.taken,
            "best_epoch": self.best_epoch,
            "best_value": self.best_value,
            "numbers": self.stage.numbers,
            "history": self.history,
            "easy_value": self.easy_value if self.easy_weights else None,
            "identity": self.identity(),
        }
        checkpoint.save_state(folder, tensors, numbers)

    def hand_on(
        self,
        name: str,
        epoch: int,
    ) -> None:
        """Write the policy as it is now as a checkpoint."""
        folder = self._place(rundir.CHECKPOINTS, name)
        if folder is not None:
            extra = {"stage": self.inputs.name, "epoch": epoch}
            recipe_hash = self.inputs.recipe_hash
            checkpoint.save_checkpoint(folder, self.policy, recipe_hash, extra)

    def identity(self) -> str:
        """What must be equal for a state to be continued: settings other than the number of epochs, and the seed."""
        settings = hashed_settings(self.config)
        for key in ("epochs", "patience"):
            settings.pop(key, None)
        selector = sorted(hashed_settings(self.policy.config).items())
        seed = self.inputs.seed
        recipe_hash = self.inputs.recipe_hash
        return str(derive_seed(sorted(settings.items()), seed, recipe_hash, selector))

    def resume(self) -> None:
        """Go on from the saved state of this stage, if there is one."""
        folder = self._place(rundir.STATE, self.inputs.name)
        if folder is None or not folder.is_dir():
            self.log.rewind(self.inputs.name, 0)
            return
        tensors, numbers = checkpoint.load_state(folder)
        if numbers["identity"] != self.identity():
            raise TrainingError(
                f"{folder} belongs to other settings or another seed; choose another --out, or delete that folder"
            )
        source = str(folder)
        own = tensors_under(tensors, "model.")
        checkpoint.fill_policy(self.policy, own, source)
        self.best_weights = tensors_under(tensors, "best.")
        self.easy_weights = tensors_under(tensors, "easy.")
        if self.easy_weights:
            self.easy_value = float(numbers["easy_value"])
            if int(numbers["epoch"]) > self.config.easy_epochs:
                self._refer_to_easy(self.easy_weights)
                self.steps.stage = self.stage
        for role, copy in self.stage.copies.items():
            own = tensors_under(tensors, f"copy.{role}.")
            checkpoint.fill_policy(copy, own, source)
        moments = tensors_under(tensors, "optimizer.")
        checkpoint.restore_optimizer(self.steps.optimizer, moments)
        self.epoch, self.steps.taken = int(numbers["epoch"]), int(numbers["step"])
        self.best_epoch = int(numbers["best_epoch"])
        self.best_value = numbers["best_value"]
        self.stage.numbers = dict(numbers["numbers"])
        self.history = list(numbers["history"])
        self.log.rewind(self.inputs.name, self.epoch)

    def restore_best(self) -> None:
        if self.best_weights:
            checkpoint.fill_policy(self.policy, self.best_weights, "the best epoch")
        self.policy.eval()
        for parameter in self.policy.parameters():
            parameter.requires_grad_(True)


def frozen_parts(
    policy: Policy,
    config: StageConfig,
) -> tuple[str, ...]:
    """What a stage leaves as it is: what its settings name, and adapters unless it trains them."""
    if policy.adapters is None or getattr(config, "lora_rank", 0) > 0:
        return config.freeze
    return (*config.freeze, "adapters")


def freeze(
    policy: Policy,
    groups: Sequence[str],
) -> None:
    """Leave only the parameters outside the named groups trainable."""
    known = policy.named_groups()
    unknown = [group for group in groups if group not in known]
    if unknown:
        raise TrainingError(
            f"freeze names {', '.join(unknown)}, but this selector has {', '.join(known)}"
        )
    frozen: set[str] = set()
    for group in groups:
        frozen.update(known[group])
    if len(frozen) == len(list(policy.parameters())):
        raise TrainingError(
            "freeze names every part of the selector, so there is nothing to train"
        )
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(name not in frozen)


def shuffle_rows(
    rows: Sequence[Row],
    seed: int,
) -> list[Row]:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return [rows[index] for index in order.tolist()]


def tensors_under(
    tensors: Mapping[str, Tensor],
    prefix: str,
) -> dict[str, Tensor]:
    """The tensors whose name starts with a prefix, without it."""
    found = {}
    for name, value in tensors.items():
        if name.startswith(prefix):
            found[name.removeprefix(prefix)] = value
    return found
