"""Reading many prompts at once: pictures seen once, demonstrations shared by several prompts computed once.

Cost of a prompt of n demonstrations: 7 query tokens, one token for every distinct first word of its references, and
nine tokens for every leading run of demonstrations that no other prompt of the batch has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leverplus.world.model import ITEM_TOKENS, PROMPT_TOKENS, KeyValues, TinyLVLM
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
    shots = demos.shape[1]
    past, computed = _remember_demos(model, table, demos)
    n, device = len(query), query.device
    prompt = model.item_inputs(table.seen[query], table.question[query], None)
    branches = references[:, :, 0]
    width = branches.shape[1]
    x = torch.cat([prompt, model.words(branches)], 1)
    start = shots * ITEM_TOKENS
    place = torch.arange(start, start + PROMPT_TOKENS + 1, device=device)
    place = torch.cat([place[:PROMPT_TOKENS], place[PROMPT_TOKENS:].expand(width)])
    mask = _branch_mask(start, width, device)
    hidden, own = model.run(x + model.positions(place), past, mask)
    first = model.word_logits(hidden[:, PROMPT_TOKENS - 1]).log_softmax(-1)
    second = model.word_logits(hidden[:, PROMPT_TOKENS:]).log_softmax(-1)
    logprobs = first.gather(1, branches) + second.gather(2, references[:, :, 1:])[:, :, 0]
    word = first[:, ANSWER_START:ANSWER_END].argmax(-1) + ANSWER_START
    after = _after_greedy_word(model, word, (branches, second), (past, own))
    last = after[:, END:ANSWER_END].argmax(-1) + END
    tokens = computed * ITEM_TOKENS + n * (PROMPT_TOKENS + width)
    return Reading(torch.stack([word, last], 1), logprobs, tokens)


def _branch_mask(start: int, branches: int, device: torch.device) -> Tensor:
    """(7 + R, start + 7 + R): prompt tokens are causal; every branch sees the prompt and itself, not its siblings."""
    total = PROMPT_TOKENS + branches
    own = torch.ones(total, total, dtype=torch.bool, device=device).tril()
    own[PROMPT_TOKENS:, PROMPT_TOKENS:] = torch.eye(branches, dtype=torch.bool, device=device)
    return torch.cat([torch.ones(total, start, dtype=torch.bool, device=device), own], 1)


def _remember_demos(model: TinyLVLM, table: ItemTable, demos: Tensor) -> tuple[KeyValues | None, int]:
    """Keys and values of every prompt's demonstrations, each distinct leading run computed once; their number."""
    levels: list[tuple[KeyValues, Tensor]] = []
    computed = 0
    for depth in range(1, demos.shape[1] + 1):
        rows, inverse = torch.unique(demos[:, :depth], dim=0, return_inverse=True)
        example = torch.empty(len(rows), dtype=torch.long, device=demos.device)
        example[inverse] = torch.arange(len(demos), device=demos.device)
        item = rows[:, -1]
        inputs = model.item_inputs(table.seen[item], table.question[item], table.answer[item])
        start = (depth - 1) * ITEM_TOKENS
        mask = None
        if start:
            own = torch.ones(ITEM_TOKENS, ITEM_TOKENS, dtype=torch.bool, device=demos.device).tril()
            mask = torch.cat([torch.ones(ITEM_TOKENS, start, dtype=torch.bool, device=demos.device), own], 1)
        _, own_kv = model.extend(inputs, start, _gather(levels, example), mask)
        levels.append((own_kv, inverse))
        computed += len(rows)
    return _gather(levels, None), computed


def _gather(levels: list[tuple[KeyValues, Tensor]], rows: Tensor | None) -> KeyValues | None:
    """The remembered keys and values of all levels side by side, for some prompts (None: all of them)."""
    if not levels:
        return None
    places = [inverse if rows is None else inverse[rows] for _, inverse in levels]
    layers = range(len(levels[0][0]))
    return [
        (
            torch.cat([kv[layer][0][place] for (kv, _), place in zip(levels, places, strict=True)], 2),
            torch.cat([kv[layer][1][place] for (kv, _), place in zip(levels, places, strict=True)], 2),
        )
        for layer in layers
    ]


def _after_greedy_word(
    model: TinyLVLM, word: Tensor, read: tuple[Tensor, Tensor], memory: tuple[KeyValues | None, KeyValues]
) -> Tensor:
    """Log-probabilities (N, V) after the greedy first word: from a branch where it is one, else by one more token."""
    (branches, second), (past, own) = read, memory
    start = 0 if past is None else past[0][0].shape[2]
    same = branches == word[:, None]
    after = second[torch.arange(len(word), device=word.device), same.int().argmax(1)]
    fresh = (~same.any(1)).nonzero()[:, 0]
    if len(fresh):
        prompt = [(key[fresh, :, :PROMPT_TOKENS], value[fresh, :, :PROMPT_TOKENS]) for key, value in own]
        if past is not None:
            prompt = [
                (torch.cat([before[0][fresh], key], 2), torch.cat([before[1][fresh], value], 2))
                for before, (key, value) in zip(past, prompt, strict=True)
            ]
        seen_by_all = torch.ones(1, start + PROMPT_TOKENS + 1, dtype=torch.bool, device=word.device)
        hidden, _ = model.extend(model.words(word[fresh, None]), start + PROMPT_TOKENS, prompt, seen_by_all)
        after = after.index_copy(0, fresh, model.word_logits(hidden[:, 0]).log_softmax(-1))
    return after
