"""Items and policies: choices by item id, samples with their log-probability."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from leverplus.learn.policies.base import sequence_logprobs
from leverplus.learn.policies.items import choose_demos, sample_members
from leverplus.learn.seeds import derive_seed


def test_choices_come_from_the_pool_in_any_batch_size_and_pool_order(
    planted: Any,
) -> None:
    policy = planted.policy(state="gru")
    pools = [planted.pool(query) for query in planted.ids[:7]]
    whole = choose_demos(policy, planted.table, pools, 3)
    turned = [replace(pool, candidates=pool.candidates[::-1]) for pool in pools]
    assert choose_demos(policy, planted.table, pools, 3, batch=2) == whole
    assert choose_demos(policy, planted.table, turned, 3) == whole
    for pool, demos in zip(pools, whole, strict=True):
        assert len(set(demos)) == 3
        assert set(demos) <= set(pool.candidates)


@pytest.mark.parametrize("alone", [True, False])
def test_samples_carry_the_log_probability_of_the_policy_that_drew_them(
    alone: bool, planted: Any
) -> None:
    policy = planted.policy(state="gru")
    pools = [planted.pool(query) for query in planted.ids[:3]]
    options = {
        "seed_of": lambda query: derive_seed(0, "grpo", 1, query),
        "without_replacement": alone,
    }
    drawn = sample_members(
        policy, planted.table, pools, 2, 6, temperature=2.0, **options
    )
    again = sample_members(
        policy, planted.table, pools, 2, 6, temperature=2.0, batch=1, **options
    )
    assert [[m.demos for m in row] for row in drawn] == [
        [m.demos for m in row] for row in again
    ]
    for pool, members in zip(pools, drawn, strict=True):
        features = planted.table.features([pool.query], [pool.candidates])
        places = torch.tensor(
            [[[pool.position(demo) for demo in member.demos] for member in members]]
        )
        with torch.no_grad():
            total = sequence_logprobs(policy, policy.prepare(features), places).total[0]
        assert [member.log_mu for member in members] == pytest.approx(
            total.tolist(), abs=1e-5
        )
        if alone:
            assert len({member.demos for member in members}) == 6


def test_a_tree_smaller_than_the_count_gives_every_sequence_once(planted: Any) -> None:
    policy = planted.policy()
    pool = planted.pool(planted.ids[0], size=3)
    members = sample_members(policy, planted.table, [pool], 2, 50, seed_of=lambda _: 1)[
        0
    ]
    assert len(members) == len({member.demos for member in members}) == 6
    assert sum(math.exp(member.log_mu or 0.0) for member in members) == pytest.approx(
        1.0, abs=1e-5
    )


def test_a_policy_that_may_stop_can_choose_nothing(planted: Any) -> None:
    policy = planted.policy(stop="anywhere")
    with torch.no_grad():
        policy.stop_vector.zero_()
    pools = [planted.pool(query) for query in planted.ids[:40]]
    free = choose_demos(policy, planted.table, pools, 2, allow_stop=True)
    assert any(len(demos) < 2 for demos in free)
    assert all(
        len(demos) == 2 for demos in choose_demos(policy, planted.table, pools, 2)
    )
