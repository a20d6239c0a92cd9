"""Group-relative policy optimisation, with the four policies kept apart and named.

`policy` learns. `proximal` is its copy from the start of the round: ratio and clip refer to it. `reference` is what the
KL term refers to. The behaviour made the sequences; its log-probabilities came with the groups (`log_mu`). Mixing them
up was the decisive mistake of the earlier code; it can be made again with settings marked as known mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from leverplus import catalog
from leverplus.errors import NotMeasured, TrainingError
from leverplus.learn.data.batch import GroupBatch
from leverplus.learn.maths import advantages, divergences, losses
from leverplus.learn.maths.losses import LossParts, member_mean, row_mean
from leverplus.learn.maths.schedules import BetaRule
from leverplus.learn.measures import by_position
from leverplus.learn.policies.base import Policy, StepLogprobs
from leverplus.learn.settings import GrpoConfig
from leverplus.learn.stages import (
    Progress,
    Stage,
    fixed_logprobs,
    frozen_copy,
    policy_logprobs,
)


class Grpo(Stage[GrpoConfig]):
    """Clipped policy gradient on group-relative advantages, with a KL term to a reference."""

    def begin(self, policy: Policy) -> None:
        config = self.config
        if "sft" in (config.behaviour, config.reference) and "sft" not in self.anchors:
            raise TrainingError(
                'grpo.behaviour or grpo.reference = "sft": there was no sft stage before; add one'
            )
        self.dropout = config.dropout_in_ratio
        self.copies["reference"] = (
            self.anchors["sft"] if config.reference == "sft" else frozen_copy(policy)
        )
        self.copies["proximal"] = frozen_copy(policy)
        self.numbers = {"kl_beta": config.kl_beta, "fresh": 1.0}
        self.rule = BetaRule(
            config.kl_low,
            config.kl_high,
            config.beta_factor,
            config.beta_min,
            config.beta_max,
        )

    def begin_epoch(
        self,
        policy: Policy,
        epoch: int,
    ) -> None:
        if epoch % self.config.inner_epochs == 0:
            self.copies["proximal"] = frozen_copy(policy)
            if self.config.reference == "round_start":
                self.copies["reference"] = self.copies["proximal"]
            self.numbers["fresh"] = 1.0

    def end_epoch(self, metrics: Mapping[str, float]) -> None:
        if self.config.beta_rule == "epoch" and "kl" in metrics:
            self.numbers["kl_beta"] = self.rule.next(
                self.numbers["kl_beta"], metrics["kl"]
            )

    def loss(
        self,
        policy: Policy,
        batch: GroupBatch,
        progress: Progress,
    ) -> LossParts:
        config = self.config
        new = policy_logprobs(policy, batch)
        fixed = list(self.copies.values())
        if config.behaviour == "sft":
            fixed.append(self.anchors["sft"])
        # one may play several parts
        known = {each: fixed_logprobs(each, batch) for each in dict.fromkeys(fixed)}
        prox = known[self.copies["proximal"]]
        reference = known[self.copies["reference"]]
        old = known[self.anchors["sft"]] if config.behaviour == "sft" else prox
        advantage, taking_part = self.advantage(batch, progress.epoch)
        importance = None
        if config.behaviour == "stored":
            importance = self._importance(prox, batch)
        clip = losses.Clip(config.clip_low, config.clip_high, config.clip_level)
        surrogate = losses.ppo_clip(
            new.steps,
            old.steps,
            new.valid,
            advantage,
            taking_part,
            clip=clip,
            importance=importance,
        )
        rows = taking_part.any(-1)  # (B,)
        kl = row_mean(member_mean(self.kl(new, reference), taking_part), rows)
        step_entropy = step_mean(divergences.entropy(new.table), new.valid)  # (B, G)
        entropy = row_mean(member_mean(step_entropy, taking_part), rows)
        beta = 0.0 if config.clip_only else self.numbers["kl_beta"]
        parts = {
            "pg": surrogate.total,
            "kl": beta * kl,
            "entropy": -config.entropy_bonus * entropy,
        }
        diagnostics = {
            **group_diagnostics(batch),
            **surrogate.diagnostics,
            "kl_coef": beta,
        }
        diagnostics |= advantage_diagnostics(advantage, batch.mask, taking_part)
        diagnostics |= distance_diagnostics(new, prox, reference, batch.mask)
        diagnostics |= importance_diagnostics(prox, batch)
        self._watch(new, old, diagnostics, float(kl.detach()))
        return LossParts(
            parts["pg"] + parts["kl"] + parts["entropy"],
            parts,
            diagnostics,
            surrogate.rows,
        )

    def advantage(
        self,
        batch: GroupBatch,
        epoch: int,
    ) -> tuple[Tensor, Tensor]:
        """Advantages (B, G) over the whole group, and which members take part in the update."""
        config = self.config
        kept = batch.mask  # (B, G)
        if config.top_k:
            count = config.top_k[min(epoch, len(config.top_k) - 1)]
            kept = advantages.top_members(batch.rewards, batch.mask, count)
        basis = kept if config.topk_before_advantage else batch.mask
        compare = catalog.load(catalog.ADVANTAGES, config.advantage, "advantage")
        value = compare(batch.rewards, basis, config.std_floor)  # (B, G)
        live = advantages.live_groups(batch.rewards, basis).unsqueeze(-1)  # (B, 1)
        if config.batch_scale:
            value = advantages.scale_over_batch(value, basis & live)
        value = value.clamp(-config.advantage_clip, config.advantage_clip)
        return value, kept & live if config.flat_groups == "leave_out" else kept

    def kl(
        self,
        new: StepLogprobs,
        reference: StepLogprobs,
    ) -> Tensor:
        """KL to the reference in nats a sequence, (B, G): exact over the pool at every step, or an estimate."""
        if self.config.kl == "exact":
            exact = divergences.categorical_kl(new.table, reference.table)  # (B, G, S)
            return torch.where(new.valid, exact, torch.zeros_like(exact)).sum(-1)
        estimate: Tensor = getattr(divergences, self.config.kl)(
            new.total, reference.total
        )
        return estimate

    def _importance(
        self,
        prox: StepLogprobs,
        batch: GroupBatch,
    ) -> Tensor:
        if bool(torch.isnan(batch.log_mu[batch.mask]).any()):
            raise NotMeasured(
                'grpo.behaviour = "stored": some sequences carry no log-probability of their source; '
                'use grpo.behaviour = "proximal", or groups that a policy sampled'
            )
        # truncated importance sampling (Ionides 2008): a cap bounds the variance, at the price of some bias
        return (
            (prox.total - batch.log_mu).exp().clamp(max=self.config.importance_cap)
        )  # (B, G)

    def _watch(
        self,
        new: StepLogprobs,
        old: StepLogprobs,
        diagnostics: dict[str, float],
        kl: float,
    ) -> None:
        """Note the first ratios of a round, end an epoch that moves too far, and adapt the KL weight by the batch."""
        if self.numbers["fresh"]:
            diagnostics["ratio/first_mb_dev"] = float(
                (new.steps - old.steps).detach().abs().max()
            )
            self.numbers["fresh"] = 0.0
        limit = self.config.trust_kl
        longest = max(
            int(new.valid.sum(-1).max()), 1
        )  # steps of the longest list: the limit is per step
        self.enough = limit > 0.0 and diagnostics["kl_prox"] / longest > limit
        if self.config.beta_rule == "batch":
            self.numbers["kl_beta"] = self.rule.next(self.numbers["kl_beta"], kl)


def step_mean(
    values: Tensor,
    valid: Tensor,
) -> Tensor:
    """Mean over the steps that exist, (B, G, S) -> (B, G)."""
    kept = torch.where(valid, values, torch.zeros_like(values))
    return kept.sum(-1) / valid.sum(-1).clamp(min=1)


def group_diagnostics(batch: GroupBatch) -> dict[str, float]:
    """Rewards of the groups, and how many groups say nothing; always at group level."""
    mask, rewards = batch.mask, batch.rewards
    live = advantages.live_groups(rewards, mask)  # (B,)
    highest = rewards.masked_fill(~mask, -torch.inf).amax(-1)  # (B,)
    hit = torch.where(mask, batch.accuracy > 0, torch.zeros_like(mask))  # (B, G)
    count = mask.sum(-1)  # (B,)
    return {
        "reward": float(rewards[mask].mean()),
        "reward_std": float(advantages.moments(rewards, mask)[2].mean()),
        "reward_std_batch": float(rewards[mask].std(correction=0)),
        "frac_reward_zero_std": float((~live).float().mean()),
        "frac_reward_all_zero": float((hit.sum(-1) == 0).float().mean()),
        "frac_reward_all_one": float((hit.sum(-1) == count).float().mean()),
        "rewards/acc/mean": float(batch.accuracy[mask].mean()),
        "reward/oracle_in_group": float(highest.mean()),
        "reward/headroom": float((highest - member_mean(rewards, mask)).mean()),
        "group/size": float(count.float().mean()),
    }


def advantage_diagnostics(
    advantage: Tensor,
    mask: Tensor,
    taking_part: Tensor,
) -> dict[str, float]:
    """Spread of the advantages over all members of the batch, and the share that moves anything."""
    active = taking_part & (advantage != 0)
    return {
        "adv/std": float(advantages.moments(advantage, mask)[2].mean()),
        "adv/max": float(advantage.abs().max()),
        "adv/frac_active": float(active.sum() / mask.sum().clamp(min=1)),
    }


@torch.no_grad()
def distance_diagnostics(
    new: StepLogprobs,
    prox: StepLogprobs,
    reference: StepLogprobs,
    mask: Tensor,
) -> dict[str, float]:
    """Exact distances to the reference and to the proximal policy, and the entropy, over all members."""

    def total(values: Tensor) -> float:
        kept = torch.where(new.valid, values, torch.zeros_like(values))
        return float(kept.sum(-1)[mask].mean())

    def mean(values: Tensor) -> float:
        return float(step_mean(values, new.valid)[mask].mean())

    entropy = divergences.entropy(new.table)  # (B, G, S)
    kl = divergences.categorical_kl(new.table, reference.table)  # (B, G, S)
    exists = new.valid & mask.unsqueeze(-1)  # (B, G, S)
    # the entropy of a uniform choice; at least that of two actions, since log(1) = 0 cannot be divided by
    most = (new.table > -torch.inf).sum(-1).clamp(min=2).log()  # (B, G, S)
    return {
        "kl": total(kl),
        "kl_prox": total(divergences.categorical_kl(new.table, prox.table)),
        "kl_k3": float(divergences.k3(new.total, reference.total)[mask].mean()),
        "tv_prox": mean(divergences.total_variation(new.table, prox.table)),
        "entropy": mean(entropy),
        "entropy/norm": mean(entropy / most),
        **by_position("kl", kl, exists),
        **by_position("entropy", entropy, exists),
    }


@torch.no_grad()
def importance_diagnostics(
    prox: StepLogprobs,
    batch: GroupBatch,
) -> dict[str, float]:
    """How far the stored behaviour is from the proximal policy, over the members that carry a log-probability."""
    known = batch.mask & ~torch.isnan(batch.log_mu)  # (B, G)
    if not bool(known.any()):
        return {}
    weight = (
        (prox.total - batch.log_mu)[known].clamp(-20.0, 20.0).exp()
    )  # (n,), e^20 still squares in float32
    return {
        "sampling/is_mean": float(weight.mean()),
        "sampling/is_max": float(weight.max()),
        # effective sample size (Kish): (sum w)^2 / sum w^2, as a share of n
        "sampling/ess": float(
            weight.sum().square() / weight.square().sum() / len(weight)
        ),
    }
