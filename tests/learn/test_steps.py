"""Steps: how many there are, and how many were taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from leverplus.errors import TrainingError
from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.settings import RewardConfig, SftConfig
from leverplus.learn.stages import Sft
from leverplus.learn.steps import Steps


def test_a_pass_takes_the_steps_that_were_planned_for_an_epoch(planted: Any) -> None:
    rows = rows_from_groups(planted.groups(4), planted.table, RewardConfig())[:23]
    policy = planted.policy()
    stage = Sft(SftConfig(epochs=4, batch_size=10), policy, {})
    steps = Steps(policy, stage, planted.table, name="sft", seed=0)
    steps.plan(len(rows), epoch=0)
    assert steps.total == 12  # 3 batches of at most 10 rows in each of 4 epochs
    said = steps.run_epoch(rows, epoch=0)
    assert steps.taken == 3
    assert said["loss/total"] > 0.0
    steps.plan(10, epoch=1)
    assert steps.total == 6  # one step in each of the 3 epochs left
    assert (steps.progress(1).step, steps.progress(1).total) == (3, 6)


def test_a_loss_that_is_no_number_stops_the_stage_at_its_step(planted: Any) -> None:
    policy = planted.policy()
    stage = Sft(SftConfig(labels="weighted"), policy, {})
    rows = rows_from_groups(planted.groups(4), planted.table, RewardConfig())
    rows[0] = replace(rows[0], rewards=torch.full_like(rows[0].rewards, torch.inf))
    with pytest.raises(
        TrainingError, match=r"stage sft: the loss is nan at step 0; lower sft\.lr"
    ):
        Steps(policy, stage, planted.table, name="sft", seed=0).run_epoch(rows, epoch=0)
