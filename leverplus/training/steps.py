"""The optimiser's steps: batches of rows in, weights moved, with what the batches said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from leverplus.errors import TrainingError
from leverplus.maths.losses import LossParts
from leverplus.maths.schedules import learning_rate
from leverplus.policies.base import Policy
from leverplus.policies.items import ItemTable
from leverplus.training.data.batch import GroupBatch, collate
from leverplus.training.data.rows import Row
from leverplus.training.measures import BatchMeans
from leverplus.training.seeds import derive_seed
from leverplus.training.stages import Progress, Stage


class Steps:
    """The steps of one stage: `taken` so far, `total` as planned; what is frozen by now is not moved."""

    def __init__(self, policy: Policy, stage: Stage[Any], table: ItemTable, *, name: str, seed: int) -> None:
        self.policy, self.stage, self.table, self.name, self.seed = policy, stage, table, name, seed
        self.config = stage.config
        self.trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.trained, lr=self.config.lr, weight_decay=self.config.weight_decay, fused=True
        )
        self.taken, self.total = 0, 0

    def plan(self, rows: int, epoch: int) -> None:
        """Set the total: what was taken, and the steps of this and all later epochs with this many rows."""
        config = self.config
        batches = math.ceil(rows / config.batch_size)
        per_epoch = math.ceil(batches / config.accumulate)
        self.total = self.taken + per_epoch * (config.epochs - epoch)

    def progress(self, epoch: int) -> Progress:
        return Progress(epoch, self.taken, self.total)

    def pass_over(self, rows: Sequence[Row], epoch: int) -> dict[str, float]:
        """One pass over the rows in batches; the means (largest for .../max) of what the batches said."""
        meter = BatchMeans()
        size, together = self.config.batch_size, self.config.accumulate
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        self.stage.enough = False
        self.policy.train(self.stage.dropout)
        for start in range(0, len(batches), together):
            self._step(batches[start : start + together], epoch, meter)
            if self.stage.enough:
                break
        self.policy.eval()
        return meter.means()

    def _step(self, batches: Sequence[Sequence[Row]], epoch: int, meter: BatchMeans) -> None:
        """One step of the optimiser on the gradients of one or more batches."""
        rate = self._rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        counted, alone = 0, len(batches) == 1
        for part, rows in enumerate(batches):
            batch = collate(rows, self.table, tried=self.stage.tried_only(self.policy))
            result = self._loss(batch, epoch, derive_seed(self.seed, self.name, self.taken, part, "dropout"))
            if result.total.requires_grad:
                # a loss is a mean over its live rows; times their number it is a sum, which is divided below
                torch.autograd.backward(result.total if alone else result.total * result.rows)
            counted += result.rows
            meter.add(result.diagnostics, len(batch))
            meter.add({f"loss/{name}": float(term.detach()) for name, term in result.parts.items()}, len(batch))
            meter.add({"loss/total": float(result.total.detach())}, len(batch))
        if not alone:
            self._divide_gradients(max(counted, 1))
        limit = self.config.grad_clip
        norm = float(torch.nn.utils.clip_grad_norm_(self.trained, limit or math.inf))  # the norm before clipping
        self.optimizer.step()
        meter.add({"grad_norm": norm, "frac_clipped_steps": float(limit > 0 and norm > limit)}, 1)
        meter.last["lr"] = rate
        self.taken += 1

    def _rate(self) -> float:
        """The learning rate of the next step."""
        config, warmup = self.config, round(self.config.warmup * self.total)
        return learning_rate(config.lr, config.schedule, self.taken, self.total, warmup=warmup, end=config.final_lr)

    def _divide_gradients(self, rows: int) -> None:
        """Sums over the rows of accumulated batches as means, so that every live row counts alike."""
        for parameter in self.trained:
            if parameter.grad is not None:
                parameter.grad /= rows

    def _loss(self, batch: GroupBatch, epoch: int, seed: int) -> LossParts:
        """The loss with dropout drawn from its own seed; the global generator is left as it was."""
        progress = self.progress(epoch)
        if self.stage.dropout:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)  # torch.manual_seed would keep a stack trace for every device
                result = self.stage.loss(self.policy, batch, progress)
        else:
            result = self.stage.loss(self.policy, batch, progress)
        if not bool(torch.isfinite(result.total)):
            raise TrainingError(
                f"stage {self.name}: the loss is {float(result.total.detach())} at step {self.taken}; "
                f"lower {self.name}.lr = {self.config.lr}, or run `lever doctor` on this run"
            )
        return result
