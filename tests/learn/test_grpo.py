"""GRPO: ratio 1 and KL 0 at the first step, exact KL by enumeration, flat groups without gradient, sick options."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from leverplus.errors import NotMeasured, TrainingError
from leverplus.learn.data.batch import GroupBatch, collate
from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.data.rows import FixedRows
from leverplus.learn.grpo import Grpo
from leverplus.learn.loop import StageInputs, run_stage
from leverplus.learn.policies.base import Policy, StepLogprobs, sequence_logprobs
from leverplus.learn.settings import GrpoConfig, RewardConfig
from leverplus.learn.stages import (
    Progress,
    fixed_logprobs,
    frozen_copy,
    policy_logprobs,
)

START = Progress(0, 0, 10)


def batch_of(planted: Any, members: int = 6) -> GroupBatch:
    return collate(
        rows_from_groups(planted.groups(members)[:8], planted.table, RewardConfig()),
        planted.table,
    )


def perturbed(policy: Policy, size: float = 0.1) -> Policy:
    clone = frozen_copy(policy)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in clone.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return clone


@pytest.mark.parametrize("state", ["none", "gru"])
def test_at_the_first_step_the_ratio_is_exactly_one_and_the_kl_exactly_zero(
    state: str, planted: Any
) -> None:
    policy = planted.policy(state=state, dropout=0.5)
    stage = Grpo(GrpoConfig(), policy, {})
    result = stage.loss(policy.eval(), batch_of(planted), START)
    said = result.diagnostics
    assert said["ratio/mean"] == 1.0
    assert said["ratio/first_mb_dev"] == 0.0
    assert said["kl"] == said["kl_prox"] == said["kl_k3"] == said["tv_prox"] == 0.0
    assert said["clip_ratio/region_mean"] == 0.0
    assert result.parts["kl"].item() == 0.0


def test_dropout_in_the_ratio_breaks_both(planted: Any) -> None:
    policy = planted.policy(dropout=0.5)
    stage = Grpo(GrpoConfig(dropout_in_ratio=True), policy, {})
    assert stage.dropout
    torch.manual_seed(0)
    said = stage.loss(policy.train(), batch_of(planted), START).diagnostics
    assert said["ratio/first_mb_dev"] > 0.1
    assert said["clip_ratio/region_mean"] > 0.3


def test_a_stale_behaviour_policy_clips_most_ratios_before_any_step(
    planted: Any,
) -> None:
    policy = planted.policy()
    stage = Grpo(GrpoConfig(behaviour="sft"), policy, {"sft": perturbed(policy, 0.3)})
    assert (
        stage.loss(policy, batch_of(planted), START).diagnostics[
            "clip_ratio/region_mean"
        ]
        > 0.5
    )
    with pytest.raises(TrainingError, match="sft"):
        Grpo(GrpoConfig(behaviour="sft"), policy, {})


def test_the_first_gradient_is_the_policy_gradient_of_the_advantages(
    planted: Any,
) -> None:
    policy, batch = planted.policy(), batch_of(planted)
    stage = Grpo(GrpoConfig(clip_level="sequence", batch_scale=False), policy, {})
    stage.loss(policy, batch, START).total.backward()
    own = [parameter.grad.clone() for parameter in policy.parameters()]
    policy.zero_grad()
    advantage, _ = stage.advantage(batch, 0)
    total = policy_logprobs(policy, batch).total
    mean = torch.stack(
        [(total[i] * advantage[i])[batch.mask[i]].mean() for i in range(len(batch))]
    ).mean()
    (-mean).backward()
    for left, parameter in zip(own, policy.parameters(), strict=True):
        assert torch.allclose(left, parameter.grad, atol=1e-6)


@pytest.mark.parametrize("flat", ["leave_out", "keep"])
def test_a_flat_group_has_no_gradient_unless_it_is_kept_in_the_kl(
    flat: str, planted: Any
) -> None:
    batch = batch_of(planted)
    batch = replace(batch, rewards=torch.ones_like(batch.rewards))
    policy = planted.policy()
    stage = Grpo(GrpoConfig(flat_groups=flat, kl_beta=1.0), policy, {})
    stage.copies["reference"] = perturbed(policy)
    result = stage.loss(policy, batch, START)
    result.total.backward()
    largest = max(
        float(p.grad.abs().max()) for p in policy.parameters() if p.grad is not None
    )
    assert result.diagnostics["frac_reward_zero_std"] == 1.0
    assert (largest == 0.0) == (flat == "leave_out")


def test_exact_kl_of_sequences_equals_enumeration_of_all_pairs(planted: Any) -> None:
    policy = planted.policy(state="gru").double()
    other = perturbed(policy)
    batch = batch_of(planted)
    doubled = replace(
        batch.features,
        query={name: block.double() for name, block in batch.features.query.items()},
        items={name: block.double() for name, block in batch.features.items.items()},
    )
    pairs = torch.tensor(list(itertools.permutations(range(10), 2))).expand(
        len(batch), -1, -1
    )
    with torch.no_grad():
        mine = sequence_logprobs(policy, policy.prepare(doubled), pairs)
        theirs = sequence_logprobs(other, other.prepare(doubled), pairs)
        stage = Grpo(GrpoConfig(), policy, {})
        enumerated = (mine.total.exp() * (mine.total - theirs.total)).sum(-1)
        expected = (mine.total.exp() * stage.kl(mine, theirs)).sum(-1)
    assert enumerated.tolist() == pytest.approx(expected.tolist())
    assert float(enumerated.min()) > 0.0


def test_top_k_before_the_baseline_kills_the_signal_and_after_it_does_not(
    planted: Any,
) -> None:
    rows = rows_from_groups(
        planted.groups(20)[:20], planted.table, RewardConfig(mode="hard_only")
    )
    batch = collate(rows, planted.table)
    policy = planted.policy()
    shares = {}
    for before in (True, False):
        stage = Grpo(
            GrpoConfig(top_k=(3,), topk_before_advantage=before, advantage="zscore"),
            policy,
            {},
        )
        shares[before] = stage.loss(policy, batch, START).diagnostics["adv/frac_active"]
    assert shares[True] < 0.2 * shares[False]
    staged = Grpo(GrpoConfig(top_k=(3, 5)), policy, {})
    assert [
        int(staged.advantage(batch, epoch)[1].sum(-1).max()) for epoch in (0, 1, 9)
    ] == [3, 5, 5]


def test_stored_behaviour_needs_its_log_probabilities_and_weighs_by_them(
    planted: Any,
) -> None:
    policy, batch = planted.policy(), batch_of(planted)
    stage = Grpo(GrpoConfig(behaviour="stored", importance_cap=100.0), policy, {})
    result = stage.loss(policy, batch, START)
    weight = (policy_logprobs(policy, batch).total.detach() + math.log(90)).exp()[
        batch.mask
    ]
    assert result.diagnostics["sampling/is_mean"] == pytest.approx(
        float(weight.mean()), rel=1e-4
    )
    assert 0.0 < result.diagnostics["sampling/ess"] <= 1.0
    blind = replace(batch, log_mu=torch.full_like(batch.log_mu, math.nan))
    with pytest.raises(NotMeasured, match="proximal"):
        stage.loss(policy, blind, START)


@pytest.mark.slow
def test_beta_follows_the_kl_once_an_epoch_and_runs_away_after_every_batch(
    planted: Any,
) -> None:
    policy, batch = planted.policy(), batch_of(planted)
    limits = {"kl_high": 1e-9, "kl_low": 0.0, "kl_beta": 0.1, "beta_max": 10.0}
    calm, wild = (
        Grpo(GrpoConfig(beta_rule=rule, **limits), policy, {})
        for rule in ("epoch", "batch")
    )
    for stage in (calm, wild):
        stage.copies["reference"] = perturbed(policy)
        for _ in range(12):
            said = stage.loss(policy, batch, START).diagnostics
        stage.end_epoch(said)
    assert calm.numbers["kl_beta"] == pytest.approx(0.15)
    assert wild.numbers["kl_beta"] == 10.0


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3_inverted"])
def test_estimators_enter_the_loss_and_the_log_keeps_the_exact_kl(
    estimator: str, planted: Any
) -> None:
    policy, batch = planted.policy(), batch_of(planted)
    stage, exact = (
        Grpo(GrpoConfig(kl=estimator, kl_beta=1.0), policy, {}),
        Grpo(GrpoConfig(kl_beta=1.0), policy, {}),
    )
    for each in (stage, exact):
        each.copies["reference"] = perturbed(policy)
    one, other = stage.loss(policy, batch, START), exact.loss(policy, batch, START)
    assert one.diagnostics["kl"] == other.diagnostics["kl"]
    assert one.parts["kl"].item() != other.parts["kl"].item()


def test_reference_proximal_and_behaviour_are_three_different_policies(
    planted: Any,
) -> None:
    policy = planted.policy()
    stage = Grpo(GrpoConfig(inner_epochs=2), policy, {})
    start = {name: value.clone() for name, value in policy.state_dict().items()}
    for epoch in range(3):
        stage.begin_epoch(policy, epoch)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(1.0)
    first = next(iter(start))
    assert torch.equal(stage.copies["reference"].state_dict()[first], start[first])
    assert torch.allclose(
        stage.copies["proximal"].state_dict()[first], start[first] + 2.0
    )


@pytest.mark.parametrize(
    ("settings", "asked"), [({"reference": "sft", "behaviour": "sft"}, 2), ({}, 2)]
)
def test_a_fixed_policy_that_plays_two_parts_is_asked_once(
    settings: dict[str, Any], asked: int, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, batch, seen = planted.policy(), batch_of(planted), []

    def watched(each: Policy, rows: GroupBatch) -> StepLogprobs:
        seen.append(each)
        return fixed_logprobs(each, rows)

    monkeypatch.setattr("leverplus.learn.grpo.fixed_logprobs", watched)
    stage = Grpo(GrpoConfig(**settings), policy, {"sft": perturbed(policy)})
    stage.loss(policy, batch, START)
    assert len(seen) == len(set(seen)) == asked


@pytest.mark.slow
def test_the_weight_of_a_kl_term_that_is_left_out_changes_nothing(planted: Any) -> None:
    rows = rows_from_groups(planted.groups(4)[:10], planted.table, RewardConfig())
    ends = []
    for beta in (0.0, 0.01, 0.05):
        policy = planted.policy()
        config = GrpoConfig(
            epochs=2, batch_size=1, clip_only=True, kl_beta=beta, kl="k3_inverted"
        )
        run_stage(policy, FixedRows(rows), StageInputs("grpo", config, planted.table))
        ends.append(
            torch.cat([value.flatten() for value in policy.state_dict().values()])
        )
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])
