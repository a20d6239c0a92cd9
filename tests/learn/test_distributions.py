"""What a stage learns from, counted: by hand, against the stage's own log, and in the run folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from leverplus.data.types import ItemId
from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.data.rows import FixedRows, Row
from leverplus.learn.distributions import (
    demonstration_effects,
    describe_rows,
    first_advantages,
    histogram,
)
from leverplus.learn.grpo import Grpo
from leverplus.learn.loop import StageInputs, run_stage
from leverplus.learn.policies.base import PAD
from leverplus.learn.policies.table import ItemTable
from leverplus.learn.settings import GrpoConfig, RewardConfig


def row(rewards: list[float], accuracy: list[float]) -> Row:
    count = len(rewards)
    blank = torch.full((count, 1), PAD)
    return Row(
        ItemId("q"),
        0,
        torch.zeros(4),
        blank,
        torch.tensor(rewards),
        torch.zeros(count),
        torch.tensor(accuracy),
    )


def test_groups_are_counted_by_hand() -> None:
    rows = [
        row([0.5, 0.5], [0.0, 0.0]),
        row([0.0, 1.0, 0.26], [0.0, 1.0, 1.0]),
        row([1.0], [1.0]),
    ]
    found = describe_rows(rows)
    assert [
        found[key] for key in ("groups", "sequences", "flat", "all_wrong", "all_right")
    ] == [3, 6, 2, 1, 1]
    counts = found["rewards"]["counts"]
    assert {place: count for place, count in enumerate(counts) if count} == {
        0: 1,
        5: 1,
        10: 2,
        19: 2,
    }
    assert found["rewards"]["edges"][5] == pytest.approx(0.25)
    assert found["spread"]["counts"] == [2, *[0] * 18, 1]
    assert "advantages" not in found


def shown_alone(
    worth: list[float], queries: int, seed: int
) -> tuple[list[Row], ItemTable]:
    """Every query is asked with every demonstration; demonstration d is right with the chance `worth[d]`."""
    draw, count = torch.Generator().manual_seed(seed), len(worth)
    rows = []
    for number in range(queries):
        right = (torch.rand(count, generator=draw) < torch.tensor(worth)).float()
        places = torch.stack([torch.arange(count), torch.full((count,), PAD)], dim=1)
        rows.append(
            Row(
                ItemId(f"q{number}"),
                0,
                torch.arange(count),
                places,
                right,
                torch.zeros(count),
                right,
            )
        )
    return rows, ItemTable([ItemId(f"d{number}") for number in range(count)], {})


def test_the_most_useful_and_the_most_harmful_demonstrations_are_named() -> None:
    worth = [0.5] * 20
    worth[3], worth[7] = 0.95, 0.05
    rows, table = shown_alone(worth, 60, 0)
    found = demonstration_effects(rows, table)
    assert found is not None
    assert (found["useful"][0]["demo"], found["harmful"][0]["demo"]) == ("d3", "d7")
    assert found["useful"][0]["effect"] > 0.3 > -0.3 > found["harmful"][0]["effect"]
    assert (found["answers"], found["queries"], found["demonstrations"]) == (
        1200,
        60,
        20,
    )
    assert not found["is_noise"]


def test_demonstrations_that_do_not_differ_are_called_noise_and_lists_of_two_say_nothing() -> (
    None
):
    noise = sum(
        bool(demonstration_effects(*shown_alone([0.5] * 20, 30, seed))["is_noise"])
        for seed in range(20)
    )  # type: ignore[index]
    assert noise >= 10
    rows, table = shown_alone([0.5] * 20, 10, 0)
    longer = [replace(own, sequences=own.sequences.clamp(min=0)) for own in rows]
    assert demonstration_effects(longer, table) is None
    assert demonstration_effects(rows[:1], table) is None


def test_values_outside_the_unit_interval_have_bins_of_their_own() -> None:
    found = histogram(torch.tensor([-2.0, 0.0, 2.0]))
    assert (found["edges"][0], found["edges"][-1], sum(found["counts"])) == (
        -2.0,
        2.0,
        3,
    )
    assert sum(histogram(torch.tensor([3.0, 3.0]))["counts"]) == 2


def test_a_stage_leaves_its_counts_in_the_run_folder_and_they_agree_with_its_log(
    planted: Any, tmp_path: Path
) -> None:
    rows = rows_from_groups(planted.groups(6), planted.table, RewardConfig())
    config = GrpoConfig(epochs=1, batch_size=len(rows))
    run_stage(
        planted.policy(),
        FixedRows(rows),
        StageInputs("grpo", config, planted.table, 0, tmp_path),
    )
    found = json.loads((tmp_path / "groups-grpo.json").read_text())
    logged = json.loads((tmp_path / "log.jsonl").read_text())
    assert found["groups"] == len(rows) == logged["train/rows"]
    assert found["flat"] / found["groups"] == pytest.approx(
        logged["train/frac_reward_zero_std"]
    )
    edges = found["advantages"]["edges"]
    assert max(abs(edges[0]), abs(edges[-1])) == pytest.approx(
        logged["train/adv/max"], rel=1e-5
    )
    assert not list(tmp_path.glob(".groups*"))


def test_advantages_are_those_of_the_stage_and_only_of_members_that_move_it(
    planted: Any,
) -> None:
    rows = rows_from_groups(planted.groups(6), planted.table, RewardConfig())
    stage = Grpo(
        GrpoConfig(batch_scale=False, advantage="centred"), planted.policy(), {}
    )
    found = first_advantages(stage, rows, planted.table, 4)
    live = [one.rewards for one in rows if one.rewards.max() > one.rewards.min()]
    expected = torch.cat([rewards - rewards.mean() for rewards in live])
    torch.testing.assert_close(
        found.sort().values, expected.sort().values, atol=1e-6, rtol=0
    )
