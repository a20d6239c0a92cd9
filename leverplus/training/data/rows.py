"""Rows, what a training stage learns from; the protocol of everything that makes them; which of them an epoch takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from leverplus.maths.signal import is_right
from leverplus.policies.base import Policy
from leverplus.recipe.training import StageConfig
from leverplus.types import ItemId


@dataclass(frozen=True)
class Row:
    """Lists of demonstrations for one query that compete with each other; a stage learns to prefer the better ones."""

    query: ItemId
    query_row: int  # of the query in the item table
    pool_rows: Tensor  # (K,) the candidates in the item table
    sequences: Tensor  # (G, S) places in the pool in prompt order; STOP and PAD fill up the end
    rewards: Tensor  # (G,)
    log_mu: Tensor  # (G,) log-probability under the policy that drew the list; NaN where something else made it
    accuracy: Tensor  # (G,) NaN where nobody judged the answer


class RowSource(Protocol):
    """Makes the rows of a stage: from searched groups, from labels, or from rounds of asking the model."""

    def rows(self, policy: Policy, epoch: int) -> Sequence[Row]:
        """The rows of an epoch (from 0). `policy` is the selector before that epoch; only asking looks at it."""
        ...


@dataclass(frozen=True)
class FixedRows:
    """The same rows in every epoch."""

    fixed: Sequence[Row]

    def rows(self, policy: Policy, epoch: int) -> Sequence[Row]:  # noqa: ARG002 the signature of every source
        return self.fixed


def rows_of_epoch(rows: Sequence[Row], config: StageConfig, epoch: int) -> list[Row]:
    """The rows an epoch (from 0) learns from: enough positives, and only easy queries at first."""
    kept = []
    for row in rows:
        # by accuracy: under a dense reward such as gt_prob a group without one right answer has rewards above 0 too
        positive = row.accuracy > config.positive_threshold  # (G,)
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
    kept = torch.tensor([place for place in range(len(rewards)) if place not in dropped], dtype=torch.long)  # (G',)
    return replace(
        row,
        sequences=row.sequences[kept],
        rewards=row.rewards[kept],
        log_mu=row.log_mu[kept],
        accuracy=row.accuracy[kept],
    )
