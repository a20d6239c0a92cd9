"""Rows, what a training stage learns from; the protocol of everything that makes them; which of them an epoch takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leverplus.data.types import Item, ItemId
from leverplus.learn.maths.signal import is_right
from leverplus.learn.policies.base import Policy
from leverplus.learn.settings import StageConfig

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]


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


def number_answers(items: Sequence[Item]) -> tuple[list[str], IntArray]:
    """The different answers of items in order, and which of them each item has, (N,)."""
    shown = sorted({item.answer for item in items})
    numbers = {answer: number for number, answer in enumerate(shown)}
    return shown, np.array([numbers[item.answer] for item in items], dtype=np.int64)


def one_shot_row(
    query: ItemId,
    query_row: int,
    pool_rows: IntArray,
    values: FloatArray,
) -> Row:
    """A row of lists with one candidate each, all K of a pool, from values (K,) that no model gave."""
    rewards = torch.from_numpy(values)  # (K,): every list shows one candidate, so G = K
    return Row(
        query=query,
        query_row=query_row,
        pool_rows=torch.from_numpy(pool_rows),
        sequences=torch.arange(len(values)).unsqueeze(-1),  # (K, 1)
        rewards=rewards,
        log_mu=torch.full_like(rewards, math.nan),
        accuracy=rewards,
    )


class RowSource(Protocol):
    """Makes the rows of a stage: from searched groups, from labels, or from rounds of asking the model."""

    def rows(
        self,
        policy: Policy,
        epoch: int,
    ) -> Sequence[Row]:
        """The rows of an epoch (from 0). `policy` is the selector before that epoch; only asking looks at it."""
        ...


@dataclass(frozen=True)
class FixedRows:
    """The same rows in every epoch."""

    fixed: Sequence[Row]

    def rows(
        self,
        policy: Policy,  # noqa: ARG002
        epoch: int,  # noqa: ARG002
    ) -> Sequence[Row]:
        return self.fixed


def rows_of_epoch(
    rows: Sequence[Row],
    config: StageConfig,
    epoch: int,
) -> list[Row]:
    """The rows an epoch (from 0) learns from: enough positives, and only easy queries at first."""
    kept = []
    for row in rows:
        # by accuracy: under a dense reward such as gt_prob a group without one right answer has rewards above 0 too
        positive = row.accuracy > config.positive_threshold  # (G,)
        share = float(positive.float().mean())
        if config.min_positive_ratio > 0.0 and share < config.min_positive_ratio:
            continue
        if epoch < config.easy_epochs:
            gap = float(row.rewards.max() - row.rewards.min())
            fewest = min(int(positive.sum()), int((~positive).sum()))
            if gap < config.easy_gap or fewest < config.easy_count:
                continue
        remaining = without_wrong(row, config.drop_wrong)
        if len(remaining.rewards):  # a group of wrong members alone may lose all
            kept.append(remaining)
    return kept


def without_wrong(
    row: Row,
    share: float,
) -> Row:
    """A row without a share of its wrong members, those least likely under what drew them first.

    Members without a density (`log_mu` is NaN) are ordered by reward behind those with one.
    """
    ordered = []
    for place, accuracy in enumerate(row.accuracy.tolist()):
        if not is_right(accuracy):
            density = float(row.log_mu[place])
            unknown = math.isnan(density)
            key = float(row.rewards[place]) if unknown else density
            ordered.append((unknown, key, place))
    count = int(share * len(ordered))
    if not count:
        return row
    dropped = {place for _, _, place in sorted(ordered)[:count]}
    left = [place for place in range(len(row.rewards)) if place not in dropped]
    kept = torch.tensor(left, dtype=torch.long)  # (G',)
    return replace(
        row,
        sequences=row.sequences[kept],
        rewards=row.rewards[kept],
        log_mu=row.log_mu[kept],
        accuracy=row.accuracy[kept],
    )
