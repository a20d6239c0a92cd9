"""Stages: what a training stage minimises. Each is a class with one loss; the loop is elsewhere and the same for all.

A stage sees the policy and a batch of groups and returns `LossParts`; its diagnostics become `train/...` in the log.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from leverplus import catalog
from leverplus.learn.data.batch import GroupBatch
from leverplus.learn.maths import losses
from leverplus.learn.maths.advantages import live_groups
from leverplus.learn.maths.losses import LossParts
from leverplus.learn.maths.schedules import interpolate
from leverplus.learn.policies.base import (
    PAD,
    STOP,
    Policy,
    StepLogprobs,
    sequence_logprobs,
)
from leverplus.learn.settings import (
    ContrastiveConfig,
    LabelPretrainingConfig,
    ListwiseConfig,
    RceConfig,
    SftConfig,
    StageConfig,
)

ConfigT = TypeVar("ConfigT", bound=StageConfig)


@dataclass(frozen=True)
class Progress:
    """Where a stage stands: epoch (from 0) and optimiser step of how many."""

    epoch: int
    step: int
    total: int


def frozen_copy(policy: Policy) -> Policy:
    """The policy as it is now, without dropout and without gradients."""
    clone = copy.deepcopy(policy).eval()
    for parameter in clone.parameters():
        parameter.requires_grad_(False)
    return clone


def policy_logprobs(
    policy: Policy,
    batch: GroupBatch,
) -> StepLogprobs:
    """Log-probabilities of every sequence of a batch."""
    return sequence_logprobs(policy, policy.prepare(batch.features), batch.sequences)


@torch.no_grad()
def fixed_logprobs(
    policy: Policy,
    batch: GroupBatch,
) -> StepLogprobs:
    """The same under a policy that does not learn."""
    return policy_logprobs(policy, batch)


class Stage(Generic[ConfigT]):
    """What a stage minimises, and what it remembers from epoch to epoch.

    `anchors` are the selectors of earlier stages by their names (`sft`). `copies` are policies that the stage itself
    has frozen (a reference, the one that clipping refers to) and `numbers` what else it needs to go on (a weight that
    follows the KL): both are saved with the state of the training. `enough` ends the pass over the rows early.
    """

    dropout = True
    """Whether the loss is computed with dropout; ratios between two passes need it off."""

    def __init__(
        self,
        config: ConfigT,
        policy: Policy,
        anchors: Mapping[str, Policy],
    ) -> None:
        self.config = config
        self.anchors = dict(anchors)
        self.copies: dict[str, Policy] = {}
        self.numbers: dict[str, float] = {}
        self.enough = False
        self.begin(policy)

    def begin(self, policy: Policy) -> None:
        """Before the first epoch."""

    def tried_only(self, policy: Policy) -> bool:  # noqa: ARG002 one signature
        """Whether candidates that no sequence has can be left out of a batch without changing the loss."""
        return False

    def begin_epoch(
        self,
        policy: Policy,
        epoch: int,
    ) -> None:
        """Before every epoch (from 0)."""

    def loss(
        self,
        policy: Policy,
        batch: GroupBatch,
        progress: Progress,
    ) -> LossParts:
        raise NotImplementedError

    def end_epoch(self, metrics: Mapping[str, float]) -> None:
        """After every epoch, with the mean of its diagnostics."""


def sequence_nll(
    logprobs: StepLogprobs,
    mask: Tensor,
) -> dict[str, float]:
    """Mean NLL of the sequences and how much of a uniform policy's NLL has been learnt away."""
    nll = float(-logprobs.total.detach()[mask].mean())
    allowed = (logprobs.table.detach() > -torch.inf).sum(
        -1
    )  # (B, G, S) actions that a step may take
    choices = allowed.clamp(
        min=1
    ).log()  # (B, G, S) the NLL of a step under a uniform policy
    uniform = float((choices * logprobs.valid).sum(-1)[mask].mean())
    return {"nll": nll, "nll_skill": 1.0 - nll / uniform if uniform > 0 else 0.0}


class Sft(Stage[SftConfig]):
    """Cross-entropy on the best sequence of a group, on all, or on all weighted by softmax(reward / temperature)."""

    def loss(
        self,
        policy: Policy,
        batch: GroupBatch,
        progress: Progress,  # noqa: ARG002
    ) -> LossParts:
        logprobs = policy_logprobs(policy, batch)
        weights = self._weights(batch)
        result = losses.cross_entropy(logprobs.steps, logprobs.valid, weights)
        diagnostics = sequence_nll(logprobs, batch.mask)
        return LossParts(result.total, result.parts, diagnostics, result.rows)

    def _weights(self, batch: GroupBatch) -> Tensor:
        if self.config.labels == "weighted":
            return losses.reward_weights(
                batch.rewards, batch.mask, self.config.temperature
            )
        if self.config.labels == "top":
            return best_member(batch).to(batch.rewards.dtype)
        present = batch.mask.to(batch.rewards.dtype)  # (B, G) all alike
        return present / present.sum(-1, keepdim=True).clamp(min=1.0)


def best_member(batch: GroupBatch) -> Tensor:
    """Mask (B, G) of the member with the highest reward, the first of equals."""
    ordered = batch.rewards.masked_fill(~batch.mask, -torch.inf)  # (B, G)
    return (
        torch.zeros_like(batch.mask).scatter(1, ordered.argmax(-1, keepdim=True), True)
        & batch.mask
    )


class Rce(Stage[RceConfig]):
    """Reward-weighted cross-entropy, its temperature falling over the steps."""

    def loss(
        self,
        policy: Policy,
        batch: GroupBatch,
        progress: Progress,
    ) -> LossParts:
        config = self.config
        logprobs = policy_logprobs(policy, batch)
        temperature = interpolate(
            config.temperature_start,
            config.temperature_end,
            progress.step,
            progress.total,
        )
        mask = batch.mask
        if config.skip_flat:
            mask = mask & live_groups(batch.rewards, batch.mask).unsqueeze(-1)
        weights = losses.reward_weights(
            batch.rewards, mask, temperature, config.weights
        )  # (B, G)
        result = losses.rce(
            logprobs.steps, logprobs.valid, weights, mask, config.centred
        )
        diagnostics = {**sequence_nll(logprobs, batch.mask), "temperature": temperature}
        return LossParts(result.total, result.parts, diagnostics, result.rows)


class Listwise(Stage[ListwiseConfig | LabelPretrainingConfig]):
    """Soft targets over the known next picks of each prefix, or the better of each two of them before the worse: a
    dense one-shot table, or a table for each step."""

    def tried_only(self, policy: Policy) -> bool:
        return self.config.among != "pool" and policy.candidates_apart

    def loss(
        self,
        policy: Policy,
        batch: GroupBatch,
        progress: Progress,  # noqa: ARG002
    ) -> LossParts:
        sequences, steps, targets = prefix_tables(batch, policy.stops)
        encoded = policy.prepare(batch.features)
        table = sequence_logprobs(policy, encoded, sequences).table  # (B, N, S, A)
        # of each sequence only the step behind its prefix is wanted
        index = steps[..., None, None].expand(
            -1, -1, 1, table.shape[-1]
        )  # (B, N, 1, A)
        log_p = torch.gather(table, 2, index).squeeze(2)  # (B, N, A)
        named = (
            self.config.loss if isinstance(self.config, ListwiseConfig) else "listwise"
        )
        loss = catalog.load(catalog.LISTWISE_LOSSES, named, "loss")
        result: LossParts = loss(
            log_p, targets, self.config.temperature, self.config.among
        )
        unmeasured = targets.isnan()  # (B, N, A)
        best = targets.masked_fill(unmeasured, -torch.inf).argmax(-1)  # (B, N)
        likeliest = (
            log_p.detach().masked_fill(unmeasured, -torch.inf).argmax(-1)
        )  # (B, N)
        hit = (likeliest == best)[(~unmeasured).any(-1)]
        accuracy = {"listwise/accuracy": float(hit.float().mean())} if len(hit) else {}
        return LossParts(
            result.total, result.parts, {**result.diagnostics, **accuracy}, result.rows
        )


class Contrastive(Stage[ContrastiveConfig]):
    """InfoNCE on single candidates: those with like answers before those with less alike ones (van den Oord 2018)."""

    def tried_only(self, policy: Policy) -> bool:
        return policy.candidates_apart

    def loss(
        self,
        policy: Policy,
        batch: GroupBatch,
        progress: Progress,  # noqa: ARG002
    ) -> LossParts:
        config = self.config
        scores = policy_logprobs(policy, batch).total  # (B, G), one candidate a member
        result = losses.info_nce(
            scores,
            batch.rewards,
            batch.mask,
            positives=config.positives,
            margin=config.margin,
        )
        ahead = scores.detach().masked_fill(~batch.mask, -torch.inf).argmax(-1)  # (B,)
        chosen = batch.rewards.gather(1, ahead.unsqueeze(-1)).mean()
        diagnostics = {**result.diagnostics, "contrastive/likeness": float(chosen)}
        return LossParts(result.total, result.parts, diagnostics, result.rows)


def prefix_tables(
    batch: GroupBatch,
    stops: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Prefixes with several measured next picks: a sequence through each (B, N, S), its step, rewards (B, N, A).

    A reward is NaN where the pick was not measured. A list's reward belongs to its last pick and, where the policy may
    stop, also to stopping after it: at every prefix "stop here" competes with each measured next pick.
    """
    actions = batch.features.pool.shape[1] + int(stops)
    columns = (batch.sequences.tolist(), batch.mask.tolist(), batch.rewards.tolist())
    found: list[list[tuple[tuple[int, ...], dict[int, float]]]] = []
    for sequences, mask, rewards in zip(*columns, strict=True):
        nodes: dict[tuple[int, ...], dict[int, float]] = {}
        for sequence, present, reward in zip(
            sequences,
            mask,
            rewards,
            strict=True,
        ):
            picks = tuple(position for position in sequence if position >= 0)
            if present and STOP in sequence:
                nodes.setdefault(picks, {})[actions - 1] = reward
            if present and picks:
                nodes.setdefault(picks[:-1], {})[picks[-1]] = reward
        found.append([node for node in nodes.items() if len(node[1]) > 1])
    # N is the largest number of prefixes of a row; rows with fewer end in prefixes whose targets are all NaN
    width = 1
    longest = 1
    for kept in found:
        width = max(width, len(kept))
        for path, _ in kept:
            longest = max(longest, len(path) + 1)
    paths = torch.full((len(found), width, longest), PAD, dtype=torch.long)
    steps = torch.zeros(len(found), width, dtype=torch.long)
    targets = torch.full((len(found), width, actions), torch.nan)
    for row, kept in enumerate(found):
        for column, (path, children) in enumerate(kept):
            paths[row, column, : len(path)] = torch.tensor(path, dtype=torch.long)
            steps[row, column] = len(path)
            targets[row, column, list(children)] = torch.tensor(list(children.values()))
    return paths, steps, targets
