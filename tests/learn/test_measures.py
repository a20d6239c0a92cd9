"""What is measured beside the loss: values by place in the list, and the gradient of every term."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from leverplus import catalog
from leverplus.learn.data.batch import GroupBatch, collate
from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.data.rows import FixedRows
from leverplus.learn.grpo import Grpo
from leverplus.learn.loop import StageInputs, run_stage
from leverplus.learn.measures import by_position, term_gradients
from leverplus.learn.policies.base import Policy
from leverplus.learn.runlog import METRICS
from leverplus.learn.settings import SECTIONS, GrpoConfig, RewardConfig
from leverplus.learn.stages import Progress, frozen_copy, policy_logprobs

START = Progress(0, 0, 10)


def batch_of(
    planted: Any, shots: tuple[int, ...] = (1, 3), queries: int = 6
) -> GroupBatch:
    groups = planted.groups(4, shots)[:queries]
    return collate(
        rows_from_groups(groups, planted.table, RewardConfig(compare="all")),
        planted.table,
    )


def doubled(batch: GroupBatch) -> GroupBatch:
    features = replace(
        batch.features,
        query={name: block.double() for name, block in batch.features.query.items()},
        items={name: block.double() for name, block in batch.features.items.items()},
    )
    return replace(batch, features=features, rewards=batch.rewards.double())


def nudged(policy: Policy) -> Policy:
    clone = frozen_copy(policy)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in clone.parameters():
            parameter.add_(
                0.2
                * torch.randn(
                    parameter.shape, generator=generator, dtype=parameter.dtype
                )
            )
    return clone


def test_a_place_is_averaged_over_the_members_that_have_it() -> None:
    values = torch.tensor(
        [[[1.0, 2.0, 9.0], [3.0, 9.0, 9.0]], [[5.0, 8.0, 9.0], [9.0, 9.0, 9.0]]]
    )
    exists = torch.tensor(
        [[[1, 1, 0], [1, 0, 0]], [[1, 1, 0], [0, 0, 0]]], dtype=torch.bool
    )
    assert by_position("kl", values, exists) == {"kl/step1": 3.0, "kl/step2": 5.0}


def test_kl_and_entropy_by_place_equal_sums_written_out_one_list_at_a_time(
    planted: Any,
) -> None:
    policy, batch = planted.policy(state="gru"), batch_of(planted)
    stage = Grpo(GrpoConfig(), policy, {})
    stage.copies["reference"] = nudged(policy)
    said = stage.loss(policy, batch, START).diagnostics
    mine, theirs = (
        policy_logprobs(policy, batch),
        policy_logprobs(stage.copies["reference"], batch),
    )
    kl: dict[int, list[float]] = {}
    entropy: dict[int, list[float]] = {}
    for row in range(len(batch)):
        for member in range(int(batch.mask[row].sum())):
            for step, position in enumerate(batch.sequences[row, member].tolist()):
                if position < 0:
                    continue
                pairs = zip(
                    mine.table[row, member, step].tolist(),
                    theirs.table[row, member, step].tolist(),
                    strict=True,
                )
                legal = [(p, q) for p, q in pairs if p > -math.inf]
                assert len(legal) == 10 - step
                kl.setdefault(step + 1, []).append(
                    sum(math.exp(p) * (p - q) for p, q in legal)
                )
                entropy.setdefault(step + 1, []).append(
                    -sum(math.exp(p) * p for p, _ in legal)
                )
    assert {name for name in said if "/step" in name} == {
        f"{n}/step{t}" for n in ("kl", "entropy") for t in (1, 2, 3)
    }
    for step in (1, 2, 3):
        assert said[f"kl/step{step}"] == pytest.approx(
            sum(kl[step]) / len(kl[step]), rel=1e-4
        )
        assert said[f"entropy/step{step}"] == pytest.approx(
            sum(entropy[step]) / len(entropy[step]), rel=1e-4
        )
    assert len(kl[1]) > len(kl[2]) == len(kl[3])


def test_the_kl_of_lists_of_one_length_is_the_sum_over_places(planted: Any) -> None:
    policy, batch = planted.policy(), batch_of(planted, (2,))
    stage = Grpo(GrpoConfig(), policy, {})
    stage.copies["reference"] = nudged(policy)
    said = stage.loss(policy, batch, START).diagnostics
    assert said["kl"] == pytest.approx(said["kl/step1"] + said["kl/step2"], rel=1e-5)


@pytest.mark.slow
def test_the_gradients_of_the_terms_agree_with_finite_differences(planted: Any) -> None:
    policy = planted.policy(hidden=2).double()
    batch = doubled(batch_of(planted, (2,), 2))
    stage = Grpo(
        GrpoConfig(kl_beta=0.3, entropy_bonus=0.7, clip_low=0.99, clip_high=99.0),
        policy,
        {},
    )
    stage.copies["reference"] = nudged(policy)
    terms = {"pg": "policy", "kl": "kl", "entropy": "entropy"}
    size, squares = 1e-5, dict.fromkeys(terms, 0.0)

    def values() -> dict[str, float]:
        return {
            name: part.item()
            for name, part in stage.loss(policy, batch, START).parts.items()
        }

    with torch.no_grad():
        for parameter in policy.parameters():
            flat = parameter.view(-1)
            for place in range(len(flat)):
                flat[place] += size
                above = values()
                flat[place] -= 2 * size
                below = values()
                flat[place] += size
                for name in terms:
                    squares[name] += ((above[name] - below[name]) / (2 * size)) ** 2
    found = term_gradients(stage, policy, batch, START)
    for name, named in terms.items():
        assert found[f"grad/{named}"] == pytest.approx(
            math.sqrt(squares[name]), rel=1e-5
        )
        assert squares[name] > 0.0


def test_a_weight_scales_the_gradient_of_its_term_alone(planted: Any) -> None:
    policy, batch = planted.policy(), batch_of(planted)
    found = []
    for beta, bonus in ((0.1, 0.0), (0.4, 0.2)):
        stage = Grpo(GrpoConfig(kl_beta=beta, entropy_bonus=bonus), policy, {})
        stage.copies["reference"] = nudged(policy)
        found.append(term_gradients(stage, policy, batch, START))
    first, second = found
    assert second["grad/policy"] == pytest.approx(first["grad/policy"])
    assert second["grad/kl"] == pytest.approx(4.0 * first["grad/kl"], rel=1e-4)
    assert first["grad/entropy"] == 0.0 < second["grad/entropy"]


@pytest.mark.parametrize("name", sorted(catalog.STAGES))
def test_the_terms_add_up_to_the_loss_and_measuring_leaves_the_stage_as_it_was(
    name: str, planted: Any
) -> None:
    policy, batch = planted.policy(), batch_of(planted)
    extra = {"beta_rule": "batch", "entropy_bonus": 0.5} if name == "grpo" else {}
    stage = catalog.load(catalog.STAGES, name, "stage")(
        SECTIONS[name](**extra), policy, {}
    )
    before = dict(stage.numbers)
    found = term_gradients(stage, policy, batch, START)
    assert stage.numbers == before
    assert found
    assert set(found) <= set(METRICS)
    assert all(parameter.grad is None for parameter in policy.parameters())
    result = stage.loss(policy, batch, START)
    whole = torch.stack(list(result.parts.values())).sum().item()
    assert whole == pytest.approx(result.total.item())


def test_every_epoch_logs_the_gradients_of_its_terms_and_the_places(
    planted: Any,
) -> None:
    rows = rows_from_groups(planted.groups(4, (2,)), planted.table, RewardConfig())
    config = GrpoConfig(epochs=2, batch_size=10, freeze=("attention",))
    history = run_stage(
        planted.policy(), FixedRows(rows), StageInputs("grpo", config, planted.table)
    ).history
    for line in history:
        assert line["grad/policy"] > 0.0
        assert line["grad/kl"] > 0.0
        assert line["grad/entropy"] == 0.0
        assert 0.0 < line["entropy/step2"] < math.log(9.0) + 1e-6
    assert history[1]["kl/step1"] > history[0]["kl/step1"]
