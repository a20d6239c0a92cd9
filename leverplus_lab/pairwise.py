"""The stage `pairwise`: preferences between two lists of a group."""

from __future__ import annotations

from leverplus.learn.data.batch import GroupBatch
from leverplus.learn.maths import losses
from leverplus.learn.maths.advantages import live_groups
from leverplus.learn.maths.losses import LossParts
from leverplus.learn.policies.base import Policy
from leverplus.learn.settings import PairwiseConfig
from leverplus.learn.stages import (
    Progress,
    Stage,
    best_member,
    fixed_logprobs,
    frozen_copy,
    policy_logprobs,
    sequence_nll,
)


class Pairwise(Stage[PairwiseConfig]):
    """The better of two sequences should gain more over the reference than the worse (DPO, Rafailov et al. 2023)."""

    def begin(self, policy: Policy) -> None:
        if self.config.reference == "stage_start":
            self.copies["reference"] = frozen_copy(policy)

    def loss(
        self,
        policy: Policy,
        batch: GroupBatch,
        progress: Progress,  # noqa: ARG002
    ) -> LossParts:
        config = self.config
        logprobs = policy_logprobs(policy, batch)
        scores = logprobs.total  # (B, G) log-probability of a whole list
        if "reference" in self.copies:
            scores = scores - fixed_logprobs(self.copies["reference"], batch).total
        result = losses.pairwise(
            scores,
            batch.rewards,
            batch.mask,
            margin=config.margin,
            beta=config.beta,
        )
        best = best_member(batch) & live_groups(batch.rewards, batch.mask).unsqueeze(-1)
        nll = (
            config.nll_best
            * losses.cross_entropy(
                logprobs.steps, logprobs.valid, best.to(scores.dtype)
            ).total
        )
        diagnostics = {**result.diagnostics, **sequence_nll(logprobs, batch.mask)}
        return LossParts(
            result.total + nll, {**result.parts, "nll": nll}, diagnostics, result.rows
        )
