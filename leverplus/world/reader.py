"""Reading many prompts at once: pictures seen once, demonstrations shared by several prompts computed once.

Cost of a prompt of n demonstrations: 7 query tokens, one token for every distinct first word among its references and
its own answer, and nine tokens for every leading run of demonstrations that no other prompt of the batch has. The last
layer computes only what is read from it: keys and values of demonstrations, the answer's place of a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from leverplus.world.model import ITEM_TOKENS, PROMPT_TOKENS, Block, KeyValues, TinyLVLM
from leverplus.world.words import ANSWER_END, ANSWER_START, END


@dataclass(frozen=True)
class ItemTable:
    """Rows of items ready for the model: picture tokens (N, 2, width), question ids (N, 4), shown answer ids (N, 2)."""

    seen: Tensor
    question: Tensor
    answer: Tensor


@dataclass(frozen=True)
class Reading:
    """Greedy answers (N, 2) as token ids and log-probabilities (N, R) of the references, end marker included."""

    answer: Tensor
    logprobs: Tensor
    tokens: int


@torch.inference_mode()
def read_prompts(model: TinyLVLM, table: ItemTable, query: Tensor, demos: Tensor, references: Tensor) -> Reading:
    """Answer N prompts with equally many demonstrations.

    `query` (N,) and `demos` (N, n) are rows of the table; `references` (N, R, 2) are answer ids, repeated to fill R.
    """
    past, computed = _remember_demos(model, table, demos)
    prompt = model.item_inputs(table.seen[query], table.question[query], None)
    hidden, memory = _read_on(model, prompt, past, wanted=1)
    first = model.word_logits(hidden[:, -1]).log_softmax(-1)
    word = first[:, ANSWER_START:ANSWER_END].argmax(-1) + ANSWER_START
    branches = torch.cat([references[:, :, 0], word[:, None]], 1)
    # A branch is followed once for every prompt, at the first place where its word stands.
    place = (branches[:, :, None] == branches[:, None, :]).int().argmax(2)
    row, column = (place == torch.arange(branches.shape[1], device=place.device)).nonzero(as_tuple=True)
    second = first.new_empty(*branches.shape, first.shape[1])
    second[row, column] = _follow_branches(model, branches[row, column], (row, column), memory)
    every = torch.arange(len(query), device=query.device)
    after_references = second[every[:, None], place[:, :-1], references[:, :, 1]]
    logprobs = first.gather(1, references[:, :, 0]) + after_references
    last = second[every, place[:, -1], END:ANSWER_END].argmax(-1) + END
    tokens = computed * ITEM_TOKENS + len(query) * PROMPT_TOKENS + len(row)
    return Reading(torch.stack([word, last], 1), logprobs, tokens)


def _remember_demos(model: TinyLVLM, table: ItemTable, demos: Tensor) -> tuple[KeyValues | None, int]:
    """Keys and values of every prompt's demonstrations, each distinct leading run computed once; their number."""
    levels: list[tuple[KeyValues, Tensor]] = []
    run, computed = torch.zeros(len(demos), dtype=torch.long, device=demos.device), 0
    for depth in range(demos.shape[1]):
        # A run of demonstrations is known by the number of the run before it and its last item.
        ids, run = torch.unique(run * len(table.answer) + demos[:, depth], return_inverse=True)
        example = torch.empty(len(ids), dtype=torch.long, device=demos.device)
        example[run] = torch.arange(len(demos), device=demos.device)
        item = demos[example, depth]
        inputs = model.item_inputs(table.seen[item], table.question[item], table.answer[item])
        own = _read_on(model, inputs, _gather(levels, example), wanted=0)[1]
        levels.append(([(key[:, :, -ITEM_TOKENS:], value[:, :, -ITEM_TOKENS:]) for key, value in own], run))
        computed += len(ids)
    return _gather(levels, None), computed


def _gather(levels: list[tuple[KeyValues, Tensor]], rows: Tensor | None) -> KeyValues | None:
    """The remembered keys and values of all levels side by side, for some prompts (None: all of them)."""
    if not levels:
        return None
    runs = [run if rows is None else run[rows] for _, run in levels]

    def side_by_side(layer: int, which: int) -> Tensor:
        return torch.cat([kv[layer][which][run] for (kv, _), run in zip(levels, runs, strict=True)], 2)

    return [(side_by_side(layer, 0), side_by_side(layer, 1)) for layer in range(len(levels[0][0]))]


def _read_on(model: TinyLVLM, inputs: Tensor, past: KeyValues | None, wanted: int) -> tuple[Tensor, KeyValues]:
    """Read new tokens (N, T, width) after `past`: hidden states of the last `wanted` ones, and all keys and values."""
    start, count = 0 if past is None else past[0][0].shape[2], inputs.shape[1]
    x = inputs + model.positions(torch.arange(start, start + count, device=inputs.device))
    mask = torch.ones(count, start + count, dtype=torch.bool, device=x.device).tril(start)
    memory: KeyValues = []
    for layer, module in enumerate(model.blocks):
        block = cast(Block, module)
        used = wanted if layer == len(model.blocks) - 1 else count
        query, key, value = _project(block, x, used)
        if past is not None:
            key, value = torch.cat([past[layer][0], key], 2), torch.cat([past[layer][1], value], 2)
        memory.append((key, value))
        if used:
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[-used:])
            x = _finish(block, x[:, -used:], mixed.transpose(1, 2).flatten(2))
    return model.norm(x), memory


def _project(block: Block, x: Tensor, used: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (N, heads, used, d) of the last tokens, keys and values (N, heads, T, d) of all."""
    n, count, width = x.shape
    normed = block.norm_attention(x)
    weight, bias = block.into.weight, block.into.bias
    if used == count:
        parts = functional.linear(normed, weight, bias).view(n, count, 3, block.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        return query, key, value
    key, value = (
        functional.linear(normed, weight[width:], bias[width:])
        .view(n, count, 2, block.heads, -1)
        .permute(2, 0, 3, 1, 4)
    )
    query = functional.linear(normed[:, count - used :], weight[:width], bias[:width])
    return query.view(n, used, block.heads, width // block.heads).transpose(1, 2), key, value


def _finish(block: Block, x: Tensor, mixed: Tensor) -> Tensor:
    """What a block does after its attention."""
    x = x + block.out(mixed)
    return cast(Tensor, x + block.down(functional.gelu(block.up(block.norm_mlp(x)))))


def _follow_branches(model: TinyLVLM, words: Tensor, at: tuple[Tensor, Tensor], memory: KeyValues) -> Tensor:
    """Log-probabilities (M, V) after one more word: word m continues prompt at[0][m] as its branch at[1][m].

    A branch sees its prompt and itself, not its siblings. Only attention is padded to the largest number of branches.
    """
    prompts, tokens = memory[0][0].shape[0], memory[0][0].shape[2]
    branches = int(at[1].max()) + 1
    x = model.words(words) + model.positions.weight[tokens]
    for (keys, values), module in zip(memory, model.blocks, strict=True):
        block = cast(Block, module)
        parts = block.into(block.norm_attention(x)).view(len(words), 3, block.heads, -1)
        padded = x.new_zeros(prompts, branches, *parts.shape[1:])
        padded[at] = parts
        query, key, value = padded.permute(2, 0, 3, 1, 4)
        scores = torch.cat([query @ keys.transpose(2, 3), (query * key).sum(-1, keepdim=True)], 3)
        weight = (scores * query.shape[-1] ** -0.5).softmax(-1)
        mixed = weight[..., :-1] @ values + weight[..., -1:] * value
        x = _finish(block, x, mixed.transpose(1, 2)[at].flatten(1))
    return model.word_logits(model.norm(x)).log_softmax(-1)
