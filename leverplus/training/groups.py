"""Tensors from groups: rewards on read, rows that a stage learns from, and padded batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from leverplus import catalog
from leverplus.errors import DataError
from leverplus.maths import rewards
from leverplus.maths.rewards import Evidence, Weights
from leverplus.maths.signal import is_right
from leverplus.policies.base import PAD, STOP, Features, may_stop
from leverplus.policies.items import ItemTable
from leverplus.recipe.training import RewardConfig, StageConfig
from leverplus.types import Demos, Group, ItemId, Member, Score

Array = NDArray[np.float64]
Expect = Callable[[Score], float]

__all__ = ["GroupBatch", "ItemTable", "Row", "collate", "rows_from_groups", "rows_of_epoch"]


@dataclass(frozen=True)
class Row:
    """What a stage learns from at once: sequences of one query that compete with each other.

    `sequences` (G, S) hold pool positions in prompt order; `log_mu` is NaN where a source has no density.
    """

    query: ItemId
    query_row: int
    pool_rows: Tensor
    sequences: Tensor
    rewards: Tensor
    log_mu: Tensor
    accuracy: Tensor


@dataclass(frozen=True)
class GroupBatch:
    """B rows padded to one shape: sequences (B, G, S), mask, rewards, log_mu and accuracy (B, G)."""

    queries: tuple[ItemId, ...]
    features: Features
    sequences: Tensor
    mask: Tensor
    rewards: Tensor
    log_mu: Tensor
    accuracy: Tensor

    def __len__(self) -> int:
        return len(self.queries)


def weights_of(config: RewardConfig) -> Weights:
    """The weights a `[reward]` section names."""
    return Weights(
        hard=config.hard_weight,
        soft=config.soft_weight,
        rel=config.rel_weight,
        alpha=config.alpha,
        beta=config.beta,
        correctness=config.correctness,
        quality=config.quality,
        hard_by_shots=config.hard_by_shots,
        soft_by_shots=config.soft_by_shots,
    )


def evidence_of(
    members: Sequence[Member], scores: Sequence[Score], known: Mapping[Demos, Score], expect: Expect | None = None
) -> list[Evidence]:
    """The evidence of competing members; what each was before its last one is looked up among the query's scores."""
    rivals = tuple(scores)
    return [
        Evidence(
            score,
            known.get(member.before) if member.demos else None,
            member.log_mu,
            rivals,
            None if expect is None else expect(score),
        )
        for member, score in zip(members, scores, strict=True)
    ]


def component_values(evidence: Sequence[Evidence], mode: str, config: RewardConfig) -> Array:
    """The rewards of competing members under one mode, transformed but not normalised."""
    reward = catalog.load(catalog.REWARDS, mode, "reward")
    weights = weights_of(config)
    values = np.array([reward(e, weights.for_shots(len(e.score.demos))) for e in evidence], dtype=np.float64)
    return rewards.logit(values) if config.transform == "logit" else values


def compete(group: Group, same_shots: bool) -> list[list[int]]:
    """Which members of a group compete: those of equal length, or all."""
    if not same_shots:
        return [list(range(len(group.members)))]
    lengths: dict[int, list[int]] = {}
    for index, member in enumerate(group.members):
        lengths.setdefault(len(member.demos), []).append(index)
    return [lengths[length] for length in sorted(lengths) if length > 0]


def rows_from_groups(
    groups: Sequence[Group],
    table: ItemTable,
    reward: RewardConfig,
    *,
    stop: str = "never",
    max_shots: int = 8,
    whole: Sequence[Group] | None = None,
    expect: Expect | None = None,
) -> list[Row]:
    """Rows of every group. Where the selector may stop (`select.stop`), a list shorter than `max_shots` ends in STOP.

    All lengths compete if it may stop at all; the empty list takes part only where it may be chosen.

    `whole` are the groups these were chosen from: the scores of prefixes are looked up there. `expect` is what the
    reward "expected_accuracy" takes for the accuracy of a score's answer.
    """
    same_shots = reward.compare == "same_shots" or (reward.compare == "auto" and stop == "never")
    modes = reward.components or (reward.mode,)
    pending: list[tuple[Group, list[int], list[Array]]] = []
    for group, source in zip(groups, whole or groups, strict=True):
        known = {score.demos: score for score in source.scores}
        for competing in compete(group, same_shots):
            indices = [i for i in competing if group.members[i].demos or may_stop(stop, 0)]
            members = [group.members[i] for i in indices]
            evidence = evidence_of(members, [group.scores[i] for i in indices], known, expect)
            pending.append((group, indices, [component_values(evidence, mode, reward) for mode in modes]))
    weights = list(reward.component_weights) or [1.0] * len(modes)
    if reward.adaptive and pending:
        weights = rewards.adaptive_weights([values for _, _, values in pending], weights)
    worth = partial(rewards.combine, weights=weights, method=reward.normalise, clamp=reward.clamp)
    return [
        _row(group, indices, worth(values), table, stop=stop, max_shots=max_shots) for group, indices, values in pending
    ]


def rows_by(
    groups: Sequence[Group], table: ItemTable, worth: Callable[[Score], float], *, stop: str, max_shots: int
) -> list[Row]:
    """Rows of groups whose answers nobody judged: the reward is what `worth` says, the accuracy is NaN."""
    return [
        _row(
            group,
            indices,
            np.array([worth(group.scores[i]) for i in indices]),
            table,
            stop=stop,
            max_shots=max_shots,
            judged=False,
        )
        for group in groups
        for indices in compete(group, same_shots=True)
    ]


def _row(
    group: Group,
    indices: Sequence[int],
    values: Array,
    table: ItemTable,
    *,
    stop: str,
    max_shots: int,
    judged: bool = True,
) -> Row:
    positions = {item: place for place, item in enumerate(group.pool.candidates)}
    sequences = []
    for index in indices:
        demos = group.members[index].demos
        missing = [demo for demo in demos if demo not in positions]
        if missing:
            raise DataError(f"query {group.query}: demonstration {missing[0]} is not in its pool; rebuild the groups")
        sequence = [positions[demo] for demo in demos]
        ends = len(demos) < max_shots and may_stop(stop, len(demos))
        sequences.append([*sequence, STOP] if ends else sequence)
    longest = max((len(sequence) for sequence in sequences), default=0)
    padded = [sequence + [PAD] * (longest - len(sequence)) for sequence in sequences]
    log_mu = [group.members[i].log_mu for i in indices]
    return Row(
        query=group.query,
        query_row=table.row(group.query),
        pool_rows=torch.tensor([table.row(item) for item in group.pool.candidates], dtype=torch.long),
        sequences=torch.tensor(padded, dtype=torch.long).reshape(len(sequences), longest),
        rewards=torch.tensor(values, dtype=torch.float32),
        log_mu=torch.tensor([math.nan if value is None else value for value in log_mu], dtype=torch.float32),
        accuracy=torch.tensor([group.scores[i].accuracy if judged else math.nan for i in indices], dtype=torch.float32),
    )


def collate(rows: Sequence[Row], table: ItemTable, *, tried: bool = False) -> GroupBatch:
    """Pad rows to one batch; with `tried` the pools hold only the candidates that some sequence of the row has."""
    members = max(len(row.rewards) for row in rows)
    steps = max(row.sequences.shape[1] for row in rows)
    sequences = torch.stack(
        [
            pad(row.sequences, (0, steps - row.sequences.shape[1], 0, members - len(row.rewards)), value=PAD)
            for row in rows
        ]
    )
    counts = torch.tensor([len(row.rewards) for row in rows])
    columns = {
        name: pad_sequence([getattr(row, name) for row in rows], batch_first=True)
        for name in ("rewards", "log_mu", "accuracy")
    }
    mask = torch.arange(members) < counts.unsqueeze(-1)
    pools = [row.pool_rows for row in rows]
    if tried:
        pools, sequences = _only_tried(pools, sequences)
    features = table.features_of_rows(torch.tensor([row.query_row for row in rows]), pools)
    return GroupBatch(tuple(row.query for row in rows), features, sequences, mask, **columns)


def _only_tried(pools: Sequence[Tensor], sequences: Tensor) -> tuple[list[Tensor], Tensor]:
    """Pools without the candidates that no sequence (B, G, S) has, in the same order, and the sequences' new places."""
    size = max(len(pool) for pool in pools)
    places = torch.where(sequences >= 0, sequences, size).flatten(1)
    used = torch.zeros(len(pools), size + 1, dtype=torch.bool).scatter(1, places, True)[:, :size]
    rank = torch.cat([used.cumsum(1) - 1, torch.zeros(len(pools), 1, dtype=torch.long)], dim=1)
    moved = torch.gather(rank, 1, places).reshape(sequences.shape)
    kept = [pool[own[: len(pool)]] for pool, own in zip(pools, used, strict=True)]
    return kept, torch.where(sequences >= 0, moved, sequences)


def rows_of_epoch(rows: Sequence[Row], config: StageConfig, epoch: int) -> list[Row]:
    """The rows an epoch (from 0) learns from: enough positives, and only easy queries at first."""
    kept = []
    for row in rows:
        # by accuracy: under a dense reward such as gt_prob a group without one right answer has rewards above 0 too
        positive = row.accuracy > config.positive_threshold
        if config.min_positive_ratio > 0.0 and float(positive.float().mean()) < config.min_positive_ratio:
            continue
        if epoch < config.easy_epochs:
            gap = float(row.rewards.max() - row.rewards.min())
            fewest = min(int(positive.sum()), int((~positive).sum()))
            if gap < config.easy_gap or fewest < config.easy_count:
                continue
        remaining = without_wrong(row, config.drop_wrong)
        if len(remaining.rewards):  # a group of wrong members alone may lose all of them
            kept.append(remaining)
    return kept


def without_wrong(row: Row, share: float) -> Row:
    """A row without a share of its wrong members, those least likely under what drew them first.

    Members without a density (`log_mu` is NaN) are ordered by reward behind those with one.
    """
    wrong = [place for place, accuracy in enumerate(row.accuracy.tolist()) if not is_right(accuracy)]
    count = int(share * len(wrong))
    if not count:
        return row
    density, rewards = row.log_mu.tolist(), row.rewards.tolist()
    # NaN compares with nothing, so a member without a density is put behind and told apart by its reward alone
    known = {place: not math.isnan(density[place]) for place in wrong}
    wrong.sort(key=lambda place: (not known[place], density[place] if known[place] else rewards[place]))
    dropped = set(wrong[:count])
    kept = torch.tensor([place for place in range(len(rewards)) if place not in dropped], dtype=torch.long)
    return replace(
        row,
        sequences=row.sequences[kept],
        rewards=row.rewards[kept],
        log_mu=row.log_mu[kept],
        accuracy=row.accuracy[kept],
    )
