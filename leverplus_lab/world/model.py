"""The tiny vision-language model of the world: a decoder that reads pictures, questions and shown answers.

An item is nine tokens: two for the picture, four question words, `<ask>`, two answer words. A prompt is up to eight
such items and then the query's first seven tokens. Many prompts are answered at once: pictures are encoded once,
demonstrations that several prompts begin with are computed once.

Cost of a prompt of n demonstrations: 7 query tokens, one token for every distinct first word among its references and
its own answer, and nine tokens for every leading run of demonstrations that no other prompt of the batch has. The last
layer computes only what is read from it: keys and values of demonstrations, the answer's place of a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from leverplus_lab.world.words import (
    ANSWER_END,
    ANSWER_START,
    ANSWER_WORDS,
    ASK,
    END,
    PAD,
    QUESTION_WORDS,
    VOCABULARY,
)

IMAGE_TOKENS = 2
PROMPT_TOKENS = IMAGE_TOKENS + QUESTION_WORDS + 1  # 7: <ask> ends the question
ITEM_TOKENS = PROMPT_TOKENS + ANSWER_WORDS  # 9
MAX_DEMOS = 8

KeyValues = list[tuple[Tensor, Tensor]]
"""Per layer the keys and values (N, heads, tokens, width / heads)."""


@dataclass(frozen=True)
class ModelConfig:
    width: int = 192
    layers: int = 3
    heads: int = 6
    channels: tuple[int, ...] = (32, 64, 96, 128)


def picture_tower(channels: tuple[int, ...]) -> nn.Sequential:
    """Four stride-2 convolutions: (N, 3, 32, 32) -> (N, last channels * 4)."""
    layers: list[nn.Module] = []
    for before, after in zip((3, *channels), channels, strict=False):
        layers.append(nn.Conv2d(before, after, 3, stride=2, padding=1))
        layers.append(nn.GELU())
    return nn.Sequential(*layers, nn.Flatten())


def normalise_pictures(pictures: Tensor) -> Tensor:
    """Bytes 0..255 to floats around zero."""
    return pictures.float() / 127.5 - 1.0


class DecoderBlock(nn.Module):
    """A pre-norm transformer block, in the parts that a reader puts together."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def project(self, x: Tensor, used: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (N, heads, used, d) of the last tokens, keys and values (N, heads, T, d) of all."""
        n, count, width = x.shape
        normed = self.norm_attention(x)
        weight = self.into.weight
        bias = self.into.bias
        if used == count:
            parts = functional.linear(normed, weight, bias)
            heads = parts.view(n, count, 3, self.heads, -1)
            query, key, value = heads.permute(2, 0, 3, 1, 4)
            return query, key, value
        # the rows of the matrix are those of queries, then keys, then values
        parts = functional.linear(normed, weight[width:], bias[width:])
        heads = parts.view(n, count, 2, self.heads, -1)
        key, value = heads.permute(2, 0, 3, 1, 4)
        last = normed[:, count - used :]
        query = functional.linear(last, weight[:width], bias[:width])
        query = query.view(n, used, self.heads, width // self.heads)
        query = query.transpose(1, 2)
        return query, key, value

    def after_attention(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Projects what attention mixed, then the two-layer network, each added to x."""
        x = x + self.out(mixed)
        inner = functional.gelu(self.up(self.norm_mlp(x)))
        return cast(Tensor, x + self.down(inner))


class TinyLVLM(nn.Module):
    """Answers questions about pictures, using demonstrations in its context; 1.8 M parameters."""

    def __init__(self, config: ModelConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ModelConfig()
        self.tower = picture_tower(config.channels)
        self.project = nn.Linear(config.channels[-1] * 4, IMAGE_TOKENS * config.width)
        self.words = nn.Embedding(len(VOCABULARY), config.width)
        self.positions = nn.Embedding(ITEM_TOKENS * (MAX_DEMOS + 1), config.width)
        blocks = [
            DecoderBlock(config.width, config.heads) for _ in range(config.layers)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(config.width)

    def see(self, pictures: Tensor) -> Tensor:
        """Picture tokens (N, 2, width) of normalised pictures (N, 3, 32, 32)."""
        flat = self.project(self.tower(pictures))
        tokens: Tensor = flat.unflatten(1, (IMAGE_TOKENS, -1))
        return tokens

    def item_inputs(
        self, seen: Tensor, question: Tensor, answer: Tensor | None
    ) -> Tensor:
        """Token inputs (N, 9 or 7, width) from picture tokens, question ids (N, 4) and answer ids (N, 2) or None."""
        ask = torch.full_like(question[:, :1], ASK)
        parts = [question, ask] if answer is None else [question, ask, answer]
        words = self.words(torch.cat(parts, 1))  # (N, 7 or 5, width)
        return torch.cat([seen, words], 1)

    def word_logits(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary (N, ..., V); the output shares its weights with the word embedding."""
        return functional.linear(hidden, self.words.weight)


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
def read_prompts(
    model: TinyLVLM,
    table: PromptItems,
    query: Tensor,
    demos: Tensor,
    references: Tensor,
) -> WorldReading:
    """Answer N prompts with equally many demonstrations.

    `query` (N,) and `demos` (N, n) are rows of the table; `references` (N, R, 2) are answer ids, repeated to fill R.
    """
    past, computed = _remember_demos(model, table, demos)
    # (N, 7, width)
    prompt = model.item_inputs(table.seen[query], table.question[query], None)
    hidden, memory = _read_on(model, prompt, past, wanted=1)
    # (N, V), log-probabilities of the first answer word
    first = model.word_logits(hidden[:, -1]).log_softmax(-1)
    word = first[:, ANSWER_START:ANSWER_END].argmax(-1) + ANSWER_START  # (N,)
    # every first word after which the second is needed: those of the references, then the greedy one
    branches = torch.cat([references[:, :, 0], word[:, None]], 1)  # (N, R + 1)
    # A branch is followed once for every prompt, at the first place where its word stands.
    same = branches[:, :, None] == branches[:, None, :]  # (N, R + 1, R + 1)
    place = same.int().argmax(2)  # (N, R + 1)
    is_first = place == torch.arange(branches.shape[1], device=place.device)
    row, column = is_first.nonzero(as_tuple=True)  # (M,) each
    # (N, R + 1, V), only followed branches are filled
    second = first.new_empty(*branches.shape, first.shape[1])
    followed = branches[row, column]
    second[row, column] = _follow_branches(model, followed, (row, column), memory)
    every = torch.arange(len(query), device=query.device)
    # (N, R)
    after_references = second[every[:, None], place[:, :-1], references[:, :, 1]]
    logprobs = first.gather(1, references[:, :, 0]) + after_references
    # (N,), a second name or the end
    ends = second[every, place[:, -1], END:ANSWER_END]
    last = ends.argmax(-1) + END
    tokens = computed * ITEM_TOKENS + len(query) * PROMPT_TOKENS + len(row)
    return WorldReading(torch.stack([word, last], 1), logprobs, tokens)


def _remember_demos(
    model: TinyLVLM, table: PromptItems, demos: Tensor
) -> tuple[KeyValues | None, int]:
    """Keys and values of every prompt's demonstrations, each distinct leading run computed once; their number."""
    levels: list[tuple[KeyValues, Tensor]] = []
    # (N,), which leading run a prompt has
    run = torch.zeros(len(demos), dtype=torch.long, device=demos.device)
    computed = 0
    for depth in range(demos.shape[1]):
        # A run of demonstrations is known by the number of the run before it and its last item.
        known = run * len(table.answer) + demos[:, depth]
        ids, run = torch.unique(known, return_inverse=True)
        # some prompt that has the run
        example = torch.empty(len(ids), dtype=torch.long, device=demos.device)
        example[run] = torch.arange(len(demos), device=demos.device)
        item = demos[example, depth]  # (runs,)
        # (runs, 9, width)
        inputs = model.item_inputs(
            table.seen[item], table.question[item], table.answer[item]
        )
        _, memory = _read_on(model, inputs, _gather(levels, example), wanted=0)
        own = []
        for key, value in memory:
            own.append((key[:, :, -ITEM_TOKENS:], value[:, :, -ITEM_TOKENS:]))
        levels.append((own, run))
        computed += len(ids)
    return _gather(levels, None), computed


def _gather(
    levels: list[tuple[KeyValues, Tensor]], rows: Tensor | None
) -> KeyValues | None:
    """The remembered keys and values of all levels side by side, for some prompts (None: all of them)."""
    if not levels:
        return None
    gathered: KeyValues = []
    for layer in range(len(levels[0][0])):
        keys = []
        values = []
        for memory, run in levels:
            wanted = run if rows is None else run[rows]
            key, value = memory[layer]
            keys.append(key[wanted])
            values.append(value[wanted])
        joined = torch.cat(keys, 2)
        gathered.append((joined, torch.cat(values, 2)))
    return gathered


def _read_on(
    model: TinyLVLM, inputs: Tensor, past: KeyValues | None, wanted: int
) -> tuple[Tensor, KeyValues]:
    """Reads new tokens (N, T, width) after `past`: hidden states of the last `wanted` ones, and all keys and values."""
    start = 0 if past is None else past[0][0].shape[2]  # P, the number of tokens before
    count = inputs.shape[1]  # T
    place = torch.arange(start, start + count, device=inputs.device)
    x = inputs + model.positions(place)
    # causal, (T, P + T)
    mask = torch.ones(count, start + count, dtype=torch.bool, device=x.device)
    mask = mask.tril(start)
    memory: KeyValues = []
    for layer, module in enumerate(model.blocks):
        block = cast(DecoderBlock, module)
        # nobody attends to the last layer's output
        used = wanted if layer == len(model.blocks) - 1 else count
        query, key, value = block.project(x, used)
        if past is not None:
            key = torch.cat([past[layer][0], key], 2)  # (N, heads, P + T, d)
            value = torch.cat([past[layer][1], value], 2)
        memory.append((key, value))
        if used:
            mixed = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask[-used:]
            )
            own = mixed.transpose(1, 2).flatten(2)
            x = block.after_attention(x[:, -used:], own)
    return model.norm(x), memory


def _follow_branches(
    model: TinyLVLM, words: Tensor, at: tuple[Tensor, Tensor], memory: KeyValues
) -> Tensor:
    """Log-probabilities (M, V) after one more word: word m continues prompt at[0][m] as its branch at[1][m].

    A branch sees its prompt and itself, not its siblings. Only attention is padded to the largest number of branches.
    """
    prompts, _, tokens, _ = memory[0][0].shape  # N, heads, P, d
    branches = int(at[1].max()) + 1
    x = model.words(words) + model.positions.weight[tokens]  # (M, width)
    for (keys, values), module in zip(memory, model.blocks, strict=True):
        block = cast(DecoderBlock, module)
        parts = block.into(block.norm_attention(x))
        parts = parts.view(len(words), 3, block.heads, -1)
        padded = x.new_zeros(prompts, branches, *parts.shape[1:])
        padded[at] = parts
        # (N, heads, branches, d) each
        query, key, value = padded.permute(2, 0, 3, 1, 4)
        to_prompt = query @ keys.transpose(2, 3)  # (N, heads, branches, P)
        to_itself = (query * key).sum(-1, keepdim=True)  # (N, heads, branches, 1)
        scores = torch.cat([to_prompt, to_itself], 3)
        weight = (scores * query.shape[-1] ** -0.5).softmax(-1)
        # (N, heads, branches, d)
        mixed = weight[..., :-1] @ values + weight[..., -1:] * value
        own = mixed.transpose(1, 2)[at]
        x = block.after_attention(x, own.flatten(1))
    return model.word_logits(model.norm(x)).log_softmax(-1)


DIMENSIONS = 64
CHANNELS = (24, 48, 64, 96)


class DualEncoder(nn.Module):
    """A convolutional picture tower and a bag-of-words text tower, trained contrastively; 0.2 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = picture_tower(CHANNELS)
        self.project = nn.Linear(CHANNELS[-1] * 4, DIMENSIONS)
        self.words = nn.Embedding(len(VOCABULARY), 128)
        self.text = nn.Sequential(
            nn.Linear(128, 128), nn.GELU(), nn.Linear(128, DIMENSIONS)
        )
        self.scale = nn.Parameter(torch.tensor(2.3))

    def embed_pictures(self, pictures: Tensor) -> Tensor:
        """Unit vectors (N, 64) of normalised pictures."""
        found = self.project(self.tower(pictures))
        return functional.normalize(found, dim=-1)

    def embed_words(self, ids: Tensor) -> Tensor:
        """Unit vectors (N, 64) of texts given as token ids (N, T), padding left out of the mean."""
        keep = (ids != PAD).float()[:, :, None]  # (N, T, 1)
        total = (self.words(ids) * keep).sum(1)
        mean = total / keep.sum(1).clamp(min=1)  # (N, 128)
        return functional.normalize(self.text(mean), dim=-1)
