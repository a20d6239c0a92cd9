"""Reading prompts in batches: branches of the prompt tree first, then the ends, their answers and what is written.

A batch is rows of equal depth in the tree, padded on the right. Keys and values of a branch stay on the device while its
children are read. All answers to be weighed after a prompt are read in the same pass as its end, side by side: each sees
the prompt and itself, none sees another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leverplus.backends.hf.language import KeysValues, Language
from leverplus.backends.hf.tree import Node, Prompt, grow

KEPT_FACTOR = 8
"""Keys and values of a batch cover at most this many times the tokens that are computed in it."""

HEAD_ROWS = 4096
"""Places whose next-token distribution is computed together."""

PAD = -1


@dataclass(frozen=True)
class Reading:
    """What came of a prompt: one log-probability an answer, the tokens written, the tokens computed for it (its share
    of common branches included)."""

    logprobs: tuple[float, ...]
    written: tuple[int, ...]
    tokens: float


@dataclass(frozen=True)
class _Kept:
    """What later rows see: keys and values (rows, ..., T, ...), which of the T columns hold a token, and its place."""

    layers: KeysValues
    seen: Tensor
    places: Tensor

    def rows(self, index: Tensor) -> _Kept:
        layers = [(keys[index], values[index]) for keys, values in self.layers]
        return _Kept(layers, self.seen[index], self.places[index])


@dataclass(frozen=True)
class _Row:
    """A node to be read and the row of its parent in what is kept."""

    node: Node
    parent: int
    depth: int
    length: int


class Reader:
    """Reads prompts with one model. `share` = False computes every prompt on its own, in the same batches."""

    def __init__(self, language: Language, *, batch_tokens: int, share: bool = True) -> None:
        self.language = language
        self.batch_tokens = batch_tokens
        self.share = share

    @torch.inference_mode()
    def read(self, prompts: Sequence[Prompt], new_tokens: int, stops: frozenset[int] = frozenset()) -> list[Reading]:
        """One reading a prompt, in order; up to `new_tokens` tokens are written greedily, up to a token of `stops`."""
        found: dict[int, Reading] = {}
        spent = [0.0] * len(prompts)
        roots = grow(prompts, share=self.share)
        _share_cost(roots, spent)
        rows = [_Row(node, 0, 0, self._length(node, prompts)) for node in roots]
        self._descend(rows, None, prompts, (new_tokens, stops, found))
        return [
            Reading(
                found[number].logprobs,
                found[number].written,
                spent[number] + sum(len(answer) - 1 for answer in prompts[number].answers) + found[number].tokens,
            )
            for number in range(len(prompts))
        ]

    def _length(self, node: Node, prompts: Sequence[Prompt]) -> int:
        answers = prompts[node.prompt].answers if node.prompt is not None else ()
        return node.length + sum(len(answer) - 1 for answer in answers)

    def _descend(
        self,
        rows: Sequence[_Row],
        kept: _Kept | None,
        prompts: Sequence[Prompt],
        wanted: tuple[int, frozenset[int], dict[int, Reading]],
    ) -> None:
        for batch in self._batches(rows):
            past = None if kept is None else kept.rows(self._index([row.parent for row in batch]))
            hidden, branch, now = self._pass(batch, past, prompts)
            ends = [place for place, row in enumerate(batch) if row.node.prompt is not None]
            if ends:
                self._finish(batch, ends, hidden, branch, now, prompts, wanted)
            children = [
                _Row(child, place, row.depth + row.length, self._length(child, prompts))
                for place, row in enumerate(batch)
                for child in row.node.children
            ]
            del hidden
            if children:
                self._descend(children, now, prompts, wanted)

    def _batches(self, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
        """Rows of similar length together; the padded batch stays within the token budget."""
        batch: list[_Row] = []
        for row in sorted(rows, key=lambda row: (row.length, row.depth)):
            count = len(batch) + 1
            deepest = max(row.depth, max((other.depth for other in batch), default=0))
            too_many = count * row.length > self.batch_tokens
            if batch and (too_many or count * (deepest + row.length) > KEPT_FACTOR * self.batch_tokens):
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _index(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.language.device)

    def _pass(
        self, batch: Sequence[_Row], past: _Kept | None, prompts: Sequence[Prompt]
    ) -> tuple[Tensor, Tensor, _Kept]:
        """Hidden states (B, L, D), the branch of every place (B, L: 0 prompt, 1.. answers, -1 padding), what is kept."""
        width = max(row.length for row in batch)
        dims = prompts[0].positions.shape[0]
        codes = np.zeros((len(batch), width), dtype=np.int64)
        positions = np.zeros((dims, len(batch), width), dtype=np.int64)
        branches = np.full((len(batch), width), PAD, dtype=np.int64)
        places = np.zeros((len(batch), width), dtype=np.int64)
        for place, row in enumerate(batch):
            _fill(row.node, prompts, codes[place], positions[:, place], branches[place], places[place])
        device = self.language.device
        branch, where = torch.from_numpy(branches).to(device), torch.from_numpy(places).to(device)
        mask = None if past is None and _plain(branches) else _visible(branch, past)
        distance = _distance(where, past) if self.language.window else None
        embedded = self.language.embed(codes)
        rotary = torch.from_numpy(positions).to(device)
        layers = None if past is None else past.layers
        hidden, layers = self.language.run(embedded, rotary, mask, distance, layers)
        seen, there = branch == 0, where
        if past is not None:
            seen, there = torch.cat([past.seen, seen], 1), torch.cat([past.places, there], 1)
        return hidden, branch, _Kept(layers, seen, there)

    def _finish(
        self,
        batch: Sequence[_Row],
        ends: Sequence[int],
        hidden: Tensor,
        branch: Tensor,
        now: _Kept,
        prompts: Sequence[Prompt],
        wanted: tuple[int, frozenset[int], dict[int, Reading]],
    ) -> None:
        """Weigh the answers of the prompts that end in this batch, and write what the model would say."""
        new_tokens, stops, found = wanted
        numbers = [batch[place].node.prompt for place in ends]
        owners: list[int] = []
        rows: list[int] = []
        columns: list[int] = []
        targets: list[int] = []
        for order, place in enumerate(ends):
            prompt, last = prompts[numbers[order] or 0], batch[place].node.length - 1
            column = last + 1
            for answer in prompt.answers:
                for offset, token in enumerate(answer):
                    rows.append(place)
                    columns.append(last if offset == 0 else column + offset - 1)
                    targets.append(token)
                owners.append(len(answer))
                column += len(answer) - 1
        token_logprobs = self._weigh(hidden, rows, columns, targets)
        sums = [part.sum() for part in np.split(token_logprobs, np.cumsum(owners)[:-1])] if owners else []
        written = self._write(batch, ends, hidden, now, new_tokens, stops, prompts)
        at = 0
        for order, number in enumerate(numbers):
            assert number is not None
            count = len(prompts[number].answers)
            logprobs = tuple(min(0.0, float(value)) for value in sums[at : at + count])
            at += count
            found[number] = Reading(logprobs, written[order], max(0, len(written[order]) - 1))

    def _weigh(self, hidden: Tensor, rows: Sequence[int], columns: Sequence[int], targets: Sequence[int]) -> np.ndarray:
        """The log-probability of each target after its place, in float64 on the host."""
        parts = []
        for start in range(0, len(rows), HEAD_ROWS):
            part = slice(start, start + HEAD_ROWS)
            logits = self.language.head(hidden[self._index(rows[part]), self._index(columns[part])]).float()
            chosen = logits.gather(1, self._index(targets[part])[:, None]).squeeze(1)
            parts.append((chosen - logits.logsumexp(1)).double().cpu())
        return torch.cat(parts).numpy() if parts else np.zeros(0)

    def _write(
        self,
        batch: Sequence[_Row],
        ends: Sequence[int],
        hidden: Tensor,
        now: _Kept,
        new_tokens: int,
        stops: frozenset[int],
        prompts: Sequence[Prompt],
    ) -> list[tuple[int, ...]]:
        """Greedy tokens after each prompt, a stop token included; rows that are done leave the batch."""
        written: list[list[int]] = [[] for _ in ends]
        if not new_tokens:
            return [() for _ in ends]
        last = self._index([batch[place].node.length - 1 for place in ends])
        tokens = self.language.head(hidden[self._index(ends), last]).argmax(1)
        numbers = [batch[place].node.prompt or 0 for place in ends]
        following = self._index([int(prompts[number].positions[:, -1].max()) + 1 for number in numbers])
        place_after = self._index([len(prompts[number].codes) for number in numbers])
        kept = now if len(ends) == len(batch) else now.rows(self._index(ends))
        alive = list(range(len(ends)))
        dims = prompts[0].positions.shape[0]
        for step in range(new_tokens):
            values = tokens.tolist()
            for order, value in zip(alive, values, strict=True):
                written[order].append(value)
            going = [row for row, value in enumerate(values) if value not in stops]
            if step == new_tokens - 1 or not going:
                break
            if len(going) < len(alive):
                index = self._index(going)
                alive = [alive[row] for row in going]
                kept, tokens, following, place_after = (
                    kept.rows(index),
                    tokens[index],
                    following[index],
                    place_after[index],
                )
            tokens, kept = self._step(tokens, following + step, place_after + step, dims, kept)
        return [tuple(row) for row in written]

    def _step(self, tokens: Tensor, following: Tensor, place: Tensor, dims: int, kept: _Kept) -> tuple[Tensor, _Kept]:
        """The next token of every row after one more."""
        branch = torch.zeros_like(tokens)[:, None]
        mask = _visible(branch, kept)
        distance = _distance(place[:, None], kept) if self.language.window else None
        rotary = following[None, :, None].expand(dims, -1, 1)
        hidden, layers = self.language.run(
            self.language.embed_tokens(tokens[:, None]), rotary, mask, distance, kept.layers
        )
        seen = torch.cat([kept.seen, branch == 0], 1)
        places = torch.cat([kept.places, place[:, None]], 1)
        return self.language.head(hidden[:, 0]).argmax(1), _Kept(layers, seen, places)


def _fill(
    node: Node,
    prompts: Sequence[Prompt],
    codes: np.ndarray,
    positions: np.ndarray,
    branch: np.ndarray,
    places: np.ndarray,
) -> None:
    """Write a node, and the answers after it if it is an end, into its row."""
    prompt = prompts[node.example]
    codes[: node.length] = prompt.codes[node.start : node.stop]
    positions[:, : node.length] = prompt.positions[:, node.start : node.stop]
    branch[: node.length] = 0
    places[: node.length] = np.arange(node.start, node.stop)
    if node.prompt is None:
        return
    column, next_position = node.length, prompt.positions[:, -1].max() + 1
    for number, answer in enumerate(prompt.answers, start=1):
        end = column + len(answer) - 1
        codes[column:end] = answer[:-1]
        positions[:, column:end] = next_position + np.arange(len(answer) - 1)
        places[column:end] = node.stop + np.arange(len(answer) - 1)
        branch[column:end] = number
        column = end


def _plain(branches: np.ndarray) -> bool:
    """Whether no place has to be hidden from a later one: at most one answer, padding at the end only."""
    return int(branches.max()) <= 1


def _visible(branch: Tensor, past: _Kept | None) -> Tensor:
    """(B, 1, L, T + L): what each place may look at: what is kept, the prompt so far, its own answer so far."""
    length = branch.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=branch.device).tril()
    own = causal & ((branch[:, None, :] == 0) | (branch[:, None, :] == branch[:, :, None]))
    if past is None:
        return own[:, None]
    return torch.cat([past.seen[:, None, :].expand(-1, length, -1), own], 2)[:, None]


def _distance(places: Tensor, past: _Kept | None) -> Tensor:
    """(B, 1, L, T + L): how many tokens back a place looks, for models that look back only so far."""
    keys = places if past is None else torch.cat([past.places, places], 1)
    return (places[:, :, None] - keys[:, None, :])[:, None]


def _share_cost(nodes: Sequence[Node], spent: list[float]) -> list[int]:
    """Divide the tokens of every branch among the prompts below it; returns these prompts."""
    below: list[int] = []
    for node in nodes:
        own = [node.prompt] if node.prompt is not None else _share_cost(node.children, spent)
        for number in own:
            spent[number] += node.length / len(own)
        below.extend(own)
    return below
