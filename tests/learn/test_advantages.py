"""Advantages: hand-worked groups, whole-table properties, and what selecting by reward first destroys."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leverplus import catalog
from leverplus.learn.maths import advantages

REWARDS = torch.tensor([[0.0, 0.0, 1.6, 2.0], [1.0, 1.0, 1.0, 7.0]])
MASK = torch.tensor([[True, True, True, True], [True, True, True, False]])


def test_zscore_leave_one_out_rank_and_centred_match_hand_worked_values() -> None:
    spread = ((0.9**2 * 2 + 0.7**2 + 1.1**2) / 4) ** 0.5
    expected = torch.tensor([-0.9, -0.9, 0.7, 1.1])
    assert advantages.centred(REWARDS, MASK)[0].tolist() == pytest.approx(
        expected.tolist()
    )
    assert advantages.zscore(REWARDS, MASK)[0].tolist() == pytest.approx(
        (expected / spread).tolist()
    )
    loo = [0.0 - 3.6 / 3, 0.0 - 3.6 / 3, 1.6 - 2.0 / 3, 2.0 - 1.6 / 3]
    assert advantages.leave_one_out(REWARDS, MASK)[0].tolist() == pytest.approx(loo)
    assert advantages.rank(REWARDS, MASK)[0].tolist() == pytest.approx(
        [-2 / 3, -2 / 3, 1 / 3, 1.0]
    )


@pytest.mark.parametrize("name", sorted(catalog.ADVANTAGES))
def test_flat_groups_and_absent_members_get_exactly_zero(name: str) -> None:
    result = catalog.load(catalog.ADVANTAGES, name, "advantage")(REWARDS, MASK)
    assert result[1].tolist() == [0.0] * 4


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(catalog.ADVANTAGES))
@given(values=st.lists(st.integers(0, 3), min_size=2, max_size=9))
def test_advantages_have_mean_zero_keep_order_and_ties(
    name: str, values: list[int]
) -> None:
    row = torch.tensor([values], dtype=torch.float64)
    result = catalog.load(catalog.ADVANTAGES, name, "advantage")(
        row, torch.ones_like(row, dtype=torch.bool)
    )
    assert abs(float(result.mean())) < 1e-9
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            if a > b:
                assert result[0, i] > result[0, j]
            if a == b:
                assert result[0, i] == result[0, j]


def test_the_floor_keeps_a_nearly_flat_group_small() -> None:
    row = torch.tensor([[0.0, 0.001]])
    assert (
        advantages.zscore(row, torch.ones_like(row, dtype=torch.bool), floor=0.1)
        .abs()
        .max()
        <= 0.005 + 1e-6
    )


def test_selecting_the_top_three_before_the_baseline_kills_the_signal() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards = (torch.rand(200, 20, generator=generator) < 0.56).double() * 2.0
    mask = torch.ones_like(rewards, dtype=torch.bool)
    top = advantages.top_members(rewards, mask, 3)
    assert top.sum(-1).tolist() == [3] * 200
    assert (rewards[top] == 2.0).all(), (
        "every group has three right members, and the best are kept"
    )
    assert advantages.zscore(rewards, mask).std(-1).mean() > 0.95
    assert advantages.zscore(rewards, top).abs().max() < 1e-9


def test_scaling_over_the_batch_gives_unit_spread_but_keeps_differences_between_queries() -> (
    None
):
    values = torch.tensor([[-1.0, 1.0], [-0.1, 0.1]])
    scaled = advantages.scale_over_batch(
        values, torch.ones_like(values, dtype=torch.bool)
    )
    assert float(scaled.std(correction=0)) == pytest.approx(1.0)
    assert float(scaled[0, 1] / scaled[1, 1]) == pytest.approx(10.0)


def test_the_top_members_are_the_best_ones_and_earlier_ones_among_ties() -> None:
    rewards = torch.tensor([[0.1, 0.9, 0.5, 0.9, 2.0]])
    mask = torch.tensor([[True, True, True, True, False]])
    assert advantages.top_members(rewards, mask, 2).tolist() == [
        [False, True, False, True, False]
    ]
    assert advantages.top_members(rewards, mask, 1).tolist() == [
        [False, True, False, False, False]
    ]


def test_the_sample_deviation_is_that_of_torch() -> None:
    """Five members: the population deviation is 0.894 times as large, three: 0.816 times."""
    rewards = torch.tensor([[0.0, 1.0, 2.0, 0.0, 1.5]])
    mask = torch.ones_like(rewards, dtype=torch.bool)
    expected = (rewards - rewards.mean()) / rewards.std()
    torch.testing.assert_close(
        advantages.zscore_sample(rewards, mask, floor=1e-6), expected
    )
    ratio = advantages.zscore_sample(rewards, mask, 1e-6) / advantages.zscore(
        rewards, mask, 1e-6
    )
    assert float(ratio[0, 0]) == pytest.approx((4 / 5) ** 0.5)


def test_moments_of_an_empty_group_are_zero_and_of_others_those_of_their_members() -> (
    None
):
    mask = torch.tensor([[True, True, True, True], [False] * 4])
    count, mean, spread = advantages.moments(REWARDS, mask)
    assert count.flatten().tolist() == [4.0, 0.0]
    assert mean.flatten().tolist() == pytest.approx([0.9, 0.0])
    assert spread.flatten().tolist() == pytest.approx(
        [((0.9**2 * 2 + 0.7**2 + 1.1**2) / 4) ** 0.5, 0.0]
    )


def test_a_group_lives_when_its_members_differ_by_more_than_float_noise() -> None:
    rewards = torch.tensor(
        [[0.0, 1e-6], [0.0, 1.1e-6], [0.5, 0.5], [0.0, 1.0], [3.0, 1.0]],
        dtype=torch.float64,
    )
    mask = torch.tensor(
        [[True, True], [True, True], [True, True], [True, False], [False, False]]
    )
    assert advantages.live_groups(rewards, mask).tolist() == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert advantages.live_groups(rewards, mask, 1.0).tolist() == [False] * 5
    negative = torch.tensor([[-3.0, -1.0, 0.0]])
    assert advantages.live_groups(negative, torch.tensor([[True, True, False]])).item()


@pytest.mark.parametrize("name", ["zscore", "zscore_sample"])
def test_z_scores_divide_by_a_tenth_at_least_unless_told(name: str) -> None:
    row, mask = (
        torch.tensor([[0.0, 0.02]], dtype=torch.float64),
        torch.ones(1, 2, dtype=torch.bool),
    )
    function = getattr(advantages, name)
    assert function(row, mask)[0].tolist() == pytest.approx([-0.1, 0.1])
    assert function(row, mask, 0.05)[0].tolist() == pytest.approx([-0.2, 0.2])


def test_the_sample_deviation_counts_the_members_that_are_there() -> None:
    found = advantages.zscore_sample(
        torch.tensor([[0.0, 1.0, 2.0, 50.0]]), torch.tensor([[True, True, True, False]])
    )
    assert found[0].tolist() == pytest.approx([-1.0, 0.0, 1.0, 0.0])


def test_ranks_count_the_members_that_are_there() -> None:
    rewards = torch.tensor([[0.5, 0.1, 9.0, 0.5]])
    mask = torch.tensor([[True, True, False, True]])
    assert advantages.rank(rewards, mask)[0].tolist() == pytest.approx(
        [0.5, -1.0, 0.0, 0.5]
    )


def test_the_scale_of_a_batch_has_a_floor_and_reads_members_that_are_there() -> None:
    values, mask = (
        torch.tensor([[-0.01, 0.01, 9.0]]),
        torch.tensor([[True, True, False]]),
    )
    assert advantages.scale_over_batch(values, mask)[0, :2].tolist() == pytest.approx(
        [-0.2, 0.2]
    ), "0.05 unless told"
    assert advantages.scale_over_batch(values, mask, 0.001)[
        0, :2
    ].tolist() == pytest.approx([-1.0, 1.0])
    assert torch.equal(advantages.scale_over_batch(values, mask & False), values)


def test_as_many_as_there_are_is_everybody() -> None:
    mask = torch.tensor([[True, False, True]])
    assert torch.equal(
        advantages.top_members(torch.tensor([[0.1, 0.5, 0.3]]), mask, 3), mask
    )
    assert advantages.top_members(
        torch.tensor([[0.1, 0.5, 0.3]]), mask, 2
    ).tolist() == [[True, False, True]]
    assert advantages.top_members(
        torch.tensor([[0.5, 0.5, 0.5]]), mask, 1
    ).tolist() == [[True, False, False]]
