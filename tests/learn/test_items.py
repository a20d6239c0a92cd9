"""Items and policies: choices by item id, samples with their log-probability."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from leverplus.learn.policies import items
from leverplus.learn.policies.items import choose_demos


def test_choices_come_from_the_pool_in_any_batch_size_and_pool_order(
    planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = planted.policy(state="gru")
    pools = [planted.pool(query) for query in planted.ids[:7]]
    whole = choose_demos(policy, planted.table, pools, 3)
    turned = [replace(pool, candidates=pool.candidates[::-1]) for pool in pools]
    assert choose_demos(policy, planted.table, turned, 3) == whole
    monkeypatch.setattr(items, "BATCH", 2)
    assert choose_demos(policy, planted.table, pools, 3) == whole
    for pool, demos in zip(pools, whole, strict=True):
        assert len(set(demos)) == 3
        assert set(demos) <= set(pool.candidates)


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
