"""The vectors of items by id, as arrays; tensors are made of them where a policy reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leverplus.data.types import ItemId
from leverplus.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from leverplus.learn.policies.base import Features, LiveEncoding

Array = NDArray[np.float32]
PairsOf = Callable[[int, NDArray[np.int64]], NDArray[Any]]
"""Features of a query with some candidates, all by their rows, (K, F)."""


class ItemTable:
    """The feature blocks of every item a policy may see, by id; `arrays[field]` is (N, D).

    `live` embeds items again, for policies with adapters; `pairs` compares queries and candidates, for those that weigh
    what that gives.
    """

    def __init__(self, ids: Sequence[ItemId], arrays: Mapping[str, Any]) -> None:
        self.rows = {item: row for row, item in enumerate(ids)}
        self.arrays: dict[str, Array] = {}
        self.live: LiveEncoding | None = None
        self.pairs: PairsOf | None = None
        self._known_pairs: dict[tuple[int, bytes], Tensor] = {}
        for name, array in arrays.items():
            if array is None:  # no pictures
                continue
            if len(array) != len(ids):
                raise DataError(
                    f"{len(ids)} items but {len(array)} vectors in block '{name}'; embed the items again"
                )
            self.arrays[name] = np.asarray(array)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dims(self) -> dict[str, int]:
        return {name: int(array.shape[-1]) for name, array in self.arrays.items()}

    @cached_property
    def blocks(self) -> dict[str, Tensor]:
        """The same as tensors, which share the arrays' memory."""
        import torch

        return {name: torch.from_numpy(array) for name, array in self.arrays.items()}

    def row(self, item: ItemId) -> int:
        if item not in self.rows:
            raise DataError(f"item {item} has no vector; embed it before it is used")
        return self.rows[item]

    def features(
        self, queries: Sequence[ItemId], pools: Sequence[Sequence[ItemId]]
    ) -> Features:
        """Features of queries and their pools, padded to the largest pool."""
        import torch

        query_rows = torch.tensor([self.row(query) for query in queries])  # (B,)
        pool_rows = []
        for pool in pools:
            numbers = [self.row(item) for item in pool]
            pool_rows.append(
                torch.tensor(numbers, dtype=torch.long)
            )  # an empty pool would become float without
        return self.features_of_rows(query_rows, pool_rows)

    def features_of_rows(self, queries: Tensor, pools: Sequence[Tensor]) -> Features:
        """The same from row numbers; every item appears once, however many pools hold it."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        from leverplus.learn.policies.base import Features

        padded = pad_sequence(
            list(pools), batch_first=True, padding_value=-1
        )  # (B, K), rows of the table
        inside = padded >= 0
        unique, inverse = torch.unique(
            padded[inside], return_inverse=True
        )  # (U,) rows that occur; where each went
        pool = torch.full_like(padded, -1)
        pool[inside] = inverse  # (B, K), rows of `unique`
        # a query's answer is what is asked for: no policy may see it
        query = {
            name: block[queries]
            for name, block in self.blocks.items()
            if name != "answer"
        }  # (B, D) each
        items = {name: block[unique] for name, block in self.blocks.items()}
        pairs = None
        if self.pairs is not None:
            found = []
            for row, own in zip(queries.tolist(), pools, strict=True):
                found.append(self.pairs_of(row, own.numpy()))
            pairs = pad_sequence(found, batch_first=True)  # (B, K, F)
        return Features(query, items, pool, unique, queries, self.live, pairs=pairs)

    def pairs_of(self, query: int, rows: NDArray[np.int64]) -> Tensor:
        """The features of a query with its pool (K, F), computed once."""
        import torch

        key = (query, rows.tobytes())
        if key not in self._known_pairs:
            assert self.pairs is not None
            found = np.asarray(self.pairs(query, rows), np.float32)
            self._known_pairs[key] = torch.from_numpy(found)
        return self._known_pairs[key]
