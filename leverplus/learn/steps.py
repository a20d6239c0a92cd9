"""The optimiser's steps: batches of rows in, weights moved, with what the batches said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from leverplus.errors import TrainingError
from leverplus.learn.data.batch import GroupBatch, collate
from leverplus.learn.data.rows import Row
from leverplus.learn.maths.losses import LossParts
from leverplus.learn.maths.schedules import learning_rate
from leverplus.learn.measures import BatchMeans
from leverplus.learn.policies.base import Policy
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.seeds import derive_seed
from leverplus.learn.stages import Progress, Stage


class Steps:
    """The steps of one stage: `taken` so far, `total` as planned; what is frozen by now is not moved."""

    def __init__(
        self,
        policy: Policy,
        stage: Stage[Any],
        table: ItemTable,
        *,
        name: str,
        seed: int,
    ) -> None:
        self.policy = policy
        self.stage = stage
        self.table = table
        self.name = name
        self.seed = seed
        self.config = stage.config
        self.trained = [own for own in policy.parameters() if own.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.trained,
            lr=self.config.lr,
            weight_decay=self.config.weight_decay,
            fused=True,
        )
        self.taken = 0
        self.total = 0

    def plan(
        self,
        rows: int,
        epoch: int,
    ) -> None:
        """Set the total: what was taken, and the steps of this and all later epochs with this many rows."""
        config = self.config
        batches = math.ceil(rows / config.batch_size)
        self.total = self.taken + batches * (config.epochs - epoch)

    def progress(self, epoch: int) -> Progress:
        return Progress(epoch, self.taken, self.total)

    def run_epoch(
        self,
        rows: Sequence[Row],
        epoch: int,
    ) -> dict[str, float]:
        """One pass over the rows in batches; the means (largest for .../max) of what the batches said."""
        meter = BatchMeans()
        size = self.config.batch_size
        self.stage.enough = False
        self.policy.train(self.stage.dropout)
        for start in range(0, len(rows), size):
            self._step(rows[start : start + size], epoch, meter)
            if self.stage.enough:
                break
        self.policy.eval()
        return meter.means()

    def _step(
        self,
        rows: Sequence[Row],
        epoch: int,
        meter: BatchMeans,
    ) -> None:
        """One step of the optimiser on the gradient of a batch."""
        rate = self._rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        batch = collate(rows, self.table, tried=self.stage.tried_only(self.policy))
        seed = derive_seed(self.seed, self.name, self.taken, 0, "dropout")
        result = self._loss(batch, epoch, seed)
        if result.total.requires_grad:
            torch.autograd.backward(result.total)
        said = dict(result.diagnostics)
        for name, term in result.parts.items():
            said[f"loss/{name}"] = float(term.detach())
        said["loss/total"] = float(result.total.detach())
        meter.add(said, len(batch))
        limit = self.config.grad_clip
        # the norm before clipping
        norm = float(torch.nn.utils.clip_grad_norm_(self.trained, limit or math.inf))
        self.optimizer.step()
        clipped = float(limit > 0 and norm > limit)
        meter.add({"grad_norm": norm, "frac_clipped_steps": clipped}, 1)
        meter.last["lr"] = rate
        self.taken += 1

    def _rate(self) -> float:
        """The learning rate of the next step."""
        config = self.config
        warmup = round(self.config.warmup * self.total)
        return learning_rate(
            config.lr,
            config.schedule,
            self.taken,
            self.total,
            warmup=warmup,
        )

    def _loss(
        self,
        batch: GroupBatch,
        epoch: int,
        seed: int,
    ) -> LossParts:
        """The loss with dropout drawn from its own seed; the global generator is left as it was."""
        progress = self.progress(epoch)
        if self.stage.dropout:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(
                    seed
                )  # torch.manual_seed would keep a stack trace for every device
                result = self.stage.loss(self.policy, batch, progress)
        else:
            result = self.stage.loss(self.policy, batch, progress)
        if not bool(torch.isfinite(result.total)):
            raise TrainingError(
                f"stage {self.name}: the loss is {float(result.total.detach())} at step {self.taken}; "
                f"lower {self.name}.lr = {self.config.lr}, or run `lever doctor` on this run"
            )
        return result
