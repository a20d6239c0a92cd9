"""A batch of tree nodes as arrays: what stands where, what may look at what, and what later rows may look back at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leverplus.backends.hf.language import KeysValues
from leverplus.backends.hf.tree import Codes, Node, Prompt

KEPT_FACTOR = 8
"""Keys and values of a batch cover at most this many times the tokens that are computed in it."""

PAD = -1


@dataclass(frozen=True)
class Kept:
    """What later rows see: keys and values (rows, ..., T, ...), which of the T columns hold a token, and its place."""

    layers: KeysValues
    seen: Tensor
    places: Tensor

    def rows(self, index: Tensor) -> Kept:
        layers = [(keys[index], values[index]) for keys, values in self.layers]
        return Kept(layers, self.seen[index], self.places[index])

    def joined(self, layers: KeysValues, seen: Tensor, places: Tensor) -> Kept:
        """With further columns; `layers` hold the old ones too."""
        return Kept(layers, torch.cat([self.seen, seen], 1), torch.cat([self.places, places], 1))


@dataclass(frozen=True)
class Row:
    """A node to be read, the row of its parent in what is kept, the places before it, and how much is to be read."""

    node: Node
    parent: int
    depth: int
    length: int


def rows_of(nodes: Sequence[Node], prompts: Sequence[Prompt], parent: int = 0, depth: int = 0) -> list[Row]:
    """Rows of sibling nodes; a node that ends a prompt is read together with the answers that are weighed."""
    rows = []
    for node in nodes:
        answers = prompts[node.prompt].answers if node.prompt is not None else ()
        rows.append(Row(node, parent, depth, node.length + sum(len(answer) - 1 for answer in answers)))
    return rows


def batches(rows: Sequence[Row], tokens: int) -> Iterator[list[Row]]:
    """Rows of similar length together; a padded batch stays within the token budget."""
    batch: list[Row] = []
    deepest = 0
    for row in sorted(rows, key=lambda row: (row.length, row.depth)):
        count, deepest = len(batch) + 1, max(deepest, row.depth)
        if batch and (count * row.length > tokens or count * (deepest + row.length) > KEPT_FACTOR * tokens):
            yield batch
            batch, deepest = [], row.depth
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
    def of(cls, batch: Sequence[Row], prompts: Sequence[Prompt]) -> Sheet:
        shape = len(batch), max(row.length for row in batch)
        dims = prompts[0].positions.shape[0]
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
        self._put(row, 0, prompt.codes[node.start : node.stop], 0, node.start)
        self.positions[:, row, : node.length] = prompt.positions[:, node.start : node.stop]
        if node.prompt is None:
            return
        column, following = node.length, int(prompt.positions[:, -1].max()) + 1
        for branch, answer in enumerate(prompt.answers, start=1):
            self._put(row, column, np.array(answer[:-1], np.int64), branch, node.stop)
            end = column + len(answer) - 1
            self.positions[:, row, column:end] = following + np.arange(len(answer) - 1)
            column = end

    def _put(self, row: int, column: int, codes: Codes, branch: int, place: int) -> None:
        part = slice(column, column + len(codes))
        self.codes[row, part] = codes
        self.branches[row, part] = branch
        self.places[row, part] = place + np.arange(len(codes))

    @property
    def is_plain(self) -> bool:
        """Whether nothing has to be hidden from what comes later: at most one answer, padding at the end only."""
        return int(self.branches.max()) <= 1


def visible(branch: Tensor, past: Kept | None) -> Tensor:
    """(B, 1, L, T + L): what each place may look at: what is kept, the prompt so far, its own answer so far."""
    length = branch.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=branch.device).tril()
    own = causal & ((branch[:, None, :] == 0) | (branch[:, None, :] == branch[:, :, None]))
    if past is None:
        return own[:, None]
    return torch.cat([past.seen[:, None, :].expand(-1, length, -1), own], 2)[:, None]


def distances(places: Tensor, past: Kept | None) -> Tensor:
    """(B, 1, L, T + L): how many tokens back a place looks, for models that look back only so far."""
    keys = places if past is None else torch.cat([past.places, places], 1)
    return (places[:, :, None] - keys[:, None, :])[:, None]
