"""Groups that are not learnt from: who they are, what is measured on them, and choosing an epoch by it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from leverplus.errors import RecipeError
from leverplus.learn.data.batch import collate
from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.data.rows import FixedRows, Row, rows_of_epoch, without_wrong
from leverplus.learn.heldout import judge_rows, split_rows
from leverplus.learn.loop import StageInputs, run_stage
from leverplus.learn.policies.base import sequence_logprobs
from leverplus.learn.settings import GrpoConfig, RceConfig, RewardConfig
from leverplus.run.recipe import build_recipe


def rows_of(planted: Any, count: int = 20) -> list[Row]:
    return list(rows_from_groups(planted.groups(count), planted.table, RewardConfig()))


def test_a_query_stays_on_its_side_when_others_are_added(planted: Any) -> None:
    rows = rows_of(planted)
    learnt, kept_out = split_rows(rows, 0.25)
    assert {row.query for row in learnt}.isdisjoint({row.query for row in kept_out})
    assert len(learnt) + len(kept_out) == len(rows)
    again, _ = split_rows(list(reversed(rows)), 0.25)
    assert {row.query for row in again} == {row.query for row in learnt}
    assert split_rows(rows, 0.0) == (rows, [])
    alone = [row for row in rows if row.query == rows[0].query]
    assert split_rows(alone, 0.5) == (alone, []), "one query is learnt from"


def test_loss_and_reward_of_held_out_groups_are_those_of_the_formulas(
    planted: Any,
) -> None:
    rows, policy = rows_of(planted)[:5], planted.policy()
    expected = {"loss": 0.0, "group_reward": 0.0}
    for row in rows:
        batch = collate([row], planted.table)
        with torch.no_grad():
            logp = (
                sequence_logprobs(
                    policy.eval(), policy.prepare(batch.features), batch.sequences
                )
                .total[0]
                .tolist()
            )
        reward = row.rewards.tolist()
        weight = [
            math.exp(r) / sum(math.exp(other) for other in reward) for r in reward
        ]
        expected["loss"] += -sum(
            w * p for w, p in zip(weight, logp, strict=True)
        ) / len(rows)
        share = [math.exp(p) / sum(math.exp(other) for other in logp) for p in logp]
        expected["group_reward"] += sum(
            s * r for s, r in zip(share, reward, strict=True)
        ) / len(rows)
    assert judge_rows(policy, rows, planted.table) == pytest.approx(expected, rel=1e-5)
    assert judge_rows(policy, [], planted.table) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rce", "grpo"])
def test_a_stage_logs_held_out_loss_and_can_choose_its_epoch_by_it(
    planted: Any, name: str
) -> None:
    config_type = {"rce": RceConfig, "grpo": GrpoConfig}[name]
    config = config_type(epochs=4, lr=5e-3, batch_size=10, held_out=0.3, monitor="loss")
    result = run_stage(
        planted.policy(),
        FixedRows(rows_of(planted)),
        StageInputs(name, config, planted.table),
    )
    held = [line["val/loss"] for line in result.history]
    assert len(held) == 4
    assert all(
        {"val/group_reward", "fit/loss", "fit/group_reward"} <= set(line)
        for line in result.history
    )
    assert result.best_value is not None
    assert -result.best_value <= min(held) + 1e-9, (
        "the lowest loss, or that of the start"
    )
    if result.best_epoch:
        assert held[result.best_epoch - 1] == pytest.approx(-result.best_value)


def test_choosing_by_a_held_out_number_needs_groups_that_are_held_out() -> None:
    with pytest.raises(
        RecipeError, match=r'rce\.monitor = "loss": needs rce\.held_out above 0'
    ):
        build_recipe(
            "a", {"train": {"stages": ["rce"]}, "rce": {"monitor": "loss"}}, "test"
        )


def test_the_wrong_members_that_were_least_likely_are_dropped_first(
    planted: Any,
) -> None:
    row = rows_of(planted, 1)[0]
    nan = math.nan
    row = replace(
        row,
        sequences=torch.arange(5).unsqueeze(-1),
        rewards=torch.tensor([0.9, 0.1, 0.2, 0.3, 0.05]),
        accuracy=torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]),
        log_mu=torch.tensor([-9.0, -1.0, -5.0, nan, nan]),
    )
    kept = [
        without_wrong(row, share).sequences.flatten().tolist()
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    assert kept == [[0, 1, 2, 3, 4], [0, 1, 3, 4], [0, 3, 4], [0, 3], [0]]
    assert rows_of_epoch([row], RceConfig(drop_wrong=0.5), 0)[
        0
    ].rewards.tolist() == pytest.approx([0.9, 0.3, 0.05])


@pytest.mark.parametrize(
    ("share", "held"),
    [(0.01, 1), (0.25, 10), (0.26, 10), (0.29, 12), (0.9, 36), (1.0, 39)],
)
def test_a_share_is_rounded_and_leaves_at_least_one_on_each_side(
    planted: Any, share: float, held: int
) -> None:
    rows = rows_of(planted, 2)
    assert len({row.query for row in rows}) == 40
    learnt, kept_out = split_rows(rows, share)
    assert (
        len({row.query for row in learnt}),
        len({row.query for row in kept_out}),
    ) == (40 - held, held)
    first = sorted(
        {str(row.query) for row in rows},
        key=lambda query: hashlib.sha256(query.encode()).digest(),
    )[:held]
    assert {row.query for row in kept_out} == set(first)


@pytest.mark.slow
def test_groups_of_different_sizes_are_judged_alike_alone_and_in_batches(
    planted: Any,
) -> None:
    rows = [
        without_wrong(row, 1.0) if place % 3 else row
        for place, row in enumerate(rows_of(planted, 6) * 2)
    ]
    rows = [row for row in rows if len(row.rewards) > 1]
    assert len({len(row.rewards) for row in rows}) > 1
    assert len(rows) > 64, "more than one batch"
    policy = planted.policy()
    alone = [judge_rows(policy, [row], planted.table) for row in rows]
    together = judge_rows(policy.train(), rows, planted.table)
    assert not policy.training
    for name, value in together.items():
        assert value == pytest.approx(
            sum(own[name] for own in alone) / len(alone), rel=1e-4
        )
