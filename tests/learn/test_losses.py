"""Losses: hand-worked values, gradients in float64, and rows that must not take part."""

from __future__ import annotations

import math

import pytest
import torch

from leverplus import catalog
from leverplus.learn.maths import losses
from leverplus.learn.maths.divergences import masked_log_softmax

F64 = torch.float64


def steps_of(*probabilities: list[list[float]]) -> torch.Tensor:
    return torch.tensor(
        [[[math.log(p) for p in member] for member in row] for row in probabilities],
        dtype=F64,
    )


def test_cross_entropy_sums_over_steps_and_averages_over_rows() -> None:
    steps = steps_of([[0.5, 0.25], [0.1, 0.1]], [[0.2, 0.5], [0.3, 0.3]])
    valid = torch.ones_like(steps, dtype=torch.bool)
    weights = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=F64)
    first = -math.log(0.125)
    second = 0.5 * -math.log(0.1) + 0.5 * -math.log(0.09)
    assert float(losses.cross_entropy(steps, valid, weights).total) == pytest.approx(
        (first + second) / 2
    )


def test_reward_weights_are_a_softmax_over_present_members() -> None:
    rewards = torch.tensor([[0.0, 1.0, 9.0]], dtype=F64)
    mask = torch.tensor([[True, True, False]])
    weights = losses.reward_weights(rewards, mask, 0.5)
    assert weights[0].tolist() == pytest.approx(
        [1 / (1 + math.e**2), 1 - 1 / (1 + math.e**2), 0.0]
    )
    ranked = losses.reward_weights(rewards, mask, 1.0, "rank")
    assert ranked[0, :2].tolist() == pytest.approx(
        [1 / (1 + math.e), 1 - 1 / (1 + math.e)]
    )
    for scale in ("zscore", "clamped"):
        assert float(
            losses.reward_weights(rewards, mask, 1.0, scale).sum()
        ) == pytest.approx(1.0)


def test_centred_rce_of_a_flat_group_has_no_gradient_and_plain_rce_clones_it() -> None:
    rewards, mask = torch.zeros(1, 3, dtype=F64), torch.ones(1, 3, dtype=torch.bool)
    valid = torch.ones(1, 3, 1, dtype=torch.bool)
    gradients = []
    for centred in (True, False):
        steps = steps_of([[0.5], [0.2], [0.3]]).requires_grad_()
        losses.rce(
            steps, valid, losses.reward_weights(rewards, mask, 1.0), mask, centred
        ).total.backward()
        gradients.append(steps.grad)
    assert gradients[0].abs().max() < 1e-12
    assert gradients[1].abs().min() > 0.3


def test_centred_rce_subtracts_one_over_the_members_that_are_there_not_over_the_padded_ones() -> (
    None
):
    steps = steps_of([[0.5], [0.2], [0.3], [0.9]])
    valid = torch.ones(1, 4, 1, dtype=torch.bool)
    mask = torch.tensor([[True, True, False, False]])
    weights = torch.tensor([[0.8, 0.2, 0.0, 0.0]], dtype=F64)
    found = float(losses.rce(steps, valid, weights, mask, centred=True).total)
    assert found == pytest.approx(
        -((0.8 - 0.5) * math.log(0.5) + (0.2 - 0.5) * math.log(0.2))
    )


def clip_case(
    level: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    old = steps_of([[0.5, 0.5], [0.5, 0.5]])
    new = (old + torch.tensor([[[0.1, 0.4], [-0.1, -0.5]]], dtype=F64)).requires_grad_()
    return (
        new,
        old,
        torch.ones(1, 2, 2, dtype=torch.bool),
        torch.tensor([[1.0, -1.0]], dtype=F64),
        torch.ones(1, 2) > 0,
    )


def test_ppo_clip_matches_hand_worked_values_at_both_levels() -> None:
    new, old, valid, advantage, mask = clip_case("step")
    clip = losses.Clip(0.2, 0.28, "step")
    by_step = losses.ppo_clip(new, old, valid, advantage, mask, clip=clip)
    good = (math.exp(0.1) + 1.28) / 2
    bad = (-math.exp(-0.1) - 0.8) / 2
    assert by_step.total.item() == pytest.approx(-(good + bad) / 2)
    assert by_step.diagnostics["clip_ratio/high_mean"] == 0.25
    assert by_step.diagnostics["clip_ratio/low_mean"] == 0.25
    whole = losses.ppo_clip(
        new, old, valid, advantage, mask, clip=losses.Clip(0.2, 0.28, "sequence")
    )
    assert whole.total.item() == pytest.approx(-(1.28 - 0.8) / 2)
    whole.total.backward()
    assert float(new.grad.abs().max()) == 0.0


def test_ppo_at_ratio_one_is_the_policy_gradient() -> None:
    _, old, valid, advantage, mask = clip_case("sequence")
    new = old.clone().requires_grad_()
    result = losses.ppo_clip(
        new, old, valid, advantage, mask, clip=losses.Clip(level="sequence")
    )
    result.total.backward()
    assert result.diagnostics["ratio/mean"] == 1.0
    assert new.grad[0, :, 0].tolist() == [-0.5, 0.5]


def test_members_and_rows_left_out_have_no_gradient() -> None:
    new, old, valid, advantage, _ = clip_case("step")
    nobody = torch.zeros(1, 2, dtype=torch.bool)
    total = losses.ppo_clip(
        new, old, valid, advantage, nobody, clip=losses.Clip()
    ).total
    total.backward()
    assert total.item() == 0.0
    assert float(new.grad.abs().max()) == 0.0


def test_listwise_is_the_cross_entropy_to_the_softmax_of_rewards() -> None:
    log_p = masked_log_softmax(torch.tensor([[0.3, -0.2, 1.0, 0.0]], dtype=F64))
    rewards = torch.tensor([[1.0, 0.0, math.nan, math.nan]], dtype=F64)
    target = math.e / (1 + math.e)
    tried = torch.log_softmax(torch.tensor([0.3, -0.2], dtype=F64), -1)
    expected = -(target * tried[0] + (1 - target) * tried[1])
    assert float(losses.listwise(log_p, rewards, 1.0).total) == pytest.approx(
        float(expected)
    )
    pool = -(target * log_p[0, 0] + (1 - target) * log_p[0, 1])
    assert float(
        losses.listwise(log_p, rewards, 1.0, among="pool").total
    ) == pytest.approx(float(pool))


def test_a_step_with_one_measured_action_teaches_nothing() -> None:
    log_p = masked_log_softmax(torch.zeros(1, 3, dtype=F64)).requires_grad_()
    losses.listwise(
        log_p, torch.tensor([[1.0, math.nan, math.nan]], dtype=F64), 1.0
    ).total.backward()
    assert float(log_p.grad.abs().max()) == 0.0


def test_pairwise_matches_the_double_loop() -> None:
    scores = torch.tensor([[0.3, -0.4, 1.0]], dtype=F64)
    rewards = torch.tensor([[1.0, 0.5, 0.2]], dtype=F64)
    mask = torch.ones(1, 3, dtype=torch.bool)
    top, bottom = 0.0, 0.0
    for i in range(3):
        for j in range(3):
            gap = float(rewards[0, i] - rewards[0, j])
            if gap > 0.4:
                top -= gap * math.log(
                    1 / (1 + math.exp(-0.5 * float(scores[0, i] - scores[0, j])))
                )
                bottom += gap
    result = losses.pairwise(scores, rewards, mask, margin=0.4, beta=0.5)
    assert float(result.total) == pytest.approx(top / bottom)
    assert result.diagnostics["pair/accuracy"] == 0.5


def test_measured_actions_in_pairs_by_hand_and_as_the_double_loop() -> None:
    """Two actions a gap of .5 apart: .5 log(1 + e^-(difference)); flat rows count as rows, unmeasured actions not."""
    log_p = masked_log_softmax(
        torch.tensor([[[0.0, 1.0, 5.0]], [[0.0, 1.0, 2.0]]], dtype=F64)
    )
    rewards = torch.tensor([[[0.75, 0.25, math.nan]], [[0.5, 0.5, 0.5]]], dtype=F64)
    found = losses.listwise(log_p, rewards, 0.1, among="pairs")
    assert float(found.total) == pytest.approx(0.5 * math.log(1 + math.e) / 2)
    assert found.rows == 2

    draw = torch.Generator().manual_seed(5)
    log_p = masked_log_softmax(torch.randn(4, 2, 6, dtype=F64, generator=draw))
    rewards = torch.rand(4, 2, 6, dtype=F64, generator=draw)
    rewards[torch.rand(4, 2, 6, generator=draw) < 0.4] = math.nan
    rewards[0, 0] = math.nan
    values = []
    for own, worth in zip(
        log_p.flatten(0, 1).tolist(), rewards.flatten(0, 1).tolist(), strict=True
    ):
        known = [(p, r) for p, r in zip(own, worth, strict=True) if not math.isnan(r)]
        if len(known) < 2:
            continue
        ordered = [(a, b) for a in known for b in known if a[1] > b[1]]
        loss = sum(
            (a[1] - b[1]) * math.log(1 + math.exp(b[0] - a[0])) for a, b in ordered
        )
        values.append(loss / (len(known) * (len(known) - 1) / 2))
    found = losses.listwise(log_p, rewards, 0.1, among="pairs")
    assert (float(found.total), found.rows) == (
        pytest.approx(sum(values) / len(values)),
        len(values),
    )


@pytest.mark.parametrize("among", ["tried", "pool", "pairs"])
def test_gradients_of_all_listwise_comparisons_agree_with_finite_differences(
    among: str,
) -> None:
    draw = torch.Generator().manual_seed(6)
    logits = torch.randn(2, 2, 5, dtype=F64, generator=draw, requires_grad=True)
    rewards = torch.rand(2, 2, 5, dtype=F64, generator=draw)
    rewards[..., 3] = math.nan

    def value(values: torch.Tensor) -> torch.Tensor:
        return losses.listwise(masked_log_softmax(values), rewards, 0.3, among).total

    assert torch.autograd.gradcheck(value, (logits,))


def test_pairs_pull_the_better_up_and_leave_the_unmeasured_alone() -> None:
    logits = torch.zeros(1, 1, 4, dtype=F64, requires_grad=True)
    rewards = torch.tensor([[[1.0, 0.0, math.nan, 0.5]]], dtype=F64)
    losses.listwise(
        torch.log_softmax(logits, -1), rewards, 0.1, among="pairs"
    ).total.backward()
    gradient = logits.grad[0, 0]
    assert gradient[0] < gradient[3] < gradient[1]
    assert float(gradient[2]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", sorted(catalog.LOSSES))
def test_gradients_agree_with_finite_differences_in_float64(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 3, 2, 4, generator=generator, dtype=F64, requires_grad=True)
    action = torch.randint(0, 4, (2, 3, 2, 1), generator=generator)
    rewards = torch.rand(2, 3, generator=generator, dtype=F64)
    mask, valid = (
        torch.ones(2, 3, dtype=torch.bool),
        torch.ones(2, 3, 2, dtype=torch.bool),
    )
    loss = catalog.load(catalog.LOSSES, name, "loss")
    old = masked_log_softmax(logits.detach()).gather(-1, action).squeeze(-1) + 0.05

    def value(values: torch.Tensor) -> torch.Tensor:
        table = masked_log_softmax(values)
        steps = table.gather(-1, action).squeeze(-1)
        weights = losses.reward_weights(rewards, mask, 0.5)
        calls = {
            "cross_entropy": lambda: loss(steps, valid, weights),
            "rce": lambda: loss(steps, valid, weights, mask, True),
            "ppo_clip": lambda: loss(
                steps, old, valid, rewards - 0.5, mask, clip=losses.Clip()
            ),
            "listwise": lambda: loss(
                table[:, :, 0], torch.rand(2, 3, 4, dtype=F64, generator=seeded()), 0.5
            ),
            "pairwise": lambda: loss(
                steps.sum(-1), rewards, mask, margin=0.05, beta=0.3
            ),
            "info_nce": lambda: loss(
                steps.sum(-1), rewards, mask, positives=2, margin=0.05
            ),
        }
        return calls[name]().total

    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    assert torch.autograd.gradcheck(value, (logits,))


def test_means_leave_out_what_takes_no_part_and_nothing_at_all_is_zero() -> None:
    values, rows = torch.tensor([1.0, 4.0, 9.0]), torch.tensor([True, True, False])
    assert float(losses.row_mean(values, rows)) == 2.5
    assert float(losses.row_mean(values, torch.zeros(3, dtype=torch.bool))) == 0.0
    members = torch.tensor([[1.0, 4.0, 9.0], [2.0, 2.0, 2.0]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert losses.member_mean(members, mask).tolist() == [2.5, 0.0]


def test_cross_entropy_reads_existing_steps_and_rows_with_a_weight() -> None:
    steps = steps_of([[0.5, 0.25]], [[0.2, 0.5]])
    valid = torch.tensor([[[True, False]], [[True, True]]])
    result = losses.cross_entropy(steps, valid, torch.tensor([[2.0], [0.0]], dtype=F64))
    assert float(result.total) == pytest.approx(-2.0 * math.log(0.5))
    assert result.rows == 1
    negative = losses.cross_entropy(
        steps, valid, torch.tensor([[-1.0], [1.0]], dtype=F64)
    )
    assert (negative.rows, float(negative.total)) == (
        2,
        pytest.approx((math.log(0.5) - math.log(0.1)) / 2),
    )


def test_weights_of_scaled_rewards_by_hand() -> None:
    rewards, mask = (
        torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0], [1.0] * 5], dtype=F64),
        torch.ones(2, 5) > 0,
    )
    mask[1] = False
    z = [-0.5] * 4 + [2.0]  # mean 0.2, deviation 0.4
    raised = [math.exp(value / 0.5) for value in z]
    expected = [value / sum(raised) for value in raised]
    assert losses.reward_weights(rewards, mask, 0.5, "zscore")[
        0
    ].tolist() == pytest.approx(expected)
    cut = [math.exp(min(max(value, -0.25), 0.25) / 0.5) for value in z]
    found = losses.reward_weights(rewards, mask, 0.5, "clamped", clamp=0.25)
    assert found[0].tolist() == pytest.approx([value / sum(cut) for value in cut])
    assert found[1].tolist() == [0.0] * 5, "a group without members weighs nothing"
    wide = torch.zeros(1, 26, dtype=F64)
    wide[0, 0] = 1.0  # z = 5
    usual = losses.reward_weights(wide, torch.ones(1, 26) > 0, 1.0, "clamped")
    assert float(usual[0, 0] / usual[0, 1]) == pytest.approx(math.exp(3.0 + 0.2)), (
        "clamped at 3 unless told"
    )
    with pytest.raises(ValueError, match="clamped"):
        losses.reward_weights(rewards, mask, 0.5, "z")


def test_clip_counts_by_hand_and_importance_multiplies_a_member() -> None:
    change = torch.tensor(
        [[[0.5, -0.5, 0.0], [0.5, -0.5, 9.0], [0.1, 0.1, 0.1]]], dtype=F64
    )
    valid = torch.tensor(
        [[[True, True, True], [True, True, False], [True, True, True]]]
    )
    mask, old = torch.tensor([[True, True, False]]), torch.zeros(1, 3, 3, dtype=F64)
    advantage, importance = (
        torch.tensor([[1.0, -1.0, 5.0]], dtype=F64),
        torch.tensor([[2.0, 0.5, 7.0]], dtype=F64),
    )
    clip = losses.Clip(0.2, 0.28)
    found = losses.ppo_clip(
        change, old, valid, advantage, mask, clip=clip, importance=importance
    )
    up, down = math.exp(0.5), math.exp(-0.5)
    first, second = 2.0 * (1.28 + down + 1.0) / 3, -0.5 * (up + 0.8) / 2
    assert float(found.total) == pytest.approx(-(first + second) / 2)
    assert found.rows == 1
    said = found.diagnostics
    assert said["ratio/mean"] == pytest.approx((2 * up + 2 * down + 1.0) / 5)
    assert said["ratio/max"] == pytest.approx(up)
    assert said["clip_ratio/high_mean"] == pytest.approx(1 / 5), (
        "out of the range on the side of its advantage"
    )
    assert said["clip_ratio/low_mean"] == pytest.approx(1 / 5)
    assert said["clip_ratio/region_mean"] == pytest.approx(4 / 5)
    nobody = losses.ppo_clip(change, old, valid, advantage, mask & False, clip=clip)
    assert (nobody.diagnostics, nobody.rows) == ({}, 0)
    with pytest.raises(ValueError, match="sequence"):
        losses.ppo_clip(
            change, old, valid, advantage, mask, clip=losses.Clip(level="word")
        )
    assert (losses.Clip().low, losses.Clip().high, losses.Clip().level) == (
        0.2,
        0.28,
        "step",
    )


@pytest.mark.parametrize(
    ("change", "low", "high", "region"), [(0.0, 0.0, 0.0, 0.0), (0.7, 0.2, 0.2, 1.0)]
)
def test_a_ratio_on_the_edge_is_inside_and_without_advantage_nothing_is_clipped(
    change: float, low: float, high: float, region: float
) -> None:
    moved, some = torch.tensor([[[change, -change]]], dtype=F64), torch.ones(1, 1) > 0
    clip = losses.Clip(low, high)
    found = losses.ppo_clip(
        moved,
        torch.zeros_like(moved),
        torch.ones(1, 1, 2) > 0,
        torch.zeros(1, 1, dtype=F64),
        some,
        clip=clip,
    )
    assert found.diagnostics["clip_ratio/region_mean"] == region
    assert (
        found.diagnostics["clip_ratio/low_mean"]
        == found.diagnostics["clip_ratio/high_mean"]
        == 0.0
    )


def test_listwise_counts_rows_with_two_measured_and_allowed_actions() -> None:
    log_p = masked_log_softmax(
        torch.tensor([[0.0, 1.0, -torch.inf], [0.0, 1.0, 2.0]], dtype=F64)
    )
    rewards = torch.tensor([[1.0, math.nan, 1.0], [0.0, 1.0, math.nan]])
    found = losses.listwise(log_p, rewards, 0.5)
    assert (found.rows, found.diagnostics) == (1, {"listwise/rows": 1.0})
    high = math.exp(2.0) / (1 + math.exp(2.0))
    own = torch.log_softmax(log_p[1, :2], -1)
    assert float(found.total) == pytest.approx(
        -float((1 - high) * own[0] + high * own[1])
    )
    with pytest.raises(ValueError, match="pool"):
        losses.listwise(log_p, rewards, 0.5, among="all")


def test_pairs_count_by_gap_above_the_margin_and_say_how_they_stand() -> None:
    scores = torch.tensor([[0.3, -0.4, 1.0, 5.0], [1.0, 0.0, 0.0, 0.0]], dtype=F64)
    rewards = torch.tensor([[1.0, 0.5, 0.25, 9.0], [0.5, 0.5, 0.0, 0.0]], dtype=F64)
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    found = losses.pairwise(scores, rewards, mask, margin=0.25, beta=0.5)

    def worth(difference: float) -> float:
        return math.log1p(math.exp(-0.5 * difference))

    by_gap = (0.5 * worth(0.7) + 0.75 * worth(-0.7)) / 1.25
    assert float(found.total) == pytest.approx(by_gap), "a gap of the margin is no pair"
    assert found.rows == 1
    assert found.diagnostics == {
        "pair/count": 2.0,
        "pair/accuracy": 0.5,
        "pair/margin": pytest.approx(0.0),
    }
    by_pair = losses.pairwise(scores, rewards, mask, margin=0.25, beta=0.5, per="pair")
    assert float(by_pair.total) == pytest.approx(
        (0.5 * worth(0.7) + 0.75 * worth(-0.7)) / 3 / 2
    )
    assert by_pair.rows == 2
    usual = losses.pairwise(scores, rewards, mask)
    tenth = [0.5 * math.log1p(math.exp(-0.07)), 0.75 * math.log1p(math.exp(0.07))]
    assert float(usual.total) == pytest.approx(sum(tenth) / 1.25), (
        "margin 0.25 and beta 0.1 unless told"
    )
    tied = losses.pairwise(
        torch.zeros(1, 2, dtype=F64),
        torch.tensor([[1.0, 0.0]], dtype=F64),
        torch.ones(1, 2) > 0,
    )
    assert tied.diagnostics["pair/accuracy"] == 0.0, "equal scores are not right"
    alone = losses.pairwise(
        torch.zeros(1, 1, dtype=F64),
        torch.zeros(1, 1, dtype=F64),
        torch.ones(1, 1) > 0,
        per="pair",
    )
    assert (alone.rows, float(alone.total), alone.diagnostics) == (
        0,
        0.0,
        {"pair/count": 0.0},
    )
    with pytest.raises(ValueError, match="known"):
        losses.pairwise(scores, rewards, mask, per="row")


def test_a_group_without_members_takes_no_part_in_centred_rce() -> None:
    steps, valid = (
        steps_of([[0.5], [0.2]], [[0.5], [0.2]]),
        torch.ones(2, 2, 1, dtype=torch.bool),
    )
    mask = torch.tensor([[True, True], [False, False]])
    found = losses.rce(
        steps,
        valid,
        torch.tensor([[0.8, 0.2], [0.0, 0.0]], dtype=F64),
        mask,
        centred=True,
    )
    assert float(found.total) == pytest.approx(
        -(0.3 * math.log(0.5) - 0.3 * math.log(0.2))
    )
    assert found.rows == 1
