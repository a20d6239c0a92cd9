"""Lays out a batch of tree nodes as arrays: codes, positions, attention masks, and the keys and values kept for later.

Letters: B rows of a batch, L its new places, T kept places before them, P rotary dimensions (1, or 3 with pictures).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leverplus.models.hf.language import KeysValues
from leverplus.models.hf.tree import Codes, Node, Prompt

KEPT_FACTOR = 8
"""Keys and values of a batch cover at most this many times the tokens that are computed in it: it bounds memory."""

PAD = -1  # the branch of a place that holds nothing


@dataclass(frozen=True)
class Kept:
    """What later rows attend to: keys and values (rows, heads, T, head_dim) of every layer, which of the T columns
    hold a token of the prompt (rows, T), how far each stands from the start (rows, T), and whether all of them do."""

    layers: KeysValues
    seen: Tensor
    places: Tensor
    whole: bool

    def rows(self, index: Tensor) -> Kept:
        """The rows of these numbers (B,), in this order; a row may be taken several times."""
        layers = [(keys[index], values[index]) for keys, values in self.layers]
        return Kept(layers, self.seen[index], self.places[index], self.whole)

    def joined(
        self, layers: KeysValues, seen: Tensor, places: Tensor, *, whole: bool
    ) -> Kept:
        """The same rows with L further columns; `layers` hold the old ones too, `whole` is about the new ones."""
        seen, places = (
            torch.cat([self.seen, seen], 1),
            torch.cat([self.places, places], 1),
        )  # (rows, T + L) each
        return Kept(layers, seen, places, self.whole and whole)


@dataclass(frozen=True)
class BatchRow:
    """A node to be read: its parent's row in what is kept, how many places are before it, how many are to be read."""

    node: Node
    parent: int
    depth: int
    length: int


def batch_rows(
    nodes: Sequence[Node], prompts: Sequence[Prompt], parent: int = 0, depth: int = 0
) -> list[BatchRow]:
    """Rows of sibling nodes; a node that ends a prompt is read together with the answers that are weighed."""
    rows = []
    for node in nodes:
        length = node.length
        if node.prompt is not None:
            # The last token of an answer is only predicted, never read.
            length += sum(len(answer) - 1 for answer in prompts[node.prompt].answers)
        rows.append(BatchRow(node, parent, depth, length))
    return rows


def batches(rows: Sequence[BatchRow], tokens: int) -> Iterator[list[BatchRow]]:
    """Rows of similar length together; a padded batch stays within the token budget."""
    batch: list[BatchRow] = []
    deepest = 0
    for row in sorted(rows, key=lambda row: (row.length, row.depth)):
        # Rows come by length, so this row's length is the width of the batch with it.
        count = len(batch) + 1
        deepest = max(deepest, row.depth)
        computed = count * row.length
        kept = count * (deepest + row.length)
        if batch and (computed > tokens or kept > KEPT_FACTOR * tokens):
            yield batch
            batch = []
            deepest = row.depth
        batch.append(row)
    if batch:
        yield batch


@dataclass(frozen=True)
class Sheet:
    """The places of a batch, padded on the right: codes (B, L), rotary positions (P, B, L), distances from the start
    (B, L), and which branch each belongs to: 0 the prompt, 1.. its answers, -1 padding."""

    codes: Codes
    positions: Codes
    places: Codes
    branches: Codes

    @classmethod
    def of(cls, batch: Sequence[BatchRow], prompts: Sequence[Prompt]) -> Sheet:
        shape = len(batch), max(row.length for row in batch)  # (B, L)
        dims = prompts[0].positions.shape[0]  # P
        sheet = cls(
            np.zeros(shape, np.int64),
            np.zeros((dims, *shape), np.int64),
            np.zeros(shape, np.int64),
            np.full(shape, PAD),
        )
        for number, row in enumerate(batch):
            sheet._fill(number, row.node, prompts[row.node.example])
        return sheet

    def _fill(self, row: int, node: Node, prompt: Prompt) -> None:
        """Put a node into a row; where it ends its prompt, the answers follow, all of them as if right after it."""
        self._put(row, 0, prompt.codes[node.start : node.stop], 0, node.start)
        self.positions[:, row, : node.length] = prompt.positions[
            :, node.start : node.stop
        ]
        if node.prompt is None:
            return
        column = node.length
        following = (
            int(prompt.positions[:, -1].max()) + 1
        )  # the largest, because a picture counts in three dimensions
        for branch, answer in enumerate(prompt.answers, start=1):
            self._put(row, column, np.array(answer[:-1], np.int64), branch, node.stop)
            end = column + len(answer) - 1
            self.positions[:, row, column:end] = following + np.arange(len(answer) - 1)
            column = end

    def _put(
        self, row: int, column: int, codes: Codes, branch: int, place: int
    ) -> None:
        part = slice(column, column + len(codes))
        self.codes[row, part] = codes
        self.branches[row, part] = branch
        self.places[row, part] = place + np.arange(len(codes))

    @property
    def is_plain(self) -> bool:
        """Whether a causal mask is enough: with at most one answer and padding at the end, nothing else is hidden."""
        return int(self.branches.max()) <= 1

    @property
    def is_whole(self) -> bool:
        """Whether every place holds a token of a prompt: neither answers nor padding."""
        return not self.branches.any()


def visible(branch: Tensor, past: Kept | None) -> Tensor:
    """(B, 1, L, T + L): what each place may attend to: what is kept, the prompt so far, its own answer so far.

    `branch` (B, L) is that of `Sheet`.
    """
    length = branch.shape[1]
    causal = torch.ones(
        length, length, dtype=torch.bool, device=branch.device
    ).tril()  # (L, L)
    in_prompt = branch[:, None, :] == 0  # (B, 1, L)
    same_branch = branch[:, None, :] == branch[:, :, None]  # (B, L, L)
    own = causal & (in_prompt | same_branch)  # (B, L, L)
    if past is None:
        return own[:, None]
    before = past.seen[:, None, :].expand(-1, length, -1)  # (B, L, T)
    return torch.cat([before, own], 2)[:, None]


def distances(places: Tensor, past: Kept | None) -> Tensor:
    """(B, 1, L, T + L): how many tokens a key lies behind a place (B, L), for models with a sliding window."""
    keys = places  # (B, T + L)
    if past is not None:
        keys = torch.cat([past.places, places], 1)
    return (places[:, :, None] - keys[:, None, :])[:, None]
