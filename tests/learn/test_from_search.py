"""Groups as tensors: positions, rewards on read, competition by length, stops, padding."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from leverplus.data.types import ItemId
from leverplus.errors import DataError, NotMeasured
from leverplus.learn.data.batch import _only_tried, collate
from leverplus.learn.data.from_search import rows_from_groups
from leverplus.learn.data.rows import rows_of_epoch
from leverplus.learn.policies.base import PAD, STOP
from leverplus.learn.settings import RewardConfig, StageConfig
from leverplus.learn.stages import prefix_tables


def mixed_group(planted: Any) -> Any:
    query = planted.ids[0]
    a, b, c = planted.pool(query).candidates[:3]
    return planted.group(query, [(), (a,), (b,), (a, b), (b, c)])


def test_lists_of_equal_length_compete_and_positions_point_into_the_pool(
    planted: Any,
) -> None:
    group = mixed_group(planted)
    rows = rows_from_groups([group], planted.table, RewardConfig())
    assert [row.sequences.tolist() for row in rows] == [[[0], [1]], [[0, 1], [1, 2]]]
    assert rows[1].rewards.tolist() == pytest.approx(
        [group.scores[3].gt_prob, group.scores[4].gt_prob]
    )


def test_a_selector_that_may_stop_sees_all_lengths_and_learns_to_stop(
    planted: Any,
) -> None:
    rows = rows_from_groups(
        [mixed_group(planted)],
        planted.table,
        RewardConfig(),
        stop="anywhere",
        max_shots=2,
    )
    assert rows[0].sequences.tolist() == [
        [STOP, PAD],
        [0, STOP],
        [1, STOP],
        [0, 1],
        [1, 2],
    ]


def test_stopping_is_taught_only_where_the_selector_may_stop(planted: Any) -> None:
    groups, config = [mixed_group(planted)], RewardConfig()
    instead = rows_from_groups(
        groups, planted.table, config, stop="none_only", max_shots=2
    )
    assert instead[0].sequences.tolist() == [
        [STOP, PAD],
        [0, PAD],
        [1, PAD],
        [0, 1],
        [1, 2],
    ]
    after = rows_from_groups(
        groups, planted.table, config, stop="after_first", max_shots=2
    )
    assert after[0].sequences.tolist() == [[0, STOP], [1, STOP], [0, 1], [1, 2]]


def test_gain_is_taken_from_the_prefix_in_the_group_and_raises_without_it(
    planted: Any,
) -> None:
    group = mixed_group(planted)
    config = RewardConfig(mode="legacy", alpha=1.0, beta=0.0)
    gains = [
        row.rewards.tolist() for row in rows_from_groups([group], planted.table, config)
    ]
    p = [score.gt_prob for score in group.scores]
    assert gains[0] == pytest.approx([p[1] - p[0], p[2] - p[0]])
    assert gains[1] == pytest.approx([p[3] - p[1], p[4] - p[2]])
    orphan = replace(group, members=group.members[3:], scores=group.scores[3:])
    with pytest.raises(NotMeasured):
        rows_from_groups([orphan], planted.table, config)


def test_components_normalisation_and_adaptive_weights_change_the_rewards(
    planted: Any,
) -> None:
    groups = planted.groups(6)
    seen = set()
    for config in (
        RewardConfig(),
        RewardConfig(normalise="rank"),
        RewardConfig(normalise="z_score"),
        RewardConfig(components=("gt_prob", "hard_only"), normalise="z_score"),
        RewardConfig(
            components=("gt_prob", "hard_only"),
            component_weights=(1.0, 0.2),
            normalise="z_score",
        ),
        RewardConfig(components=("gt_prob", "hard_only"), adaptive=True),
        RewardConfig(components=("gt_prob", "hard_only")),
    ):
        rows = rows_from_groups(groups, planted.table, config)
        seen.add(tuple(round(float(value), 5) for row in rows for value in row.rewards))
    assert len(seen) == 7


def test_batches_are_padded_and_hold_each_item_once(planted: Any) -> None:
    rows = rows_from_groups(
        [*planted.groups(3)[:4], mixed_group(planted)], planted.table, RewardConfig()
    )
    batch = collate(rows, planted.table)
    assert batch.sequences.shape == (6, 3, 2)
    assert batch.mask.sum(-1).tolist() == [3, 3, 3, 3, 2, 2]
    assert (batch.sequences[~batch.mask] == PAD).all()
    assert len(torch.unique(batch.features.rows)) == len(batch.features.rows)
    for index, row in enumerate(rows):
        assert torch.equal(
            batch.features.rows[batch.features.pool[index]], row.pool_rows
        )
    assert "answer" not in batch.features.query


def test_a_demonstration_outside_the_pool_or_without_a_vector_is_refused(
    planted: Any,
) -> None:
    group = planted.group(planted.ids[0], [(planted.ids[1],)])
    with pytest.raises(DataError, match="not in its pool"):
        rows_from_groups([group], planted.table, RewardConfig())
    with pytest.raises(DataError, match="embed"):
        planted.table.row(ItemId("nobody"))


def test_prefix_tables_hold_every_measured_next_pick_and_stopping(planted: Any) -> None:
    group = mixed_group(planted)
    p = [score.gt_prob for score in group.scores]
    rows = rows_from_groups(
        [group], planted.table, RewardConfig(), stop="anywhere", max_shots=4
    )
    paths, steps, targets = prefix_tables(collate(rows, planted.table), True)
    assert paths[0].tolist() == [[PAD, PAD], [0, PAD], [1, PAD]]
    assert steps[0].tolist() == [0, 1, 1]
    nodes = [
        {k: v for k, v in enumerate(row) if not math.isnan(v)}
        for row in targets[0].tolist()
    ]
    assert nodes[0] == pytest.approx({10: p[0], 0: p[1], 1: p[2]})
    assert nodes[1] == pytest.approx({10: p[1], 1: p[3]})
    assert nodes[2] == pytest.approx({10: p[2], 2: p[4]})


ALTERED: dict[str, Any] = {
    "mode": "rank",
    "components": ("gt_prob", "hard_only"),
    "component_weights": (1.0, 0.3),
    "adaptive": True,
    "hard_weight": 2.0,
    "soft_weight": 2.0,
    "rel_weight": 0.9,
    "alpha": 0.9,
    "beta": 0.2,
    "correctness": "pm1",
    "quality": "logprob",
    "hard_by_shots": (1.0, 0.5),
    "soft_by_shots": (1.0, 0.5),
    "normalise": "z_score",
    "clamp": 0.5,
    "compare": "all",
}
BESIDE: dict[str, dict[str, Any]] = {
    "component_weights": {"components": ("gt_prob", "hard_only")},
    "adaptive": {"components": ("gt_prob", "hard_only")},
    "hard_weight": {"mode": "hard_only"},
    "hard_by_shots": {"mode": "hard_only"},
    "rel_weight": {"mode": "hard_plus_gtprob_plus_rel"},
    "alpha": {"mode": "legacy"},
    "beta": {"mode": "legacy"},
    "correctness": {"mode": "legacy"},
    "quality": {"mode": "legacy"},
    "clamp": {"normalise": "z_score_clamp"},
}


@pytest.mark.parametrize("key", sorted(vars(RewardConfig())))
def test_every_key_of_the_reward_section_changes_what_is_learnt_from(
    key: str, planted: Any
) -> None:
    queries = planted.ids[:12]
    groups = []
    for query in queries:
        a, b, c, d = planted.pool(query).candidates[:4]
        groups.append(
            planted.group(
                query, [(), (a,), (b,), (c,), (a, b), (b, c), (c, d)], log_mu=-2.0
            )
        )
    base = RewardConfig(**BESIDE.get(key, {}))
    seen = []
    for config in (base, replace(base, **{key: ALTERED[key]})):
        rows = rows_from_groups(groups, planted.table, config)
        seen.append([row.rewards.tolist() for row in rows])
    assert seen[0] != seen[1]


@pytest.mark.parametrize(
    ("changes", "epoch", "kept"),
    [
        ({}, 0, True),
        ({"min_positive_ratio": 0.5}, 0, True),  # two of four are right
        ({"min_positive_ratio": 0.51}, 0, False),
        (
            {"min_positive_ratio": 0.5, "positive_threshold": 0.3},
            0,
            False,
        ),  # 0.3 itself is not above it
        ({"easy_epochs": 1, "easy_gap": 0.5, "easy_count": 2}, 0, True),
        ({"easy_epochs": 1, "easy_gap": 0.51, "easy_count": 2}, 0, False),
        ({"easy_epochs": 1, "easy_gap": 0.5, "easy_count": 3}, 0, False),
        ({"easy_epochs": 1, "easy_gap": 9.0, "easy_count": 3}, 1, True),
        ({"easy_epochs": 2, "easy_gap": 9.0, "easy_count": 0}, 1, False),
    ],
)
def test_an_epoch_learns_from_groups_with_enough_positives_and_first_from_easy_ones(
    changes: dict[str, Any], epoch: int, kept: bool, planted: Any
) -> None:
    row = rows_from_groups(planted.groups(4)[:1], planted.table, RewardConfig())[0]
    row = replace(
        row,
        rewards=torch.tensor([0.25, 0.5, 0.75, 0.5]),
        accuracy=torch.tensor([1.0, 0.3, 0.0, 0.0]),
    )
    assert rows_of_epoch([row], StageConfig(**changes), epoch) == (
        [row] if kept else []
    )


def test_only_what_was_tried_stays_in_a_pool_and_sequences_point_to_it() -> None:
    pools = [torch.tensor([10, 11, 12, 13]), torch.tensor([20, 21])]
    sequences = torch.tensor([[[3, 1], [1, STOP]], [[1, PAD], [PAD, PAD]]])
    kept, moved = _only_tried(pools, sequences)
    assert [pool.tolist() for pool in kept] == [[11, 13], [21]]
    assert moved.tolist() == [[[1, 0], [0, STOP]], [[0, PAD], [PAD, PAD]]]
