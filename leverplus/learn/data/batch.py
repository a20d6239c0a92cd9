"""Batches: rows of different sizes padded to one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from leverplus.data.types import ItemId
from leverplus.learn.data.rows import Row
from leverplus.learn.policies.base import PAD, Features
from leverplus.learn.policies.table import ItemTable


@dataclass(frozen=True)
class GroupBatch:
    """B rows padded to G lists of S places each."""

    queries: tuple[ItemId, ...]
    features: Features
    sequences: Tensor  # (B, G, S) places in the pool, STOP, PAD
    mask: Tensor  # (B, G) True where there is a list
    rewards: Tensor  # (B, G)
    log_mu: Tensor  # (B, G)
    accuracy: Tensor  # (B, G)

    def __len__(self) -> int:
        return len(self.queries)


def collate(
    rows: Sequence[Row],
    table: ItemTable,
    *,
    tried: bool = False,
) -> GroupBatch:
    """Pad rows to one batch; with `tried` the pools hold only the candidates that some sequence of the row has."""
    members = max(len(row.rewards) for row in rows)
    steps = max(row.sequences.shape[1] for row in rows)
    padded = []
    counts = []
    for row in rows:
        missing = (0, steps - row.sequences.shape[1], 0, members - len(row.rewards))
        padded.append(pad(row.sequences, missing, value=PAD))  # (G, S)
        counts.append(len(row.rewards))
    sequences = torch.stack(padded)  # (B, G, S)
    columns = {}  # (B, G) each
    for name in ("rewards", "log_mu", "accuracy"):
        column = [getattr(row, name) for row in rows]
        columns[name] = pad_sequence(column, batch_first=True)
    mask = torch.arange(members) < torch.tensor(counts).unsqueeze(-1)  # (B, G)
    pools = [row.pool_rows for row in rows]
    if tried:
        pools, sequences = _only_tried(pools, sequences)
    query_rows = torch.tensor([row.query_row for row in rows])
    features = table.features_of_rows(query_rows, pools)
    queries = tuple(row.query for row in rows)
    return GroupBatch(
        queries,
        features,
        sequences,
        mask,
        **columns,
    )


def _only_tried(
    pools: Sequence[Tensor],
    sequences: Tensor,
) -> tuple[list[Tensor], Tensor]:
    """Pools without the candidates that no sequence (B, G, S) has, in the same order, and the sequences' new places."""
    size = max(len(pool) for pool in pools)  # K
    # STOP and PAD are negative: they are counted in one more column, which is cut off again
    places = torch.where(sequences >= 0, sequences, size).flatten(1)  # (B, G * S)
    used = torch.zeros(len(pools), size + 1, dtype=torch.bool).scatter(1, places, True)[
        :, :size
    ]  # (B, K)
    # a kept candidate's new place is how many kept ones stand before it
    rank = torch.cat(
        [used.cumsum(1) - 1, torch.zeros(len(pools), 1, dtype=torch.long)], dim=1
    )  # (B, K + 1)
    moved = torch.gather(rank, 1, places).reshape(sequences.shape)  # (B, G, S)
    kept = [pool[own[: len(pool)]] for pool, own in zip(pools, used, strict=True)]
    return kept, torch.where(sequences >= 0, moved, sequences)
