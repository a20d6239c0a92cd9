"""Answers many prompts at once: pictures are encoded once, demonstrations shared by several prompts computed once.

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

from leverplus.world.model import ITEM_TOKENS, PROMPT_TOKENS, DecoderBlock, KeyValues, TinyLVLM
from leverplus.world.words import ANSWER_END, ANSWER_START, END


@dataclass(frozen=True)
class PromptItems:
    """Rows of items ready for the model: picture tokens (N, 2, width), question ids (N, 4), shown answer ids (N, 2)."""

    seen: Tensor
    question: Tensor
    answer: Tensor


@dataclass(frozen=True)
class WorldReading:
    """Greedy answers (N, 2) as token ids and log-probabilities (N, R) of the references, end marker included."""

    answer: Tensor
    logprobs: Tensor
    tokens: int


@torch.inference_mode()
def read_prompts(model: TinyLVLM, table: PromptItems, query: Tensor, demos: Tensor, references: Tensor) -> WorldReading:
    """Answer N prompts with equally many demonstrations.

    `query` (N,) and `demos` (N, n) are rows of the table; `references` (N, R, 2) are answer ids, repeated to fill R.
    """
    past, computed = _remember_demos(model, table, demos)
    prompt = model.item_inputs(table.seen[query], table.question[query], None)  # (N, 7, width)
    hidden, memory = _read_on(model, prompt, past, wanted=1)
    first = model.word_logits(hidden[:, -1]).log_softmax(-1)  # (N, V), log-probabilities of the first answer word
    word = first[:, ANSWER_START:ANSWER_END].argmax(-1) + ANSWER_START  # (N,)
    # every first word after which the second is needed: those of the references, then the greedy one
    branches = torch.cat([references[:, :, 0], word[:, None]], 1)  # (N, R + 1)
    # A branch is followed once for every prompt, at the first place where its word stands.
    place = (branches[:, :, None] == branches[:, None, :]).int().argmax(2)  # (N, R + 1)
    is_first = place == torch.arange(branches.shape[1], device=place.device)
    row, column = is_first.nonzero(as_tuple=True)  # (M,) each
    second = first.new_empty(*branches.shape, first.shape[1])  # (N, R + 1, V), only followed branches are filled
    second[row, column] = _follow_branches(model, branches[row, column], (row, column), memory)
    every = torch.arange(len(query), device=query.device)
    after_references = second[every[:, None], place[:, :-1], references[:, :, 1]]  # (N, R)
    logprobs = first.gather(1, references[:, :, 0]) + after_references
    last = second[every, place[:, -1], END:ANSWER_END].argmax(-1) + END  # (N,), a second name or the end
    tokens = computed * ITEM_TOKENS + len(query) * PROMPT_TOKENS + len(row)
    return WorldReading(torch.stack([word, last], 1), logprobs, tokens)


def _remember_demos(model: TinyLVLM, table: PromptItems, demos: Tensor) -> tuple[KeyValues | None, int]:
    """Keys and values of every prompt's demonstrations, each distinct leading run computed once; their number."""
    levels: list[tuple[KeyValues, Tensor]] = []
    run = torch.zeros(len(demos), dtype=torch.long, device=demos.device)  # (N,), which leading run a prompt has
    computed = 0
    for depth in range(demos.shape[1]):
        # A run of demonstrations is known by the number of the run before it and its last item.
        ids, run = torch.unique(run * len(table.answer) + demos[:, depth], return_inverse=True)
        example = torch.empty(len(ids), dtype=torch.long, device=demos.device)
        example[run] = torch.arange(len(demos), device=demos.device)  # some prompt that has the run
        item = demos[example, depth]  # (runs,)
        inputs = model.item_inputs(table.seen[item], table.question[item], table.answer[item])  # (runs, 9, width)
        _, memory = _read_on(model, inputs, _gather(levels, example), wanted=0)
        own = [(key[:, :, -ITEM_TOKENS:], value[:, :, -ITEM_TOKENS:]) for key, value in memory]
        levels.append((own, run))
        computed += len(ids)
    return _gather(levels, None), computed


def _gather(levels: list[tuple[KeyValues, Tensor]], rows: Tensor | None) -> KeyValues | None:
    """The remembered keys and values of all levels side by side, for some prompts (None: all of them)."""
    if not levels:
        return None
    layers = len(levels[0][0])
    gathered: KeyValues = []
    for layer in range(layers):
        keys, values = [], []
        for memory, run in levels:
            wanted = run if rows is None else run[rows]
            key, value = memory[layer]
            keys.append(key[wanted])
            values.append(value[wanted])
        gathered.append((torch.cat(keys, 2), torch.cat(values, 2)))
    return gathered


def _read_on(model: TinyLVLM, inputs: Tensor, past: KeyValues | None, wanted: int) -> tuple[Tensor, KeyValues]:
    """Reads new tokens (N, T, width) after `past`: hidden states of the last `wanted` ones, and all keys and values."""
    start = 0 if past is None else past[0][0].shape[2]  # P, the number of tokens before
    count = inputs.shape[1]  # T
    x = inputs + model.positions(torch.arange(start, start + count, device=inputs.device))
    mask = torch.ones(count, start + count, dtype=torch.bool, device=x.device).tril(start)  # causal, (T, P + T)
    memory: KeyValues = []
    for layer, module in enumerate(model.blocks):
        block = cast(DecoderBlock, module)
        used = wanted if layer == len(model.blocks) - 1 else count  # nobody attends to the last layer's output
        query, key, value = _project(block, x, used)
        if past is not None:
            past_key, past_value = past[layer]
            key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)  # (N, heads, P + T, d)
        memory.append((key, value))
        if used:
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[-used:])
            x = _after_attention(block, x[:, -used:], mixed.transpose(1, 2).flatten(2))
    return model.norm(x), memory


def _project(block: DecoderBlock, x: Tensor, used: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (N, heads, used, d) of the last tokens, keys and values (N, heads, T, d) of all."""
    n, count, width = x.shape
    normed = block.norm_attention(x)
    weight, bias = block.into.weight, block.into.bias
    if used == count:
        parts = functional.linear(normed, weight, bias).view(n, count, 3, block.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        return query, key, value
    # the rows of the matrix are those of queries, then keys, then values
    keys_values = functional.linear(normed, weight[width:], bias[width:]).view(n, count, 2, block.heads, -1)
    key, value = keys_values.permute(2, 0, 3, 1, 4)
    query = functional.linear(normed[:, count - used :], weight[:width], bias[:width])
    query = query.view(n, used, block.heads, width // block.heads).transpose(1, 2)
    return query, key, value


def _after_attention(block: DecoderBlock, x: Tensor, mixed: Tensor) -> Tensor:
    """The rest of a block: projects what attention mixed, then the two-layer network, each added to x."""
    x = x + block.out(mixed)
    return cast(Tensor, x + block.down(functional.gelu(block.up(block.norm_mlp(x)))))


def _follow_branches(model: TinyLVLM, words: Tensor, at: tuple[Tensor, Tensor], memory: KeyValues) -> Tensor:
    """Log-probabilities (M, V) after one more word: word m continues prompt at[0][m] as its branch at[1][m].

    A branch sees its prompt and itself, not its siblings. Only attention is padded to the largest number of branches.
    """
    first_keys, _ = memory[0]
    prompts, tokens = first_keys.shape[0], first_keys.shape[2]  # N, P
    branches = int(at[1].max()) + 1
    x = model.words(words) + model.positions.weight[tokens]  # (M, width)
    for (keys, values), module in zip(memory, model.blocks, strict=True):
        block = cast(DecoderBlock, module)
        parts = block.into(block.norm_attention(x)).view(len(words), 3, block.heads, -1)
        padded = x.new_zeros(prompts, branches, *parts.shape[1:])
        padded[at] = parts
        query, key, value = padded.permute(2, 0, 3, 1, 4)  # (N, heads, branches, d) each
        to_prompt = query @ keys.transpose(2, 3)  # (N, heads, branches, P)
        to_itself = (query * key).sum(-1, keepdim=True)  # (N, heads, branches, 1)
        scores = torch.cat([to_prompt, to_itself], 3)
        weight = (scores * query.shape[-1] ** -0.5).softmax(-1)
        mixed = weight[..., :-1] @ values + weight[..., -1:] * value  # (N, heads, branches, d)
        x = _after_attention(block, x, mixed.transpose(1, 2)[at].flatten(1))
    return model.word_logits(model.norm(x)).log_softmax(-1)
