"""Every value that a setting of a stage may be chosen from trains another selector."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.data.rows import FixedRows, Row
from leverplus.learn.loop import StageInputs, run_stage
from leverplus.learn.settings import SECTIONS, RewardConfig, StageConfig
from leverplus.learn.stages import frozen_copy

# what must be set beside a choice of grpo for it to matter
BESIDE: dict[str, dict[str, Any]] = {
    "kl": {"kl_beta": 0.5},
    "reference": {"kl_beta": 0.5},
    "beta_rule": {"kl_beta": 0.5, "kl_high": 1e-6, "kl_low": 0.0, "beta_max": 9.0},
    "flat_groups": {"kl_beta": 0.5},
    "behaviour": {"importance_cap": 0.7},
}
ELSEWHERE = {
    "keep",
    "loss",
}  # `keep` needs held-out numbers; a loss of one's own is tried in tests/test_outside_parts.py
CHOICES = [
    (stage, field.name)
    for stage, section in SECTIONS.items()
    for field in dataclasses.fields(section)
    if field.metadata["choices"] is not None
    and field.name not in ELSEWHERE
    and (
        stage == "sft" or field.name not in vars(StageConfig())
    )  # one loop: what all stages share is tried once
]


def allowed(stage: str, key: str) -> tuple[Any, ...]:
    found = next(
        field for field in dataclasses.fields(SECTIONS[stage]) if field.name == key
    ).metadata["choices"]
    return tuple(found() if callable(found) else found)


def rows_of(planted: Any) -> list[Row]:
    """Two rows with one outlier of twelve members, two ordinary ones and a flat one; all with a log-probability."""
    groups = [
        planted.group(g.query, [m.demos for m in g.members], -3.0)
        for g in planted.groups(12)[:5]
    ]
    rows = rows_from_groups(groups, planted.table, RewardConfig())
    outlier = [replace(row, rewards=torch.eye(len(row.rewards))[3]) for row in rows[:2]]
    return [
        *outlier,
        *rows[2:4],
        replace(rows[4], rewards=torch.ones_like(rows[4].rewards)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "key"), CHOICES)
def test_every_choice_of_a_setting_ends_with_other_weights(
    stage: str, key: str, planted: Any
) -> None:
    rows, beside = rows_of(planted), BESIDE.get(key, {}) if stage == "grpo" else {}
    if stage == "listwise":
        rows = rows_from_groups(
            [
                planted.group(q, [(c,) for c in planted.pool(q).candidates[:5]])
                for q in planted.queries()[:5]
            ],
            planted.table,
            RewardConfig(),
        )
    anchors = {"sft": frozen_copy(planted.policy(seed=4))}
    ends = {}
    for choice in allowed(stage, key):
        policy = planted.policy(seed=3)
        config = SECTIONS[stage](
            epochs=3, batch_size=2, lr=0.01, grad_clip=0.0, **{**beside, key: choice}
        )
        if stage == "grpo":
            config = replace(config, trust_kl=0.0)
        run_stage(
            policy,
            FixedRows(rows),
            StageInputs(stage, config, planted.table, anchors=anchors),
        )
        ends[choice] = torch.cat(
            [value.flatten() for value in policy.state_dict().values()]
        )
    assert len(ends) >= 2
    alike = [
        pair
        for pair in itertools.combinations(ends, 2)
        if torch.equal(ends[pair[0]], ends[pair[1]])
    ]
    assert alike == []
