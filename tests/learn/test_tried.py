"""Batches of the tried candidates alone: the same loss and gradients wherever candidates are judged apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from leverplus.learn.data.batch import GroupBatch, collate
from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.policies.base import Policy
from leverplus.learn.settings import ListwiseConfig, RewardConfig
from leverplus.learn.stages import Listwise, Progress

APART: list[dict[str, Any]] = [
    {},
    {"mmr": "max"},
    {"topics": 4},
    {"dpp": "bound", "dpp_rank": 4},
    {"head": "additive"},
    {"head": "bilinear"},
    {"state": "gru", "step_embedding": True},
]
TOGETHER: list[dict[str, Any]] = [
    {"decoder": "refine", "refine_top": 2},
    {"trunk": "cross_attention"},
    {"trunk": "set_encoder"},
]


def batches(planted: Any) -> tuple[GroupBatch, GroupBatch]:
    """Groups of lists of one and two, with stops, whole and narrowed; the pools differ in how much was tried."""
    groups = []
    for place, query in enumerate(planted.ids[:5]):
        names = planted.pool(query).candidates
        tried = [(names[k],) for k in range(place, place + 4)]
        groups.append(
            planted.group(
                query,
                [
                    (),
                    *tried,
                    (names[place], names[0 if place else 7]),
                    (names[place + 1],),
                ],
            )
        )
    rows = rows_from_groups(
        groups, planted.table, RewardConfig(), stop="none_only", max_shots=4
    )
    return collate(rows, planted.table), collate(rows, planted.table, tried=True)


SOFT, PAIRS = ListwiseConfig(temperature=0.5), ListwiseConfig(among="pairs")


def loss_and_gradients(
    policy: Policy, batch: GroupBatch, config: ListwiseConfig = SOFT
) -> tuple[float, list[torch.Tensor]]:
    policy = policy.double()
    features = batch.features
    for blocks in (features.query, features.items):
        for name in blocks:
            blocks[name] = blocks[name].double()  # type: ignore[index]
    policy.zero_grad(set_to_none=True)
    result = Listwise(config, policy, {}).loss(policy, batch, Progress(0, 0, 1))
    result.total.backward()
    gradients = [
        torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for p in policy.parameters()
    ]
    return float(result.total.detach()), gradients


def test_narrowed_pools_hold_what_was_tried_and_name_the_same_items(
    planted: Any,
) -> None:
    whole, narrow = batches(planted)
    assert narrow.features.pool.shape[1] < whole.features.pool.shape[1]
    assert len(narrow.features.rows) < len(whole.features.rows)  # type: ignore[arg-type]
    for row in range(len(whole)):
        named = []
        for batch in (whole, narrow):
            rows = batch.features.rows[batch.features.pool[row].clamp(min=0)]  # type: ignore[index]
            named.append(
                [
                    [int(rows[p]) if p >= 0 else p for p in own]
                    for own in batch.sequences[row].tolist()
                ]
            )
        assert named[0] == named[1]


@pytest.mark.parametrize("config", [SOFT, PAIRS], ids=["soft", "pairs"])
@pytest.mark.parametrize("parts", APART, ids=str)
def test_leaving_out_what_was_not_tried_changes_nothing(
    planted: Any, parts: dict[str, Any], config: ListwiseConfig
) -> None:
    policy = planted.policy(
        **{"trunk": "bi_encoder", "stop": "none_only", "max_shots": 4, **parts}
    )
    assert Listwise(config, policy, {}).tried_only(policy)
    assert not Listwise(ListwiseConfig(among="pool"), policy, {}).tried_only(policy)
    (loss, whole), (narrow_loss, narrow) = (
        loss_and_gradients(policy, own, config) for own in batches(planted)
    )
    assert narrow_loss == pytest.approx(loss, abs=1e-12)
    assert any(float(gradient.abs().max()) > 1e-6 for gradient in whole)
    for left, right in zip(whole, narrow, strict=True):
        assert torch.allclose(left, right, atol=1e-12)


@pytest.mark.parametrize("parts", TOGETHER, ids=str)
def test_selectors_that_compare_candidates_keep_the_whole_pool(
    planted: Any, parts: dict[str, Any]
) -> None:
    policy = planted.policy(
        **{"trunk": "bi_encoder", "stop": "none_only", "max_shots": 4, **parts}
    )
    assert not Listwise(ListwiseConfig(), policy, {}).tried_only(policy)
    whole, narrow = (loss_and_gradients(policy, batch)[0] for batch in batches(planted))
    assert abs(whole - narrow) > 1e-9, (
        "candidates are judged apart; it could leave out what was not tried"
    )
